"""A job whose namespace has a budget: what it requests, when it waits, and when it is exhausted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from budgeted import LIMITS, SAMPLED, TRAIN, Free, Running, plan, settle

from headway_api.document import Json
from headway_api.grants import Grant
from headway_api.records import Purpose
from headway_api.spec.lifecycle import BudgetSpec
from headway_coordinator import status as status_writer
from headway_coordinator.budget import shown
from headway_coordinator.budget.gate import Budget


def grant(sample: int, refused: int | None = None) -> Grant:
    part: Json = {"name": "tokens.sample", "granted": str(sample)}
    return Grant.model_validate({"parts": [part | ({} if refused is None else {"refused": str(refused)})]})


def budget(found: Grant | None, prices: Free | None = None, **spec: Any) -> Budget:
    made = Budget(BudgetSpec.model_validate(spec) if spec else None, prices or Free())
    made.set_grant(found)
    return made


def asked(found: Budget) -> Json | None:
    status = shown.status(found)
    assert status is not None
    [limit] = [each for each in status.limits if each.name.startswith("namespace.")]
    return {key: int(much) for key in ("needed", "wished") if (much := getattr(limit, key)) is not None}


async def test_group_waits_for_namespace_grant_without_exhausting_job() -> None:
    found = budget(grant(0))
    one = Running(found, plan(0))
    await settle()
    assert not one.begun
    assert found.exhausted_at is None
    need = asked(found)
    assert need is not None
    found.set_grant(grant(need["needed"]))
    await settle()
    assert one.begun
    await one.end()


async def test_request_needs_one_group_and_wants_all_that_wait() -> None:
    found = budget(grant(0))
    large, small = Running(found, plan(0, size=2)), Running(found, plan(1, size=1))
    await settle()
    request = asked(found)
    assert request is not None
    assert request["wished"] == 3 * request["needed"]
    found.set_grant(grant(request["needed"]))
    await settle()
    assert (large.begun, small.begun) == (False, True)
    large.task.cancel()
    await asyncio.gather(large.task, return_exceptions=True)
    await small.end()


async def one_runs_and_one_waits(found: Budget) -> tuple[Running, Running, int]:
    """Start two groups without a grant, then grant enough for one. Returns both and the granted amount."""
    one, two = Running(found, plan(0)), Running(found, plan(1))
    await settle()
    request = asked(found)
    assert request is not None
    found.set_grant(grant(request["needed"]))
    await settle()
    assert (one.begun, two.begun) == (True, False)
    return one, two, request["needed"]


async def test_a_job_that_is_refused_is_exhausted_once_nothing_runs() -> None:
    prices = Free()
    found = budget(grant(0), prices)
    one, two, part = await one_runs_and_one_waits(found)
    need = asked(found)
    assert need is not None
    found.set_grant(grant(part, refused=need["needed"]))
    assert found.exhausted_at is None, "one runs"
    prices.tokens["sample"] += part  # the first group used its whole reservation
    await one.end()
    await settle()
    assert found.exhausted_at is not None
    assert not two.begun
    two.task.cancel()
    await asyncio.gather(two.task, return_exceptions=True)


async def test_a_refusal_of_a_larger_request_has_no_effect() -> None:
    found = budget(grant(0))
    one = Running(found, plan(0, size=1))
    await settle()
    request = asked(found)
    assert request is not None
    found.set_grant(grant(0, refused=request["needed"] + 1))
    assert found.exhausted_at is None, "the namespace has not heard of the smaller need"
    found.set_grant(grant(0, refused=request["needed"]))
    assert found.exhausted_at is not None
    [condition] = [each for each in shown.conditions(found) if each.type == "BudgetExhausted"]
    assert condition.message == (
        "spec.tokens.sample of the namespace's RLBudget gives the job 0, and continuing needs "
        f"{request['needed']}; raise the RLBudget"
    )
    found.set_grant(grant(request["needed"]))
    await settle()
    assert found.exhausted_at is None
    assert one.begun
    await one.end()


async def test_job_requests_its_overspending_and_stops_if_refused() -> None:
    prices = Free()
    found = budget(grant(0), prices)
    one, two, part = await one_runs_and_one_waits(found)
    prices.tokens["sample"] += 5
    found.look()
    need = asked(found)
    assert need is not None
    assert need["needed"] == part + 5
    assert found.exhausted_at is None
    found.set_grant(grant(part, refused=need["needed"]))
    assert found.exhausted_at is not None, "though one runs: what it may use is no longer there"
    for each in (one, two):
        each.task.cancel()
    await asyncio.gather(one.task, two.task, return_exceptions=True)


async def test_a_job_that_waits_for_the_namespace_says_so() -> None:
    found = budget(grant(0))
    one = Running(found, plan(0))
    await settle()
    request = asked(found)
    assert request is not None
    [condition] = [each for each in shown.conditions(found) if each.type == "BudgetExhausted"]
    assert condition.status == "False"
    needed = f"{request['needed']} of spec.tokens.sample of the namespace's RLBudget"
    assert condition.message == f"the job waits until the operator grants it {needed}"
    assert found.awaits_grant
    found.set_grant(grant(0, refused=request["needed"]))
    assert not found.awaits_grant
    one.task.cancel()
    await asyncio.gather(one.task, return_exceptions=True)


async def test_a_refused_waiting_group_lets_another_be_requested() -> None:
    def of(**parts: tuple[int, int | None]) -> Grant:
        grant_parts = [
            {"name": f"tokens.{name}", "granted": str(much)}
            | ({"refused": str(no)} if no is not None else {})
            for name, (much, no) in parts.items()
        ]
        return Grant.model_validate({"parts": grant_parts})

    def needs() -> dict[str, str]:
        status = shown.status(found)
        assert status is not None
        return {each.name.rpartition(".")[2]: each.needed for each in status.limits if each.needed}

    found = budget(of(train=(0, None), evaluation=(0, None)))
    trains = Running(found, plan(0))
    tests = Running(found, plan(1, purpose=Purpose.VALIDATION))
    await settle()
    first = needs()
    assert first.keys() in ({"train"}, {"evaluation"})
    [(name, need)] = first.items()
    other = "evaluation" if name == "train" else "train"
    found.set_grant(of(**{name: (0, int(need)), other: (0, None)}))
    assert found.exhausted_at is None
    assert needs().keys() == {other}
    found.set_grant(of(**{name: (0, None), other: (0, int(needs()[other]))}))
    assert found.exhausted_at is not None, "both are refused"
    found.set_grant(of(**{name: (int(need), None), other: (0, None)}))
    await settle()
    assert found.exhausted_at is None
    assert trains.begun != tests.begun
    for each in (trains, tests):
        each.task.cancel()
    await asyncio.gather(trains.task, tests.task, return_exceptions=True)


async def test_the_specs_limit_counts_beside_the_grant() -> None:
    found = budget(grant(10_000), tokens={"sample": 1})
    one = Running(found, plan(0))
    await settle()
    assert found.exhausted_at is not None
    assert asked(found) == {}, "more from the namespace would not help"
    one.task.cancel()
    await asyncio.gather(one.task, return_exceptions=True)


async def test_a_job_asks_for_no_more_than_its_spec_allows() -> None:
    found = budget(grant(0), tokens={"sample": 500})
    running = [Running(found, plan(number)) for number in range(9)]
    await settle()
    request = asked(found)
    assert request is not None
    assert request["wished"] == 500
    for each in running:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in running), return_exceptions=True)


async def test_a_job_requests_more_before_a_group_must_wait() -> None:
    found = budget(grant(10_000))
    one = Running(found, plan(0))
    await settle()
    assert asked(found) == {}
    reserved = int(found.account.standings()[0].reserved)
    found.set_grant(grant(reserved))
    assert asked(found) == {"wished": reserved + (reserved + 1) // 2}
    assert found.exhausted_at is None
    await one.end()


async def test_group_waits_until_a_namespace_budget_is_known_or_not() -> None:
    found = Budget(None, Free(), opened=False)
    one = Running(found, plan(0))
    await settle()
    assert not one.begun
    found.open()
    await settle()
    assert one.begun
    await one.end()


async def test_nothing_begins_after_the_last_status() -> None:
    found = budget(grant(10_000))
    found.close()
    one = Running(found, plan(0))
    found.open()
    await settle()
    assert not one.begun
    status = shown.status(found)
    assert status is not None
    assert status.closed is True
    one.task.cancel()
    await asyncio.gather(one.task, return_exceptions=True)


def test_a_grant_is_not_shown_as_a_limit_of_the_spec() -> None:
    found = budget(grant(0), tokens={"sample": 10_000})
    assert found.least(LIMITS, TRAIN, 1, SAMPLED) == []
    assert [sample.name for sample in shown.samples(found)].count("budget/limit_tokens") == 1
    low = [each for each in shown.conditions(found) if each.type == "BudgetLow"]
    assert [each.status for each in low] == ["False"]


def test_a_grant_of_an_unknown_class_changes_nothing() -> None:
    found = budget(grant(7))
    strange = Grant.model_validate({"parts": [{"name": "tokens.dreamt", "granted": "5"}]})
    with pytest.raises(ValueError, match=r"status.grant.parts\[tokens.dreamt\]: this limit is unknown"):
        found.set_grant(strange)
    with pytest.raises(ValueError, match=r"status.grant.parts\[usd\]: 'much' is not an amount"):
        found.set_grant(Grant.model_validate({"parts": [{"name": "usd", "granted": "much"}]}))
    assert found.grant == grant(7)
    assert [limit.maximum for limit in found.account.limits] == [7]


@pytest.mark.parametrize(
    ("stored", "heard"),
    [
        ({}, None),
        ({"grant": {"parts": [{"name": "tokens.sample", "granted": "7"}]}}, grant(7)),
        ({"grant": {"parts": "7"}}, "unread"),
    ],
)
def test_coordinator_reads_its_grant_from_its_status_answer(stored: Json, heard: Any) -> None:
    assert status_writer._update({"status": stored}).grant == heard


async def test_a_job_that_waits_for_an_answer_writes_again_at_once() -> None:
    written: list[float] = []
    loop = asyncio.get_running_loop()

    def sink(status: Json) -> None:
        written.append(loop.time())

    opened: list[bool] = []
    writer = status_writer.Writer(
        sink, status_writer.RLTrainingJobStatus, on_written=lambda: opened.append(True)
    )
    assert await writer.flush()
    assert await writer.flush()
    assert (len(written), opened) == (1, [True]), "nothing is new"
    writer.waits = True
    assert await writer.flush()
    assert len(written) == 2
