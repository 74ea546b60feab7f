"""Carries out a plan: applies the wanted objects by server-side apply, and deletes the others.

The applier remembers the body that it sent for an object and the resulting version. It sends nothing while
both are unchanged: every change of an object changes its version, and the watch reports it. A watch may miss
a change, so the applier forgets a part of its memory at each resync (`forget`). A restarted operator
remembers nothing and applies everything once, which changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
import zlib
from collections.abc import Callable
from typing import Final

from headway_api import names
from headway_api.conditions import Reason
from headway_api.document import Json
from headway_api.keys import Key
from headway_operator.cache import Cache, Ref, ref_of
from headway_operator.kube import KINDS, Api, ApiError
from headway_operator.plan.children import controller
from headway_operator.plan.context import Mode, Wanted
from headway_operator.plan.health import Issue

log = logging.getLogger(__name__)

KEY_BYTES: Final = 32
ROUNDS: Final = 12
"""Each object is applied again at least once within this many resyncs."""
CONTEST_REPAIRS: Final = 5
CONTEST_SECONDS: Final = 60.0
"""The operator repairs an object at most `CONTEST_REPAIRS` times within this many seconds. After that, the
reconcile fails and is retried with backoff."""


class PlanBlockedError(Exception):
    """The plan cannot be carried out now. The job's status reports `issue`."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(issue.message)
        self.issue = issue


class OutdatedError(Exception):
    """The job has changed since it was read."""


