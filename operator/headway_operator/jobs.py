"""Reads the custom resources: events give only an identity, and each object is fetched alone, within bounds.

So an object that is too deep or too large fails only its own read: no watch and no list has its content.
"""

from __future__ import annotations

from collections.abc import Iterable

from headway_api.document import Json
from headway_operator.cache import Cache, Ref, ref_of
from headway_operator.kube import CUSTOM, JOBS, KINDS, Api


class Jobs:
    """Keeps the jobs and budgets of a cache as new as the announced versions. Thread-safe."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        self._announced = Cache()
        """Identities of the announced objects."""

    def announced(self, identity: Json) -> Ref:
        """Note that an event reported a job or a budget, without reading the object yet."""
        self._announced.put(identity)
        return ref_of(identity)

    def gone(self, identity: Json) -> Ref:
        """Note that a job or a budget was deleted."""
        self._announced.remove(identity)
        self._cache.remove(identity)
        return ref_of(identity)

    def of_namespace(self, namespace: str) -> list[Json]:
        """The identities of the jobs of a namespace."""
        known = (body for kind in JOBS for body in self._announced.of_kind(kind.kind))
        return [body for body in known if body["metadata"]["namespace"] == namespace]

    def list(self, namespaces: Iterable[str | None]) -> set[Ref]:
        """List the jobs and budgets that exist; returns their references, and those of deleted ones.

        Raises:
            ApiError, urllib3.exceptions.HTTPError: they cannot be listed.
        """
        found: set[Ref] = set()
        for kind in CUSTOM:
            for namespace in namespaces:
                items, version = self._api.list(kind, namespace)
                changed = self._announced.replace(kind.kind, namespace, items, int(version))
                for body in changed:
                    known = self._announced.get(*ref_of(body))
                    if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
                        self._cache.remove(body)
                    found.add(ref_of(body))
            found |= {ref_of(body) for body in self._announced.of_kind(kind.kind)}
        return found

    def is_known(self, ref: Ref) -> bool:
        """Whether an object was announced."""
        return self._announced.get(*ref) is not None

    def latest(self, ref: Ref) -> Json | None:
        """A job or a budget, at least as new as its announced version; None if it does not exist.

        Raises:
            ApiError, urllib3.exceptions.HTTPError: the job cannot be fetched.
        """
        known, announced = self._cache.get(*ref), self._announced.get(*ref)
        if announced is None or (known is not None and _version(known) >= _version(announced)):
            return known
        kind, namespace, name = ref
        fresh = self._api.get(KINDS[kind], namespace, name)
        if fresh is None:
            self.gone(announced)
        else:
            self._cache.put(fresh)
        return self._cache.get(*ref)


def _version(body: Json) -> int:
    return int(body["metadata"]["resourceVersion"])
