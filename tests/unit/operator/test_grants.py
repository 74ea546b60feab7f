"""A namespace's budget: how it is divided, what its status says, and how a job uses its part."""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kstatus import verdict
from observed_cluster import World, job, running, stamp
from pydantic import ValidationError

from headway_api import names
from headway_api.conditions import ConditionType, find
from headway_api.document import Json
from headway_api.grants import MAX_JOBS
from headway_api.spec.budget import RLBudget
from headway_api.spec.lifecycle import limits_of
from headway_api.spec.training import RLTrainingJob
from headway_operator.config import DEFAULT_MANAGER as MANAGER
from headway_operator.plan import grants, planner
from headway_operator.plan.grants import Claim
from headway_operator.plan.observed import Observed
from headway_operator.plan.reading import parse_status
from headway_operator.sharing import read

D = Decimal


def budget(status: Json | None = None, **spec: Any) -> RLBudget:
    metadata = {"name": "default", "namespace": "team", "uid": "b", "generation": 3}
    return RLBudget.model_validate({"metadata": metadata, "spec": spec, "status": status or {}})


def claim(uid: str, *, spent: str = "0", used: str | None = None, **given: Any) -> Claim:
    """A job's claim on the budget, with these amounts in US dollars."""
    amounts = {key: {"usd": D(given.pop(key))} for key in ("needed", "wished") if key in given}
    mine = {"spent": {"usd": D(spent)}, "used": {"usd": D(used or spent)}}
    return Claim(uid=uid, kind="RLTrainingJob", name=f"job-{uid}", created=uid, **mine, **amounts, **given)


def shared(maximum: RLBudget, *claims: Claim) -> RLBudget:
    """The budget after one more round of sharing."""
    found = grants.share(limits_of(maximum.spec), maximum.status, claims)
    return maximum.model_copy(update={"status": grants.status(maximum, found)})


def parts(found: RLBudget) -> dict[str, tuple[str, str | None]]:
    return {job.uid: (job.parts[0].granted, job.parts[0].refused) for job in found.status.jobs}


def test_a_budget_with_enough_for_all_grants_every_wish() -> None:
    found = shared(
        budget(usd="100"), claim("a", needed="10", wished="30"), claim("b", needed="5", wished="20")
    )
    assert parts(found) == {"a": ("30.00", None), "b": ("20.00", None)}
    [limit] = found.status.limits
    assert (limit.granted, limit.left, limit.ended) == ("50.00", "50.00", "0.00")


def test_needs_are_granted_before_wished_amounts() -> None:
    found = shared(
        budget(usd="40"), claim("a", needed="10", wished="90"), claim("b", needed="20", wished="20")
    )
    assert parts(found) == {"a": ("20.00", None), "b": ("20.00", None)}


def test_least_granted_job_is_first_and_an_unmet_need_is_refused() -> None:
    before = shared(budget(usd="100"), claim("a", needed="70", wished="70"))
    found = shared(
        before, claim("a", used="70", needed="95", wished="99"), claim("b", needed="28", wished="40")
    )
    assert parts(found) == {"a": ("70.00", "95.00"), "b": ("30.00", None)}
    condition = find(found.status.conditions, ConditionType.BUDGET_EXHAUSTED)
    assert condition is not None
    assert condition.status == "True"
    assert condition.message == "spec.usd is 100.00; write 125.00 or more: these jobs cannot continue: job-a"


def test_a_smaller_need_is_granted_when_a_larger_one_is_refused() -> None:
    found = shared(budget(usd="10"), claim("a", needed="11"), claim("b", needed="9"))
    assert parts(found) == {"a": ("0.00", "11.00"), "b": ("9.00", None)}


def test_a_grant_never_shrinks() -> None:
    before = shared(budget(usd="100"), claim("a", needed="60", wished="60"))
    assert parts(shared(before, claim("a", spent="1"))) == {"a": ("60.00", None)}
    assert parts(shared(before, claim("a", spent="1", needed="2", wished="3"))) == {"a": ("60.00", None)}


