"""Reconciles one job once: observe, plan, apply, report. The queue lets no two calls for a job overlap."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from headway_api import logs, names
from headway_api.document import Json
from headway_api.names import TRAINING_KIND
from headway_operator.apply import Applier, OutdatedError, PlanBlockedError
from headway_operator.cache import Cache, Ref, particulars, ref_of
from headway_operator.config import OperatorConfig
from headway_operator.kube import EVENT, KINDS, NAMESPACE, Api, ApiError
from headway_operator.plan import children, planner
from headway_operator.plan.context import JobStatus
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.observed import Observed, is_ending
from headway_operator.plan.reading import parse_status
from headway_operator.recorder import Recorder
from headway_operator.sharing import budget_of, read
from headway_operator.wire import UNREAD

log = logging.getLogger(__name__)

Key = Ref
"""Kind, namespace and name of a job."""


class Reconciler:
    """Reconciles jobs with their specs."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        platform: OperatorConfig,
        applied: Callable[[str, str], None],
        latest: Callable[[Ref], Json | None] | None = None,
    ) -> None:
        """`latest` returns a job at least as new as its last event reported; by default, the cached job."""
        self._api = api
        self._cache = cache
        self._latest = latest or (lambda ref: cache.get(*ref))
        self._platform = platform
        self._applier = Applier(api, cache, applied)
        self._recorder = Recorder(api)
        self._proved: dict[Ref, tuple[str, frozenset[str]]] = {}
        """Job -> its uid, and the uids of the objects that the last reconcile found to belong to it."""

    def forget(self) -> None:
        """Compare some objects of all jobs with their plans again, at each job's next reconcile."""
        self._applier.forget()

    def reconcile(self, key: Key) -> float | None:
        """Reconcile once; returns the seconds until the next round if nothing happens before.

        Raises:
            PlanBlockedError: the plan could not be carried out; the job's status says why.
            ApiError: the API server refused another request, which the job's status does not report.
        """
        raw = self._latest(key)
        if raw is None:
            self._recorder.forget(key)
            self._proved.pop(key, None)
            return None
        made = self._plan(raw)
        if made.ending:
            if (fresh := self._reread(raw)) is None:
                return None
            raw, made = fresh, self._plan(fresh)
        try:
            raw = self._set_finalizer(raw, made.finalizer)
            writes = self._applier.carry_out(raw["metadata"]["uid"], made.wanted, made.to_delete)
        except OutdatedError:
            return None if self._reread(raw) is None else 0.0
        except PlanBlockedError as blocked:
            plan = planner.make(raw, self._platform, self._observed(raw), blocked.issue)
            self._report(raw, plan.status)
            raise
        if made.delete_job:
            kind, namespace, name = key
            self._api.delete(KINDS[kind], namespace, name, raw["metadata"]["uid"])
            return None
        if writes:
            logs.event(log, "reconciled", logging.INFO, **particulars(key), writes=writes)
        self._report(raw, made.status)
        return made.requeue_after

    def _set_finalizer(self, raw: Json, wanted: bool | None) -> Json:
        """Set the finalizer as planned: it is added before the first object, and removed after the last."""
        present = names.FINALIZER_TEARDOWN in raw["metadata"].get("finalizers", [])
        return raw if wanted in (None, present) else self._applier.set_finalizer(raw, wanted)

    def _observed(self, raw: Json) -> Observed:
        namespace = raw["metadata"]["namespace"]
        named = {name: self._latest((TRAINING_KIND, namespace, name)) for name in planner.sources(raw)}
        sources = {name: job for name, job in named.items() if job is not None}
        family = self._cache.of_job(raw["metadata"]["uid"], namespace)
        known = self._proved.get(ref_of(raw), ("", frozenset()))
        proved = known[1] if known[0] == raw["metadata"]["uid"] else frozenset()
        owned, leaving = children.of(raw, family, proved)
        uids = frozenset(body["metadata"]["uid"] for body in owned)
        self._proved[ref_of(raw)] = raw["metadata"]["uid"], uids
        shared = read(self._latest(budget_of(namespace)), self._platform.manager)
        seen = Observed(planner.utc_now(), owned, sources=sources, leaving=leaving, budget=shared)
        if seen.learner_ends() and not is_ending(raw):
            seen = replace(seen, namespace_ends=self._namespace_ends(namespace))
        if not (without_pods := seen.jobs_without_pods()):
            return seen
        refusals = {body["metadata"]["uid"]: self._refusal(body) for body in without_pods}
        return replace(seen, refusals={uid: words for uid, words in refusals.items() if words})

    def _namespace_ends(self, name: str) -> bool:
        namespace = self._api.get(NAMESPACE, None, name, metadata_only=True)
        return namespace is None or is_ending(namespace)

    def _refusal(self, body: Json) -> str | None:
        """Why the pods of a Job could not be created. Kubernetes reports that only in events."""
        fields = f"involvedObject.uid={body['metadata']['uid']},reason=FailedCreate"
        events, _ = self._api.list(EVENT, body["metadata"]["namespace"], fields=fields)
        events.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return events[-1].get("message") if events else None

    def _plan(self, raw: Json) -> planner.Plan:
        return planner.make(raw, self._platform, self._observed(raw))

    def _reread(self, raw: Json) -> Json | None:
        """The job's current state in the API server; None if it is gone, or another job has its name.

        A terminal status must use the newest state: the coordinator may just have written its final status.
        """
        metadata = raw["metadata"]
        fresh = self._api.get(KINDS[raw["kind"]], metadata["namespace"], metadata["name"])
        if fresh is None or fresh["metadata"]["uid"] != metadata["uid"]:
            return None
        self._cache.put(fresh)
        return fresh

    def _report(self, raw: Json, new_status: JobStatus | None) -> None:
        """Write the operator's part of the status if it differs from the stored one; record new facts."""
        if new_status is None:
            return
        body = new_status.as_object()
        kind = job_kind_of(raw)
        stored = parse_status(kind.model, raw)
        self._recorder.look(raw, stored)
        if body == kind.own_part(stored).as_object():
            self._recorder.record(raw, stored)
            return
        metadata = {key: raw["metadata"][key] for key in ("name", "namespace", "uid")}
        document = {
            "apiVersion": names.API_VERSION,
            "kind": raw["kind"],
            "metadata": metadata,
            "status": body,
        }
        try:
            answer = self._api.apply(document, subresource="/status")
        except ApiError as error:
            if error.status in (404, 409):
                # The job was deleted, or another job has its name now. A watch event will report that.
                return
            if UNREAD not in raw:
                raise
            # The status of this unreadable job cannot be written. An Event and a counter report it instead.
            self._recorder.record(raw, new_status)
            return
        self._cache.put(answer)
        _log_changes(raw, new_status)
        self._recorder.record(answer, parse_status(kind.model, answer))


def _log_changes(raw: Json, new_status: JobStatus) -> None:
    before = raw.get("status", {})
    if before.get("state") == new_status.state and before.get("reason") == new_status.reason:
        return
    logs.event(
        log,
        "state",
        logging.INFO,
        **particulars(ref_of(raw)),
        state=new_status.state,
        reason=new_status.reason,
    )
