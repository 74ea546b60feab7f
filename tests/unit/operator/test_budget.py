"""A job whose budget is exhausted has no pods until its spec allows enough."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kstatus import verdict
from observed_cluster import World, evaluating, running, stamp

from headway_api import names
from headway_api.document import Json
from headway_api.spec.training import RLTrainingJob
from headway_operator import samples
from headway_operator.plan import budget, events
from headway_operator.plan.reading import parse_status


def limit(name: str, maximum: str, needed: str | None = None) -> Json:
    found = {"name": name, "limit": maximum, "spent": maximum, "reserved": "0", "left": "0"}
    return found | ({"needed": needed} if needed else {})


def reported(world: World, *limits: Json, exhausted: bool = True) -> World:
    """Have the coordinator report these limits of the budget."""
    now = {"exhaustedTime": stamp(world.now)} if exhausted else {}
    world.body["status"]["budget"] = {"limits": [*limits], **now}
    world.carry_out()
    return world


def state(world: World) -> tuple[str, str]:
    return world.body["status"]["state"], world.body["status"]["reason"]


def workloads(world: World) -> list[Any]:
    return [key for key in world.objects if key[0] in ("Job", "Deployment", "Pod")]


def suspended(world: World, *limits: Json) -> World:
    reported(world, *limits).gone(*names.ROLES).carry_out()
    return world


def test_an_exhausted_jobs_pods_stop_and_it_says_what_to_write() -> None:
    world = running(budget={"usd": "10"})
    reported(world, limit("usd", "10", "12.5"))
    assert state(world) == ("Suspending", "Suspending")
    world.gone(*names.ROLES).carry_out()
    assert state(world) == ("Suspended", "BudgetExhausted")
    assert verdict(world.body) == "Failed"
    for kind in ("Suspended", "Stalled", "Ready"):
        message = world.status_condition(kind)["message"]
        assert "spec.budget.usd is 10, and continuing needs 12.5" in message, kind
    assert "suspend" not in world.body["spec"], "a spec is a person's to write"


@pytest.mark.parametrize("raised", [{"usd": "12.5"}, {"usd": "250"}, {"tokens": {"train": 9}}, None])
def test_a_large_enough_budget_lets_the_job_go_on(raised: Json | None) -> None:
    world = suspended(running(budget={"usd": "10"}), limit("usd", "10", "12.5"))
    assert not workloads(world)
    world.body["spec"] = {key: value for key, value in world.body["spec"].items() if key != "budget"}
    world.body["spec"] |= {"budget": raised} if raised else {}
    world.carry_out()
    world.carry_out()
    assert ("Job", "refunds-coordinator") in world.objects
    assert world.status_condition("Suspended")["reason"] == "Resumed"


@pytest.mark.parametrize("written", [{"usd": "12.4"}, {"usd": "12.4", "onExhausted": "Drain"}])
def test_a_too_small_budget_leaves_the_job_suspended(written: Json) -> None:
    world = suspended(running(budget={"usd": "10"}), limit("usd", "10", "12.5"))
    world.body["spec"]["budget"] = written
    world.later(60).carry_out()
    assert not workloads(world)
    assert (
        "spec.budget.usd is 12.4, and continuing needs 12.5" in world.status_condition("Suspended")["message"]
    )


def test_every_limit_must_suffice() -> None:
    made = running(budget={"usd": "10", "tokens": {"sample": 5, "cachedPrefill": 7}})
    cached, sampled = limit("tokens.cachedPrefill", "7", "9"), limit("tokens.sample", "5")
    world = suspended(made, limit("usd", "10", "11"), cached, sampled)
    job = RLTrainingJob.model_validate(world.body)
    assert job.status.budget is not None
    assert [each.name for each in budget.lacking(job.status.budget, job)] == ["usd", "tokens.cachedPrefill"]


def test_a_job_that_is_to_fail_is_left_to_its_coordinator() -> None:
    world = running(budget={"usd": "10", "onExhausted": "Fail"})
    reported(world, limit("usd", "10", "12.5"))
    assert state(world) == ("Training", "Stepping")
    assert workloads(world)


def test_a_job_with_money_left_is_left_alone() -> None:
    world = running(budget={"usd": "10"})
    reported(world, limit("usd", "10"), exhausted=False)
    assert state(world) == ("Training", "Stepping")


def test_nothing_is_done_while_the_budget_is_exhausted() -> None:
    world = suspended(running(budget={"usd": "10"}), limit("usd", "10", "12.5"))
    settled = copy.deepcopy(world.body["status"])
    made = world.later(10_000).carry_out()
    assert (made.to_delete, made.requeue_after) == ((), None)
    assert world.body["status"] == settled
    assert not samples.is_active(world.body)


def test_an_evaluation_stops_and_goes_on_alike() -> None:
    world = evaluating(budget={"usd": "10"})
    reported(world, limit("usd", "10", "12.5"))
    world.gone(*names.ROLES).carry_out()
    assert state(world) == ("Suspended", "BudgetExhausted")
    world.body["spec"]["budget"] = {"usd": "20"}
    world.carry_out()
    world.carry_out()
    assert ("Job", "refunds-eval-coordinator") in world.objects


def test_the_coordinators_conditions_have_one_event_each() -> None:
    world = suspended(running(budget={"usd": "10"}), limit("usd", "10", "12.5"))
    for kind in ("BudgetLow", "BudgetExhausted"):
        world.body["status"]["conditions"].append(
            {
                "type": kind,
                "status": "True",
                "reason": kind,
                "message": f"{kind} it is",
                "lastTransitionTime": stamp(world.now),
            }
        )
    status = parse_status(RLTrainingJob, world.body)
    by_reason = {fact.reason: fact for fact in events.facts(status)}
    assert by_reason["BudgetExhausted"].message == "BudgetExhausted it is"
    assert by_reason["BudgetLow"].warning
    assert "Stalled" not in by_reason
