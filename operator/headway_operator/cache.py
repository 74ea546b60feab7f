"""The cluster as last seen: one store of objects, fed by watches and by the operator's own writes.

The response to a write enters the store at once, and an older watch event never replaces it. So a reconcile
after a write always sees that write, however far the watch lags: a stale view cannot create an object twice.
(Other controllers count the events that they still expect; this cache compares versions instead.)

Resource versions are compared as numbers, which the API server guarantees for its own resources.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable

from headway_api import names
from headway_api.document import Json
from headway_operator.wire import slim

Ref = tuple[str, str, str]
"""Kind, namespace and name of an object."""


def ref_of(body: Json) -> Ref:
    """The reference under which an object is stored."""
    return body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]


def particulars(ref: Ref) -> dict[str, str]:
    """The fields that identify a job in the log."""
    kind, namespace, name = ref
    return {"kind": kind, "namespace": namespace, "job_name": name}


def _version(body: Json) -> int:
    return int(body["metadata"]["resourceVersion"])


class Cache:
    """Objects by reference, and by the uid of the job that their label names. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[Ref, Json] = {}
        self._by_job: defaultdict[str, set[Ref]] = defaultdict(set)
        self._by_kind: defaultdict[str, set[Ref]] = defaultdict(set)
        self._deleted: dict[str, int] = {}
        """uid of each object whose deletion was seen -> its last resource version."""

    def put(self, body: Json) -> bool:
        """Store an object unless this version, a newer one or its deletion is known.

        Returns:
            whether anything changed.
        """
        with self._lock:
            return self._put(body)

    def _put(self, body: Json) -> bool:
        ref = ref_of(body)
        if body["metadata"]["uid"] in self._deleted:
            return False
        known = self._objects.get(ref)
        if known is not None and _version(known) >= _version(body):
            return False
        slim(body)
        self._drop(ref)
        self._objects[ref] = body
        self._by_kind[ref[0]].add(ref)
        if uid := _job_uid(body):
            self._by_job[uid].add(ref)
        return True

    def remove(self, body: Json) -> bool:
        """Forget an object. An object of the same name with another uid stays."""
        with self._lock:
            return self._remove(body)

    def _remove(self, body: Json) -> bool:
        ref = ref_of(body)
        known = self._objects.get(ref)
        self._remember_deleted(body)
        if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
            return False
        self._drop(ref)
        return True

    def _remember_deleted(self, body: Json) -> None:
        self._deleted[body["metadata"]["uid"]] = _version(body)
        while len(self._deleted) > 20_000:
            del self._deleted[next(iter(self._deleted))]

    def _drop(self, ref: Ref) -> None:
        known = self._objects.pop(ref, None)
        self._by_kind[ref[0]].discard(ref)
        if known is not None and (uid := _job_uid(known)):
            self._by_job[uid].discard(ref)
            if not self._by_job[uid]:
                del self._by_job[uid]

    def replace(self, kind: str, namespace: str | None, items: Iterable[Json], version: int) -> list[Json]:
        """Replace all objects of a kind by a list taken at `version`; returns every object that differs.

        Objects newer than the list come from writes after it was taken, and stay.
        """
        with self._lock:
            listed = {ref_of(item): item for item in items}
            gone = [
                body
                for (known_kind, known_namespace, _), body in self._objects.items()
                if known_kind == kind
                and namespace in (None, known_namespace)
                and ref_of(body) not in listed
                and _version(body) <= version
            ]
            return [body for body in gone if self._remove(body)] + [
                body for body in listed.values() if self._put(body)
            ]

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """The object as last seen. Callers must not change it."""
        with self._lock:
            return self._objects.get((kind, namespace, name))

    def of_job(self, uid: str, namespace: str) -> list[Json]:
        """Every object of a namespace whose label names a job's uid. Only an owner reference proves that an
        object belongs to the job."""
        with self._lock:
            return [self._objects[ref] for ref in sorted(self._by_job.get(uid, ())) if ref[1] == namespace]

    def of_kind(self, kind: str) -> list[Json]:
        """Every object of a kind."""
        with self._lock:
            return [self._objects[ref] for ref in sorted(self._by_kind[kind])]


def _job_uid(body: Json) -> str | None:
    uid: str | None = (body["metadata"].get("labels") or {}).get(names.LABEL_JOB_UID)
    return uid
