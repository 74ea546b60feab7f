"""Records each fact about a job once, as a Kubernetes Event. Nothing else writes these Events.

The recorder sees a job before and after its status changes. It remembers the facts that it has recorded. It
reads the events of the previous operator process once for each job.
"""

from __future__ import annotations

import logging
from typing import Final

import urllib3

from headway_api import logs
from headway_api.document import Json
from headway_operator.cache import Ref, particulars, ref_of
from headway_operator.kube import EVENT, Api, ApiError
from headway_operator.plan import events
from headway_operator.plan.context import JobStatus
from headway_operator.plan.fact import Fact
from headway_operator.plan.planner import utc_now

log = logging.getLogger(__name__)

PERMANENT: Final = (403, 404, 409)
"""HTTP codes that a retry cannot change: forbidden or a terminating namespace, no such namespace, and an
event that exists already."""


class Recorder:
    """Records the facts of each job. Calls for one job must not overlap; the queue ensures this."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._keys: dict[Ref, tuple[str, set[str]]] = {}
        """Job -> its uid, and the keys of its recorded facts."""

    def look(self, raw: Json, status: JobStatus) -> None:
        """Find out which facts of a stored job are recorded. Call it before a change of the status."""
        ref, uid = ref_of(raw), raw["metadata"]["uid"]
        if self._keys.get(ref, ("",))[0] == uid:
            return
        now = utc_now()
        quiet = not status.conditions or events.is_old(status, now)
        recorded = set() if quiet else self._recorded(raw)
        self._keys[ref] = uid, events.recorded_before(status, recorded, now)

    def record(self, raw: Json, status: JobStatus) -> None:
        """Record the new facts in the status of a job that `look` has seen."""
        _, recorded = self._keys[ref_of(raw)]
        for fact in events.unrecorded(status, recorded):
            if self._create_event(raw, fact):
                recorded.add(fact.key)

    def forget(self, ref: Ref) -> None:
        """Forget a job that is gone."""
        self._keys.pop(ref, None)

    def _recorded(self, raw: Json) -> set[str]:
        metadata = raw["metadata"]
        fields = f"involvedObject.uid={metadata['uid']},reportingComponent={events.REPORTER}"
        try:
            found, _ = self._api.list(EVENT, metadata["namespace"], fields=fields)
        except (ApiError, urllib3.exceptions.HTTPError) as error:
            # A fact always has the same event name, so the API server refuses a second event of the fact.
            self._report(raw, "events-unread", error)
            return set()
        return events.keys(raw, found)

    def _create_event(self, raw: Json, fact: Fact) -> bool:
        """Create the event; returns False if it must be tried again. A failure delays no job, since the
        status shows the fact too."""
        try:
            self._api.create(EVENT, raw["metadata"]["namespace"], events.event(raw, fact, utc_now()))
        except ApiError as error:
            if error.status != 409:
                self._report(raw, "event-refused", error)
            return error.status in PERMANENT
        except urllib3.exceptions.HTTPError as error:
            self._report(raw, "event-refused", error)
            return False
        return True

    def _report(self, raw: Json, what: str, error: Exception) -> None:
        logs.event(log, what, logging.INFO, **particulars(ref_of(raw)), error=str(error))