@pytest.mark.parametrize(
    ("one", "charged"),
    [
        (claim("a", spent="7", used="9", ended=True, closed=True), "9.00"),
        (claim("a", spent="7", used="9", ended=True), "60.00"),
        (claim("a", spent="70", used="71", ended=True), "71.00"),
        (None, "60.00"),
    ],
    ids=["ended in order", "ended without a word", "used more than it was granted", "deleted"],
)
def test_an_ended_job_is_charged_once(one: Claim | None, charged: str) -> None:
    found = shared(budget(usd="100"), claim("a", needed="60", wished="60"))
    for _ in range(3):
        found = shared(found, *([one] if one else []))
        assert found.status.limits[0].ended == charged
        assert (found.status.jobs, found.status.ended_jobs) == ([], 1)


def test_a_job_that_ended_before_the_budget_is_not_charged() -> None:
    found = shared(budget(usd="100"), claim("a", spent="50", ended=True, closed=True))
    assert found.status.limits[0].ended == "0.00"


def test_usage_beyond_a_grant_is_granted_to_nobody_else() -> None:
    before = shared(budget(usd="100"), claim("a", needed="60", wished="60"))
    found = shared(before, claim("a", spent="80"), claim("b", needed="30"))
    assert parts(found) == {"a": ("80.00", None), "b": ("0.00", "30.00")}


def test_a_lowered_limit_revokes_no_grant() -> None:
    before = shared(budget(usd="100"), claim("a", needed="60", wished="60"))
    lowered = before.model_copy(update={"spec": budget(usd="50").spec})
    found = shared(lowered, claim("a", used="60", needed="61"))
    assert parts(found) == {"a": ("60.00", "61.00")}
    assert found.status.limits[0].left == "-10.00"


def test_a_need_must_fit_under_every_limit() -> None:
    two = budget(usd="10", tokens={"sample": 100})
    needed = {"usd": D(5), "tokens.sample": D(101)}
    found = shared(two, Claim("a", "RLTrainingJob", "a", "1", needed=needed))
    [entry] = found.status.jobs
    assert [(part.granted, part.refused) for part in entry.parts] == [("0.00", None), ("0", "101")]


def test_a_budget_reports_when_little_is_left() -> None:
    def low(spent: str) -> str:
        found = find(
            shared(budget(usd="100"), claim("a", spent=spent)).status.conditions, ConditionType.BUDGET_LOW
        )
        assert found is not None
        return found.status

    assert (low("80"), low("80.01")) == ("False", "True")


def test_a_condition_keeps_its_transition_time() -> None:
    first = shared(budget(usd="10"), claim("a", needed="11"))
    assert shared(first, claim("a", needed="11")) == first


LEVEL = st.integers(0, 50)


@given(st.lists(st.tuples(LEVEL, LEVEL), max_size=6), st.integers(0, 200))
def test_the_rest_is_shared_so_that_the_lowest_grants_rise_first(
    pairs: list[tuple[int, int]], left: int
) -> None:
    wished = {str(n): (D(now), D(wish)) for n, (now, wish) in enumerate(pairs)}
    levels = grants.max_min_levels(wished, D(left), D(1))
    rises = {who: level - wished[who][0] for who, level in levels.items()}
    assert all(rise >= 0 for rise in rises.values())
    assert all(levels[who] <= wished[who][1] for who in levels)
    assert sum(rises.values()) <= left
    short = [who for who in levels if levels[who] < wished[who][1]]
    if short:
        assert left - sum(rises.values()) < len(short), "no more than what cannot be split stays"
        lowest = min(levels[who] for who in short)
        assert all(levels[who] <= lowest for who, rise in rises.items() if rise)


LIMIT = {"limit": "10", "left": "0"}
BEGAN: Json = {"startTime": "2026-01-01T00:00:00Z"}
BOUND: Json = {"grant": {"parts": [{"name": "usd", "granted": "0", "late": True}]}}


