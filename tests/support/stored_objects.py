"""A small API server in memory, with the calls that the operator makes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from observed_cluster import stamp

from headway_api.document import Json
from headway_operator.cache import Ref, ref_of
from headway_operator.kube import Api, ApiError, ResourceKind
from headway_operator.plan.planner import utc_now


class Server(Api):
    """Objects with versions, finalizers and preconditions; no controller acts on them."""

    def __init__(self, job: Ref | None = None) -> None:
        """`job` is the job that the property `job` returns and `change_job` changes."""
        self._job = job
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.requests: list[str] = []
        self.before: Callable[[str, str], None] = lambda verb, kind: None
        """Called before each write. It may act as another client, or refuse the write."""
        self._version = 100

    @property
    def job(self) -> Json | None:
        return self.objects.get(self._job) if self._job else None

    def put(self, body: Json) -> Json:
        """Store an object as its newest version."""
        self._version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self._version)
        body["metadata"].setdefault("uid", "-".join(ref_of(body)))
        body["metadata"].setdefault("creationTimestamp", stamp(utc_now()))
        self.objects[ref_of(body)] = body
        return copy.deepcopy(body)

    def change_job(self, **metadata: Any) -> None:
        """Change the job's metadata, as another client would."""
        assert self.job is not None
        self.put(self.job | {"metadata": self.job["metadata"] | metadata})

    def _note(self, verb: str, kind: str) -> None:
        self.before(verb, kind)
        self.requests.append(f"{verb} {kind}")

    def get(
        self, kind: ResourceKind, namespace: str, name: str, *, metadata_only: bool = False
    ) -> Json | None:
        return copy.deepcopy(self.objects.get((kind.kind, namespace, name)))

    def list(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        selector: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> tuple[list[Json], str]:
        found = [body for (known, _, _), body in self.objects.items() if known == kind.kind]
        return copy.deepcopy(found), str(self._version)

    def create(self, kind: ResourceKind, namespace: str, body: Json) -> Json:
        self._note("create", kind.kind)
        if (kind.kind, namespace, body["metadata"]["name"]) in self.objects:
            raise ApiError(409, "AlreadyExists", body["metadata"]["name"])
        return self.put(body)

    def apply(self, body: Json, *, subresource: str = "") -> Json:
        self._note("apply", body["kind"] + subresource)
        if not subresource:
            return self.put(body)
        known = self.objects.get(ref_of(body))
        if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "uid mismatch")
        return self.put(known | {"status": known.get("status", {}) | body["status"]})

    def merge(
        self, kind: ResourceKind, namespace: str, name: str, body: Json, *, subresource: str = ""
    ) -> Json:
        self._note("merge", kind.kind)
        known = self.objects.get((kind.kind, namespace, name))
        if known is None:
            raise ApiError(404, "NotFound", "not found")
        if body["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        made = self.put(known | {"metadata": known["metadata"] | body["metadata"]})
        self._finish(made)
        return made

    def delete(self, kind: ResourceKind, namespace: str, name: str, uid: str | None = None) -> Json | None:
        self._note("delete", kind.kind)
        known = self.objects.get((kind.kind, namespace, name))
        if known is None:
            return None
        self._finish(self.put(known | {"metadata": known["metadata"] | {"deletionTimestamp": "now"}}))
        return {"kind": "Status"}

    def _finish(self, body: Json) -> None:
        metadata = body["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            del self.objects[ref_of(body)]
