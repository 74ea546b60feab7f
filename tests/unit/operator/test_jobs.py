"""A watch announces only the identities of jobs, and each job is fetched on its own.

A worker never sees a job older than announced.
"""

from __future__ import annotations

import copy
from typing import Any

from observed_cluster import job

from headway_api.document import Json
from headway_operator.cache import Cache, ref_of
from headway_operator.jobs import Jobs
from headway_operator.kube import Api, ResourceKind

KEY = ("RLTrainingJob", "team", "refunds")


class Server(Api):
    """An API server with jobs, which counts the fetches."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str, str], Json] = {}
        self.fetched = 0

    def put(self, version: int, uid: str = "u1") -> Json:
        """Store a newer version of the job, and return its identity."""
        body = job()
        body["metadata"] |= {"resourceVersion": str(version), "uid": uid}
        self.stored[ref_of(body)] = body
        known = {key: body["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
        return {"kind": body["kind"], "metadata": known}

    def get(
        self, kind: ResourceKind, namespace: str | None, name: str, *, metadata_only: bool = False
    ) -> Json | None:
        self.fetched += 1
        return copy.deepcopy(self.stored.get((kind.kind, str(namespace), name)))

    def list(self, kind: ResourceKind, namespace: str | None, **_: Any) -> tuple[list[Json], str]:
        found = [body for (known, _, _), body in self.stored.items() if known == kind.kind]
        return [{"kind": kind.kind, "metadata": dict(body["metadata"])} for body in found], "100"


def new_jobs() -> tuple[Server, Cache, Jobs]:
    server, cache = Server(), Cache()
    return server, cache, Jobs(server, cache)


def test_a_job_is_fetched_once_for_each_announced_version() -> None:
    server, _, jobs = new_jobs()
    jobs.announced(server.put(5))
    for _ in range(3):
        found = jobs.latest(KEY)
        assert found is not None
        assert found["spec"]
    assert server.fetched == 1
    jobs.announced(server.put(6))
    assert jobs.latest(KEY) == server.stored[KEY]
    assert server.fetched == 2


def test_the_operators_own_writes_are_not_fetched() -> None:
    server, cache, jobs = new_jobs()
    identity = server.put(5)
    cache.put(copy.deepcopy(server.stored[KEY]))
    jobs.announced(identity)
    jobs.latest(KEY)
    assert server.fetched == 0


def test_a_job_deleted_before_the_fetch_is_absent() -> None:
    server, cache, jobs = new_jobs()
    jobs.announced(server.put(5))
    server.stored.clear()
    assert jobs.latest(KEY) is None
    assert cache.get(*KEY) is None


def test_a_deleted_job_is_forgotten_and_its_successor_is_not() -> None:
    server, _, jobs = new_jobs()
    old = server.put(5)
    jobs.announced(old)
    jobs.latest(KEY)
    jobs.announced(server.put(8, "u2"))
    jobs.gone(old | {"metadata": old["metadata"] | {"resourceVersion": "7"}})
    found = jobs.latest(KEY)
    assert found is not None
    assert found["metadata"]["uid"] == "u2"


def test_a_list_shows_a_job_that_no_event_announced() -> None:
    server, cache, jobs = new_jobs()
    server.put(5)
    assert jobs.list([None]) == {KEY}
    assert jobs.latest(KEY) is not None
    server.stored.clear()
    assert jobs.list([None]) == {KEY}, "so that somebody looks once more"
    assert cache.get(*KEY) is None
    assert jobs.list([None]) == set()