def stored(uid: str, status: Json | None = None, **metadata: Any) -> Json:
    body = job(f"job-{uid}", status=status or {})
    body["metadata"] |= {"uid": uid, "creationTimestamp": uid, **metadata}
    return body


def reported(spent: str, **more: str) -> Json:
    limit = {"name": "namespace.usd", "spent": spent, "reserved": "0", **LIMIT, **more}
    return {"budget": {"limits": [limit]}}


@pytest.mark.parametrize("status", [BEGAN, BEGAN | BOUND], ids=["not bounded yet", "has not heard"])
def test_no_grant_precedes_usage_reports_of_jobs_already_begun(status: Json) -> None:
    ran = stored("a", status | {"usage": {"cost": "95"}})
    asks = stored("b", reported("0", needed="20"))
    waits = shared(budget(usd="100"), *map(grants.claim, (ran, asks)))
    assert parts(waits) == {"a": ("95.00", None), "b": ("0.00", None)}
    ready = find(waits.status.conditions, ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "JobsNotReporting")
    assert ready.message.startswith("nothing is granted until these jobs report their usage: job-a")
    ran["status"] |= BOUND | reported("97")
    found = shared(waits, *map(grants.claim, (ran, asks)))
    assert parts(found) == {"a": ("97.00", None), "b": ("0.00", "20.00")}
    asks["status"] = reported("0", needed="3")
    assert parts(shared(found, *map(grants.claim, (ran, asks))))["b"] == ("3.00", None)


def test_usage_of_a_suspended_job_comes_from_its_bill() -> None:
    suspended = {"conditions": [{"type": "Suspended", "status": "True"}]}
    one = grants.claim(stored("a", BEGAN | suspended | {"usage": {"cost": "95", "sampleTokens": 7}}))
    assert one.bill == {"usd": D(95), "tokens.sample": D(7)}
    assert not one.not_reporting
    found = shared(budget(usd="100"), one, grants.claim(stored("b", reported("0", needed="20"))))
    assert parts(found) == {"a": ("95.00", None), "b": ("0.00", "20.00")}


def test_a_recreated_budget_knows_what_jobs_were_granted() -> None:
    holds = {"grant": {"parts": [{"name": "usd", "granted": "90"}]}} | reported("10")
    jobs = [stored("a", BEGAN | holds), stored("b", reported("0", needed="20"))]
    found = shared(budget(usd="100"), *map(grants.claim, jobs))
    assert parts(found) == {"a": ("90.00", None), "b": ("0.00", "20.00")}


def test_an_ended_job_keeps_its_grant_until_its_pods_are_gone() -> None:
    before = shared(budget(usd="100"), claim("a", needed="60", wished="60"))
    status = {"conditions": [{"type": "Failed", "status": "True"}]} | reported("7", needed="80")
    status["budget"]["closed"] = True
    stops = stored("a", status, finalizers=[names.FINALIZER_TEARDOWN])
    kept = shared(before, grants.claim(stops))
    assert parts(kept) == {"a": ("60.00", None)}
    stops["metadata"]["finalizers"] = []
    found = shared(kept, grants.claim(stops))
    assert (found.status.limits[0].ended, found.status.jobs) == ("7.00", [])


def test_a_last_report_keeps_a_limit_that_it_leaves_out() -> None:
    two = budget(usd="100", tokens={"sample": 50})
    asks = {"usd": D(60), "tokens.sample": D(20)}
    before = shared(two, Claim("a", "RLTrainingJob", "a", "1", needed=asks))
    found = shared(before, claim("a", spent="7", ended=True, closed=True))
    assert [limit.ended for limit in found.status.limits] == ["7.00", "20"]


def test_jobs_beyond_the_budgets_maximum_wait_and_are_counted() -> None:
    claims = [claim(f"{number:04}", needed="1") for number in range(MAX_JOBS + 2)]
    found = shared(budget(usd="5000"), *claims)
    assert len(found.status.jobs) == MAX_JOBS
    ready = find(found.status.conditions, ConditionType.READY)
    assert ready is not None
    assert ready.status == "False"
    assert ready.message == f"2 jobs wait, because {MAX_JOBS} already share the budget; end some"


