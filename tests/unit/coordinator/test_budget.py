"""A job's budget: which groups begin or wait, what is released, and what the status shows."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from budgeted import LIMITS, SAMPLED, TRAIN, Free, Running, budget, plan, settle
from episodes import a_group, sealed

from headway_api.accelerators import Accelerators, HeldPod, Holder
from headway_api.artifacts import Layout
from headway_api.prices import DEFAULT, DatedPrices, PriceBook, Prices
from headway_api.records import Judgement, Outcome, Purpose
from headway_api.spec.judge import Judge
from headway_api.spec.lifecycle import BudgetSpec
from headway_api.store import FileStore
from headway_coordinator.budget import shown, worst
from headway_coordinator.budget.accelerators import AHEAD_SECONDS, worst_case
from headway_coordinator.budget.account import Account, limits_of
from headway_coordinator.budget.gate import Budget, unbounded
from headway_coordinator.budget.priced import Priced
from headway_coordinator.budget.worst import CONTEXTS, Bill, Limits, of_judgements
from headway_coordinator.gateway.allowance import AllowanceSpentError, WholeAllowance
from headway_coordinator.judges.question import TRIES, PreparedQuestion, worst_question
from headway_coordinator.ledger.segments import Ledger


async def test_a_group_waits_until_its_worst_case_fits() -> None:
    found = budget(tokens={"sample": 2 * 2 * SAMPLED})
    first, second, third = (Running(found, plan(number)) for number in range(3))
    await settle()
    assert [first.begun, second.begun, third.begun] == [True, True, False]
    assert found.waiting == 1
    assert found.exhausted_at is None, "two run"
    await first.end()
    await settle()
    assert third.begun
    await second.end()
    await third.end()
    assert found.account.standings()[0].reserved == 0


async def test_an_episode_that_ends_frees_what_it_did_not_use() -> None:
    found = budget(tokens={"sample": 2 * SAMPLED + SAMPLED})
    one = Running(found, plan(0))
    await settle()
    assert found.account.standings()[0].reserved == 2 * SAMPLED
    one.held._end(sealed("t0-000000", 0, turns=1), final=False)
    assert found.account.standings()[0].reserved == SAMPLED + 4, "it sampled 4"
    two = Running(found, plan(1, size=1))
    await settle()
    assert two.begun
    await one.end()
    await two.end()


async def test_a_lost_episode_keeps_its_next_attempts_reservation() -> None:
    found = budget(tokens={"sample": 1000, "discarded": 1000})
    one = Running(found, plan(0, size=1))
    await settle()
    one.held._end(sealed("t0-000000", 0, reward=None, turns=1), final=False)
    kept = {each.limit.name: each.reserved for each in found.account.standings()}
    # 14 tokens are certainly discarded; each token of the next attempt may be.
    assert kept == {"tokens.sample": SAMPLED, "tokens.discarded": 14 + 200 + SAMPLED}
    one.held._end(sealed("t0-000000", 0, reward=None, turns=1, attempt=1), final=False)
    kept = {each.limit.name: each.reserved for each in found.account.standings()}
    assert kept == {"tokens.sample": 0, "tokens.discarded": 28}
    await one.end()


async def test_finished_group_keeps_its_training_share_until_its_step() -> None:
    found, group = budget(tokens={"train": 10_000}), a_group("t0-000000", [1.0, 0.0, None])
    found.awaits_step(group)
    rows = sum(len(row.tokens) for episode in group.scored for row in episode.rows)
    assert found.account.standings()[0].reserved == rows > 0
    found.settled(group.group_id)
    assert found.account.standings()[0].reserved == 0


async def test_a_budget_is_exhausted_if_nothing_runs_or_fits() -> None:
    moved: list[bool] = []
    found = Budget(
        BudgetSpec.model_validate({"tokens": {"sample": 100}}), Free(sample=50), lambda: moved.append(True)
    )
    one = Running(found, plan(0))
    await settle()
    assert not one.begun
    assert found.exhausted_at is not None
    assert moved == [True]
    (shortfall,) = found.shortfalls()
    assert (shortfall.limit.field, shortfall.needed) == ("spec.budget.tokens.sample", 50 + 2 * SAMPLED)
    status = shown.status(found)
    assert status is not None
    (limit,) = status.limits
    assert (limit.spent, limit.left, limit.needed) == ("50", "50", "130")
    low, exhausted = shown.conditions(found)
    assert (low.status, exhausted.status) == ("False", "True")
    assert "spec.budget.tokens.sample is 100, and continuing needs 130" in exhausted.message
    assert "raise it to that or more" in str(shown.exhausted(found))
    found.set(BudgetSpec.model_validate({"tokens": {"sample": 130}}))
    await settle()
    assert one.begun
    assert found.exhausted_at is None
    assert moved == [True, True]
    await one.end()


async def test_a_budget_is_not_exhausted_while_a_step_is_possible() -> None:
    found, busy = budget(tokens={"sample": 10}), [True]
    found.busy = lambda: busy[0]
    one = Running(found, plan(0))
    await settle()
    assert found.exhausted_at is None
    busy[0] = False
    found.look()
    assert found.exhausted_at is not None
    one.task.cancel()


async def test_a_budget_lowered_below_its_spending_is_exhausted() -> None:
    found = budget(Free(sample=50), tokens={"sample": 1000})
    one = Running(found, plan(0))
    await settle()
    found.set(BudgetSpec.model_validate({"tokens": {"sample": 40}}))
    assert found.exhausted_at is not None
    assert shown.words(found.shortfalls()).startswith(
        "spec.budget.tokens.sample is 40, and continuing needs 130"
    )
    await one.end()


async def test_group_stopped_while_waiting_is_sealed_without_episodes() -> None:
    found = budget(tokens={"sample": 10, "prefill": 10})
    found.drain = found.refuse
    found.set(BudgetSpec.model_validate({"tokens": {"sample": 10}, "onExhausted": "Drain"}))
    one = Running(found, plan(0))
    await settle()
    assert one.begun
    assert one.plan.stop.why is not None
    assert one.plan.stop.why.reason == "BudgetExhausted"
    assert found.account.standings()[0].reserved == 0
    assert found.exhausted_at is None, "it ends by itself"
    await one.end()


async def test_question_waits_until_it_fits_and_frees_its_unused_cost() -> None:
    found = budget(tokens={"judge": 120})
    one = Running(found, plan(0))
    await settle()
    asked = Judgement(judge="j", question="0" * 64, prompt_tokens=60, sampled_tokens=20)

    async def ask(actual: int) -> None:
        async with one.held.reserved(of_judgements([asked])) as used:
            await answered.wait()
            used({("judgePrompt",): actual})

    answered = asyncio.Event()
    first, second = asyncio.create_task(ask(30)), asyncio.create_task(ask(10))
    await settle()
    assert found.waiting == 1
    answered.set()
    await asyncio.gather(first, second)
    assert found.account.standings()[0].reserved == 40
    await one.end()


async def test_ungrouped_questions_stay_reserved_until_in_the_ledger() -> None:
    found = budget(tokens={"judge": 100})
    async with found.reserved({("judgePrompt",): 90}) as used:
        used({("judgePrompt",): 30})
    assert found.account.standings()[0].reserved == 30
    found.ungrouped_billed()
    assert found.account.standings()[0].reserved == 0


def test_too_small_budget_is_refused_naming_the_least_needed() -> None:
    shortfalls = budget(tokens={"sample": 79}).least(LIMITS, TRAIN, 2, SAMPLED)
    error = shown.too_small(shortfalls, "a group of 2 episodes")
    termination = error.termination
    assert (termination.reason, termination.field) == ("BudgetTooSmall", "spec.budget.tokens.sample")
    assert "may use up to 80, and spec.budget.tokens.sample is 79; write 80 or more" in termination.message
    assert budget(tokens={"sample": 80}).least(LIMITS, TRAIN, 2, SAMPLED) == []


async def test_without_a_budget_everything_fits_unreported() -> None:
    found = unbounded()
    one = Running(found, plan(0))
    await settle()
    assert one.begun
    assert (shown.status(found), shown.conditions(found), [*shown.samples(found)]) == (None, [], [])
    await one.end()


def book(**prices: str) -> PriceBook:
    later = DatedPrices(since=date(2026, 3, 1), prices=Prices(sample="9"))
    return PriceBook(name="b", entries=(DatedPrices(since=date(2026, 1, 1), prices=Prices(**prices)), later))


def test_money_reserves_the_highest_price_of_today_and_later(tmp_path: Path) -> None:
    ledger = Ledger(FileStore(), Layout(f"file://{tmp_path}", "ns", "job", "uid"))
    for day, price in ((date(2026, 2, 1), "9"), (date(2026, 3, 2), "9")):
        prices = Priced(ledger, lambda: book(sample="4", discarded="5"), lambda day=day: day)  # type: ignore[misc]
        account = Account(prices, limits_of(BudgetSpec(usd="1")))
        (limit,) = account.limits
        assert account.worth(limit, {("sample", "discarded"): 1_000_000}) == Decimal(price)
    account.reserve("g", {("train",): 1})
    assert account.unpriced() == ["train"]
    # The later entry has no price for discarded tokens, but today's price still applies today.
    today = Priced(ledger, lambda: book(sample="4", discarded="5"), lambda: date(2026, 2, 1))
    assert today.highest_price("discarded") == Decimal(5) / 1_000_000


def test_the_spent_amount_equals_the_bill(tmp_path: Path) -> None:
    ledger = Ledger(FileStore(), Layout(f"file://{tmp_path}", "ns", "job", "uid"))
    prices = Priced(ledger, lambda: DEFAULT)
    assert prices.spent() == 0
    ledger.group(a_group("t0-000000", [1.0, 0.0]))
    used = prices.used()
    assert prices.spent() == sum(
        Decimal(round(used[name])) * Decimal(price) / 1_000_000
        for name, price in (("prefill", "0.13"), ("cachedPrefill", "0.026"), ("sample", "0.40"))
    )


@pytest.mark.parametrize("outcome", [None, Outcome.TRUNCATED])
def test_a_budget_with_less_than_a_fifth_left_is_low(outcome: Outcome | None) -> None:
    for spent, low in ((80, "False"), (81, "True")):
        conditions = shown.conditions(budget(Free(sample=spent), tokens={"sample": 100}))
        assert conditions[0].status == low


def test_accelerators_stay_reserved_until_pods_could_have_ended() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    pods = [
        HeldPod(uid="a", role="learner", product="H100", count=2, since=now - timedelta(seconds=100)),
        HeldPod(uid="b", role="rollout", product="H100", count=1, since=now - timedelta(hours=1), until=now),
    ]
    seen = Accelerators(seen_time=now, pods=pods)
    counted = {Holder("learner", "H100"): 150.0, Holder("rollout", "H100"): 3600.0}
    found = worst_case(seen, counted, now + timedelta(seconds=30))
    assert found == {("acceleratorSeconds:H100",): 50 + 2 * (30 + AHEAD_SECONDS)}
    assert worst_case(None, {}, now) == {}


def test_an_agent_with_its_own_loop_has_a_token_bound() -> None:
    limits = Limits(context_length=100, turns=None, sandbox_seconds=1, retries=0)
    assert limits.tokens == limits.sampled(20, None) == CONTEXTS * 100
    assert limits.sampled(20, 50) == 50
    allowance = WholeAllowance(100)
    with allowance.turn(prompt=60, wanted=20) as held:
        assert held.tokens == 20
        held.used = 5
    with allowance.turn(prompt=30, wanted=20) as held:
        assert (held.tokens, held.is_last) == (5, True)
        held.used = 5
    assert allowance.reached
    with pytest.raises(AllowanceSpentError, match=re.escape("100 tokens that a job with spec.budget gives")):
        allowance.turn(prompt=1, wanted=1).__enter__()


def test_a_questions_worst_case_is_its_bytes_and_its_answers() -> None:
    content = {"name": "j", "endpoint": {"url": "https://judge.acme.dev/v1", "model": "m"}, "maxTokens": 50}
    judge = Judge.model_validate(content)
    found = worst_question(judge, PreparedQuestion([{"role": "user", "content": "x" * 1000}], None, "0" * 64))
    by_class = {key.partition(":")[0]: much for (key,), much in found.items()}
    assert by_class["judgePrompt"] >= TRIES * 1000
    assert by_class["judgeSample"] == TRIES * 50


def test_endpoint_episode_costs_are_reserved_turn_by_turn() -> None:
    found = worst.of_attempts(LIMITS, Bill(Purpose.EVALUATION, "endpoint", "m"), SAMPLED, 2)
    assert found == {("sandboxSeconds",): 10}
