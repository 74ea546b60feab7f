"""A round of the operator over one namespace's budget, against a small API server in memory."""

from __future__ import annotations

from typing import Any

import pytest
from observed_cluster import job
from stored_objects import Server

from headway_api import names
from headway_api.document import Json
from headway_operator import sharing
from headway_operator.cache import Cache, Ref
from headway_operator.config import DEFAULT_MANAGER
from headway_operator.kube import ApiError
from headway_operator.sharing import BudgetAllocator, budget_of

BUDGET = budget_of("team")


def needs(much: str, spent: str = "0") -> Json:
    limit = {
        "name": "namespace.usd",
        "limit": "0",
        "spent": spent,
        "reserved": "0",
        "left": "0",
        "needed": much,
    }
    return {"budget": {"limits": [limit]}}


class Namespace:
    """A budget and two jobs, as the server stores them."""

    def __init__(self, **spec: Any) -> None:
        self.server = Server()
        metadata = {"name": names.BUDGET_NAME, "namespace": "team", "generation": 1}
        body = {"apiVersion": names.API_VERSION, "kind": names.BUDGET_KIND, "metadata": metadata}
        self.server.put(body | {"spec": spec or {"usd": "100"}})
        for number in (1, 2):
            self.put(number)
        self.again: float | None = None
        self.allocator = BudgetAllocator(
            self.server, Cache(), DEFAULT_MANAGER, self.server.objects.get, self._jobs
        )

    def put(self, number: int, status: Json | None = None, **spec: Any) -> None:
        body = job(f"job{number}", status=status or {}, **spec)
        body["metadata"]["uid"] = str(number)
        self.server.put(body)

    def _jobs(self, namespace: str) -> list[Json]:
        known = self.server.objects.items()
        return [body for ref, body in known if ref[0] in names.PLURALS and ref[1] == namespace]

    def share(self) -> list[str]:
        """Share the budget, and return the names of the jobs that have not copied their grant yet."""
        found, self.again = self.allocator.share(BUDGET)
        return [name for _, _, name in found]

    def granted(self) -> dict[str, str]:
        found = self.server.objects[BUDGET].get("status", {})
        return {each["name"]: each["parts"][0]["granted"] for each in found.get("jobs", [])}

    def copy(self) -> None:
        """Copy the grants into the jobs, as reconciles of the jobs do."""
        for each in self.server.objects[BUDGET]["status"]["jobs"]:
            ref = (each["kind"], "team", each["name"])
            body = self.server.objects[ref]
            self.server.put(body | {"status": body["status"] | {"grant": {"parts": each["parts"]}}})


def test_jobs_are_listed_and_granted_what_they_need() -> None:
    team = Namespace()
    assert team.share() == ["job1", "job2"]
    assert team.granted() == {"job1": "0.00", "job2": "0.00"}
    team.copy()
    team.put(1, needs("12"))
    assert team.share() == ["job1"]
    assert team.granted() == {"job1": "12.00", "job2": "0.00"}
    team.copy()
    assert team.share() == []


def test_an_unchanged_budget_is_not_written() -> None:
    team = Namespace()
    team.share()
    before = len(team.server.requests)
    team.share()
    assert team.server.requests[before:] == []
    assert team.server.requests == ["apply RLBudget/status"]


def test_a_write_names_the_version_that_was_read() -> None:
    team = Namespace()
    written: list[Json] = []

    def apply(body: Json, *, subresource: str = "") -> Json:
        written.append(body)
        raise ApiError(409, "Conflict", "the object has been modified")

    version = team.server.objects[BUDGET]["metadata"]["resourceVersion"]
    team.server.apply = apply  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="modified"):
        team.share()
    assert [body["metadata"]["resourceVersion"] for body in written] == [version]
    assert team.granted() == {}


def test_jobs_of_a_namespace_whose_budget_is_gone_are_listed() -> None:
    team = Namespace()
    team.share()
    team.copy()
    del team.server.objects[BUDGET]
    assert team.share() == ["job1", "job2"]


@pytest.mark.parametrize("whose", ["budget", "jobs"])
def test_budgets_and_jobs_of_other_operators_are_left_alone(whose: str) -> None:
    other = {"managedBy": "example.com/operator"}
    team = Namespace(usd="100", **(other if whose == "budget" else {}))
    for number in (1, 2) if whose == "jobs" else ():
        team.put(number, needs("5"), **other)
    assert team.share() == []
    assert team.granted() == {}


def test_an_unreadable_job_keeps_its_grant_and_blocks_none() -> None:
    team = Namespace()
    team.put(1, needs("12"))
    team.share()
    team.copy()

    def latest(ref: Ref) -> Json | None:
        if ref[2] == "job1":
            raise ApiError(0, "OutOfBounds", "more than 256 KiB")
        return team.server.objects.get(ref)

    team.allocator._latest = latest
    team.put(2, needs("5"))
    assert "job2" in team.share()
    assert team.granted() == {"job1": "12.00", "job2": "5.00"}


def test_usage_alone_is_written_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Namespace()
    team.put(1, needs("12"))
    team.share()
    written = len(team.server.requests)
    team.put(1, needs("12", spent="3"))
    team.share()
    assert len(team.server.requests) == written
    assert team.again is not None
    assert 0 < team.again <= sharing.SPENT_SECONDS
    monkeypatch.setattr(sharing, "SPENT_SECONDS", 0.0)
    team.share()
    assert len(team.server.requests) == written + 1
    assert team.server.objects[BUDGET]["status"]["limits"][0]["spent"] == "3.00"


def test_an_ended_job_needs_no_grant_in_its_status() -> None:
    team = Namespace()
    team.share()
    ended = {"type": "Complete", "status": "True"}
    team.put(1, {"conditions": [ended], "budget": {"closed": True, **needs("9", spent="4")["budget"]}})
    assert team.share() == ["job2"]
    [limit] = team.server.objects[BUDGET]["status"]["limits"]
    assert (limit["ended"], limit["granted"]) == ("4.00", "0.00")