class Applier:
    """The only writer of a job's objects. Calls for one job must not overlap; the queue ensures this."""

    def __init__(self, api: Api, cache: Cache, applied: Callable[[str, str], None]) -> None:
        self._api = api
        self._count = applied
        self._cache = cache
        self._applied: dict[Ref, tuple[str, str]] = {}
        """Digest of the body that was last sent, and the mark of the resulting object."""
        self._repairs: dict[Ref, list[float]] = {}
        self._round = 0

    def forget(self) -> None:
        """Forget some objects and every Secret, so that they are applied again. No watch covers Secrets.

        Comparing all objects of a hundred jobs at once would take two thousand requests that change nothing.
        """
        self._round = (self._round + 1) % ROUNDS
        for ref in list(self._applied):
            if ref[0] == "Secret" or zlib.crc32("/".join(ref).encode()) % ROUNDS == self._round:
                self._applied.pop(ref, None)
        self._repairs.clear()

    def set_finalizer(self, raw: Json, wanted: bool) -> Json:
        """Add the teardown finalizer to a job, or remove it; returns the updated job.

        The request is a merge patch of the whole list, valid only for the version that was read. So it never
        creates a job, never changes a later job of the same name, and keeps the finalizers of others.
        Server-side apply would need no version. But if somebody applied a copy of the job with its finalizer,
        that manager would own the finalizer too. Server-side apply could not remove it, and the job could
        never be deleted.

        Raises:
            OutdatedError: the job has changed; read it again.
            PlanBlockedError: the API server refuses to add the finalizer, so nothing may be created.
            ApiError: the API server refuses to remove it.
        """
        metadata = raw["metadata"]
        others = [name for name in metadata.get("finalizers", []) if name != names.FINALIZER_TEARDOWN]
        finalizers = [*others, names.FINALIZER_TEARDOWN] if wanted else others
        change = {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}
        try:
            kind, namespace, name = ref_of(raw)
            made = self._api.merge(KINDS[kind], namespace, name, {"metadata": change})
        except ApiError as error:
            if error.status in (404, 409):
                raise OutdatedError from error
            if not wanted:
                raise
            text = f"finalizer {names.FINALIZER_TEARDOWN}: {error}"
            raise PlanBlockedError(Issue(Reason.CREATE_FAILED, text)) from error
        self._cache.put(made)
        self._count(raw["kind"], "changed")
        return made

    def carry_out(self, uid: str, wanted: tuple[Wanted, ...], to_delete: tuple[Json, ...]) -> int:
        """Apply and delete as planned; returns the number of requests that changed something.

        Raises:
            PlanBlockedError: an object is still being deleted, belongs to another owner, is changed back by
                another client, or is refused by the API server.
        """
        writes = sum(self._delete(body) for body in to_delete)
        for item in wanted:
            try:
                writes += self._bring_about(uid, item)
            except ApiError as error:
                kind, _, name = item.ref
                reason = Reason.CREATE_FAILED
                raise PlanBlockedError(Issue(reason, f"{kind} {name}: {error}")) from error
        return writes

    def _bring_about(self, uid: str, item: Wanted) -> int:
        if item.mode == Mode.SECRET:
            return self._create_secret(item)
        known = self._known(uid, item)
        if known is not None and known["metadata"].get("deletionTimestamp"):
            raise PlanBlockedError(
                Issue(Reason.RECONCILING, f"{item.ref[0]} {item.ref[2]} is still being deleted")
            )
        if known is not None and item.mode == Mode.PIN:
            return self._scale(item, known)
        digest = hashlib.sha256(json.dumps(item.body, sort_keys=True).encode()).hexdigest()
        if known is not None and self._applied.get(item.ref) == (digest, _mark(known)):
            return 0
        if known is not None and item.ref in self._applied and self._applied[item.ref][0] == digest:
            self._limit_repairs(item.ref)
        made = self._api.apply(item.body)
        self._cache.put(made)
        self._applied[item.ref] = (digest, _mark(made))
        changed = known is None or known["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
        result = "created" if known is None else "changed" if changed else "unchanged"
        self._count(item.ref[0], result)
        return int(changed)

    def _limit_repairs(self, ref: Ref) -> None:
        """Limit how often the operator repairs an object that somebody else keeps changing back."""
        now = time.monotonic()
        recent = [moment for moment in self._repairs.get(ref, []) if now - moment < CONTEST_SECONDS]
        if len(recent) >= CONTEST_REPAIRS:
            raise PlanBlockedError(
                Issue(
                    Reason.CONTESTED,
                    f"another client changes {ref[0]} {ref[2]} after each correction; its managedFields "
                    "name the client",
                )
            )
        self._repairs[ref] = [*recent, now]

    def _known(self, uid: str, item: Wanted) -> Json | None:
        """The object's current state, if this job owns it. If the cache has none, it is read."""
        kind, namespace, name = item.ref
        known = self._cache.get(kind, namespace, name) or self._api.get(KINDS[kind], namespace, name)
        if known is None:
            return None
        if controller(known).get("uid") == uid:
            self._cache.put(known)
            return known
        owner, ours = controller(known), controller(item.body)
        if owner and all(owner[key] == ours[key] for key in ("kind", "name")):
            text = f"{kind} {name} of a deleted job with the same name still exists"
            raise PlanBlockedError(Issue(Reason.RECONCILING, text))
        whose = f"{owner['kind']} {owner['name']}" if owner else "an unknown owner"
        raise PlanBlockedError(
            Issue(
                Reason.NAME_CONFLICT,
                f"{kind} {name} exists and belongs to {whose}; delete it, or give the job another "
                "metadata.name",
            )
        )

    def _scale(self, item: Wanted, known: Json) -> int:
        kind, namespace, name = item.ref
        if item.replicas is None or known["spec"].get("replicas") == item.replicas:
            return 0
        body = {"spec": {"replicas": item.replicas}}
        self._cache.put(self._api.merge(KINDS[kind], namespace, name, body))
        self._count(kind, "scaled")
        return 1

    def _create_secret(self, item: Wanted) -> int:
        kind, namespace, _ = item.ref
        if item.ref in self._applied:
            return 0
        body = item.body | {"stringData": {key: secrets.token_urlsafe(KEY_BYTES) for key in Key}}
        try:
            self._api.create(KINDS[kind], namespace, body)
            created = 1
            self._count(kind, "created")
        except ApiError as error:
            if error.status != 409:
                raise
            created = 0
        self._applied[item.ref] = ("", "")
        return created

    def _delete(self, body: Json) -> int:
        metadata = body["metadata"]
        ref = (body["kind"], metadata["namespace"], metadata["name"])
        self._applied.pop(ref, None)
        if metadata.get("deletionTimestamp"):
            return 0
        answer = self._api.delete(KINDS[ref[0]], ref[1], ref[2], metadata.get("uid"))
        if answer is not None and answer["kind"] == ref[0]:
            self._cache.put(answer)
        elif "uid" in metadata:
            self._cache.remove(body)
        if answer is None:
            return 0
        self._count(ref[0], "deleted")
        return 1


def _mark(body: Json) -> str:
    """A value that changes with an object's spec; for kinds without a generation, with the status too."""
    metadata = body["metadata"]
    return str(metadata.get("generation") or metadata["resourceVersion"])