def test_a_claim_is_read_from_a_job_as_it_is_stored() -> None:
    limits = [
        {"name": "usd", "spent": "9", "reserved": "9", **LIMIT},
        {"name": "namespace.usd", "spent": "3", "reserved": "2.5", "needed": "7", "wished": "8", **LIMIT},
        {"name": "namespace.tokens.sample", "spent": "x", "reserved": "NaN", "needed": "1e30", **LIMIT},
    ]
    found = grants.claim(job(status={"budget": {"limits": limits, "closed": True}}))
    assert (found.spent["usd"], found.used["usd"]) == (D(3), D("5.5"))
    assert (found.needed, found.wished) == ({"usd": D(7), "tokens.sample": grants.MAX_AMOUNT}, {"usd": D(8)})
    shared(budget(usd="1", tokens={"sample": 5}), found)
    assert found.used["tokens.sample"] == 0
    assert found.closed
    assert not found.ended


@pytest.mark.parametrize(
    "changed",
    [
        {"spec": {"suspend": True}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"status": {"pause": {"time": "2026-01-01T00:00:00Z"}}},
    ],
    ids=["suspended", "deleted", "paused"],
)
def test_a_job_that_is_not_to_run_asks_for_nothing(changed: Json) -> None:
    limits = [{"name": "namespace.usd", "spent": "3", "reserved": "0", "needed": "7", **LIMIT}]
    body = job(status={"budget": {"limits": limits}})
    body = {
        key: value | changed.get(key, {}) if isinstance(value, dict) else value for key, value in body.items()
    }
    assert grants.claim(body).needed == {}
    assert grants.claim(body).spent == {"usd": D(3)}


@pytest.mark.parametrize(
    "status", [None, {"budget": 3}, {"budget": {"limits": [4, {"name": 5}]}}, {"conditions": {}}]
)
def test_a_status_of_another_shape_asks_for_nothing(status: Any) -> None:
    found = grants.claim(job() | {"status": status})
    assert (found.needed, found.spent, found.ended) == ({}, {}, False)


def test_a_namespace_has_one_budget() -> None:
    with pytest.raises(
        ValidationError, match=r"metadata\.name must be default: a namespace has one RLBudget"
    ):
        RLBudget.model_validate({"metadata": {"name": "other"}, "spec": {"usd": "1"}})
    with pytest.raises(ValidationError, match="spec has no limit; write usd, tokens, or both"):
        budget()
    with pytest.raises(ValidationError, match=r"spec\.tokens names no class; write a limit for one of"):
        budget(tokens={})


# What a job does with its part.


def in_namespace(world: World, granted: str | None = None, refused: str | None = None, **spec: Any) -> World:
    """The same job in a namespace with a budget that has granted something to it."""
    status: Json = {}
    if granted is not None:
        part = {"name": "usd", "granted": granted} | ({"refused": refused} if refused else {})
        metadata = world.body["metadata"]
        status = {
            "jobs": [{"uid": metadata["uid"], "kind": "RLTrainingJob", "name": "refunds", "parts": [part]}]
        }
    world.budget = {"metadata": {"name": "default"}, "spec": spec or {"usd": "100"}, "status": status}
    return world


def grant(world: World) -> Any:
    """The grant in the job's status, without the marks of late parts."""
    found = copy.deepcopy(world.body["status"].get("grant"))
    for each in found["parts"] if found else ():
        each.pop("late", None)
    return found


def late(world: World) -> list[bool]:
    """For each part, whether the job already ran when this part first bounded it."""
    return [each.get("late", False) for each in world.body["status"]["grant"]["parts"]]


def test_objects_are_created_only_once_status_bounds_the_job() -> None:
    world = in_namespace(World(job()))
    while not grant(world):
        made = world.carry_out()
        assert (made.wanted, made.requeue_after) == ((), 0)
    assert grant(world) == {"parts": [{"name": "usd", "granted": "0"}]}
    while not world.carry_out().wanted:
        pass
    assert late(world) == [False]
    assert ("Job", "refunds-coordinator") in world.objects


