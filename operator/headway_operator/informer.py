"""Lists and watches the objects that jobs own, by label, with one thread for each kind and namespace.

kopf watches only the custom resources, since thousands of pods need a plain cache. For kinds whose content
nobody reads, only the metadata is watched. Secrets are not watched at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import urllib3

from headway_api import logs, names
from headway_api.document import Json
from headway_operator.cache import Cache
from headway_operator.kube import KINDS, Api, ApiError, ResourceKind
from headway_operator.wire import UNREAD

log = logging.getLogger(__name__)

SELECTOR: Final = f"{names.LABEL_JOB_UID},{names.LABEL_MANAGED_BY}={names.FIELD_MANAGER_OPERATOR}"
FULL: Final = ("Pod", "Job", "Deployment")
METADATA: Final = (
    "ReplicaSet",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "NetworkPolicy",
    "Service",
)
RETRY_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Source:
    """What one watch covers: a kind, in one namespace or, if that is None, in all namespaces."""

    kind: ResourceKind
    namespace: str | None
    metadata_only: bool


def sources(namespaces: tuple[str, ...]) -> list[Source]:
    """The watches for each kind of child: one for each of `namespaces`, or one over all if it is empty."""
    return [
        Source(KINDS[kind], namespace, kind in METADATA)
        for namespace in (namespaces or (None,))
        for kind in (*FULL, *METADATA)
    ]


class Informer:
    """Keeps the cache equal to the objects that one source covers, and reports every object that changed.

    The informer's thread calls `changed` after it updated the cache.
    """

    def __init__(self, api: Api, cache: Cache, source: Source, changed: Callable[[Json], None]) -> None:
        self._api = api
        self._cache = cache
        self._source = source
        self._changed = changed
        self.synced = threading.Event()
        self.last_event_at = time.monotonic()
        """When the API server last sent anything, on the monotonic clock."""
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to list and watch."""
        threading.Thread(target=self._run, name=f"watch-{self._source.kind.plural}", daemon=True).start()

    def stop(self) -> None:
        """End after the current event."""
        self._stop.set()

    def _run(self) -> None:
        version = ""
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._list()
                version = self._watch(version)
            except ApiError as error:
                self._report("watch-ended", error, status=error.status)
                version = "" if error.status == 410 else version
                self._stop.wait(RETRY_SECONDS)
            except urllib3.exceptions.HTTPError as error:
                self._report("watch-lost", error)
                self._stop.wait(RETRY_SECONDS)
            except (ValueError, KeyError, TypeError) as error:
                # The response has an unexpected shape. The next list shows what this watch missed.
                self._report("watch-unread", error)
                version = ""
                self._stop.wait(RETRY_SECONDS)

    def _report(self, what: str, error: Exception, **more: int) -> None:
        of = self._source.kind.plural
        logs.event(log, what, logging.WARNING, resource=of, error=str(error), **more)

    def _list(self) -> str:
        kind, namespace = self._source.kind, self._source.namespace
        items, version = self._api.list(
            kind, namespace, selector=SELECTOR, metadata_only=self._source.metadata_only
        )
        items = [body for body in items if UNREAD not in body]
        self.last_event_at = time.monotonic()
        for body in self._cache.replace(kind.kind, namespace, items, int(version)):
            self._changed(body)
        self.synced.set()
        return version

    def _watch(self, version: str) -> str:
        events = self._api.watch(
            self._source.kind,
            self._source.namespace,
            version,
            selector=SELECTOR,
            metadata_only=self._source.metadata_only,
        )
        for event in events:
            self.last_event_at = time.monotonic()
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._take(event["type"], event["object"])
            if self._stop.is_set():
                break
        return version

    def _take(self, what: str, body: Json) -> None:
        """Update the cache by one event. For an object that cannot be read, only a deletion has an effect."""
        kind = self._source.kind
        body |= {"apiVersion": kind.api_version, "kind": kind.kind}
        if UNREAD in body:
            where = f"{body['metadata'].get('namespace')}/{body['metadata']['name']}"
            logs.event(
                log, "object-unread", logging.WARNING, resource=kind.plural, object=where, error=body[UNREAD]
            )
        if what == "DELETED":
            changed = self._cache.remove(body)
        else:
            changed = UNREAD not in body and self._cache.put(body)
        if changed:
            self._changed(body)