def test_a_budget_that_is_made_later_bounds_a_job_that_runs() -> None:
    world = in_namespace(running())
    before = copy.deepcopy(world.objects)
    world.carry_out()
    assert grant(world) == {"parts": [{"name": "usd", "granted": "0"}]}
    assert world.objects == before
    assert late(world) == [True]
    in_namespace(world, "12.5").carry_out()
    assert late(world) == [True]
    assert grant(world) == {"parts": [{"name": "usd", "granted": "12.5"}]}


def test_a_limit_not_yet_shared_by_the_budget_grants_nothing() -> None:
    world = in_namespace(running(), "12.5", usd="100", tokens={"sample": 7})
    world.carry_out()
    expected = [{"name": "usd", "granted": "12.5"}, {"name": "tokens.sample", "granted": "0"}]
    assert grant(world) == {"parts": expected}


def test_a_budget_that_does_not_yet_list_a_job_revokes_nothing() -> None:
    world = in_namespace(running(), "12.5")
    world.carry_out()
    in_namespace(world).carry_out()
    assert grant(world) == {"parts": [{"name": "usd", "granted": "12.5"}]}


def test_an_older_reading_of_the_budget_takes_nothing_back() -> None:
    world = in_namespace(running(), "12.5")
    world.carry_out()
    in_namespace(world, "9").carry_out()
    assert grant(world) == {"parts": [{"name": "usd", "granted": "12.5"}]}


def test_a_budget_that_cannot_be_read_changes_nothing() -> None:
    world = in_namespace(running(), "12.5")
    world.carry_out()
    seen = Observed(world.now, tuple(world.objects.values()), budget="unread")
    made = planner.make(world.body, world.platform, seen)
    assert made.status is None or made.status.grant == parse_status(RLTrainingJob, world.body).grant
    strange = {"kind": "RLBudget", "metadata": {"name": "default", "namespace": "team"}, "spec": {}}
    assert read(strange, MANAGER) == "unread"


def test_without_a_budget_nothing_bounds_the_job() -> None:
    world = in_namespace(running(), "12.5")
    world.carry_out()
    world.budget = None
    world.carry_out()
    assert grant(world) is None


def test_a_job_that_has_ended_keeps_what_it_was_granted() -> None:
    world = in_namespace(running(), "12.5")
    world.carry_out()
    world.body["status"]["conditions"] += [
        {
            "type": "Complete",
            "status": "True",
            "reason": "MaxStepsReached",
            "message": "",
            "lastTransitionTime": stamp(world.now),
        }
    ]
    in_namespace(world, "20").carry_out()
    assert grant(world) == {"parts": [{"name": "usd", "granted": "12.5"}]}


def exhausted(world: World, needed: str) -> World:
    limit = {
        "name": "namespace.usd",
        "limit": "10",
        "spent": "9",
        "reserved": "0",
        "left": "1",
        "needed": needed,
    }
    world.body["status"]["budget"] = {"limits": [limit], "exhaustedTime": stamp(world.now)}
    world.carry_out()
    world.gone(*names.ROLES).carry_out()
    return world


def test_a_job_refused_budget_is_suspended_until_granted_enough() -> None:
    world = in_namespace(running(), "10", refused="12")
    world.carry_out()
    exhausted(world, "12")
    assert (world.body["status"]["state"], world.body["status"]["reason"]) == ("Suspended", "BudgetExhausted")
    assert verdict(world.body) == "Failed"
    message = world.status_condition("Suspended")["message"]
    assert (
        "the namespace's RLBudget lets the job use 10 of spec.usd, and continuing needs 12; raise" in message
    )
    in_namespace(world, "11.9").carry_out()
    world.later(60).carry_out()
    assert world.body["status"]["state"] == "Suspended"
    in_namespace(world, "12").carry_out()
    world.carry_out()
    world.carry_out()
    assert ("Job", "refunds-coordinator") in world.objects
    assert world.status_condition("Suspended")["reason"] == "Resumed"
