"""The estimated cost of a whole job, from its data, its groups and the ledger's segments. The ranges hold."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from episodes import a_group, given_up, sealed
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.estimate import limits, whole
from headway_analysis.estimate import plan as plans
from headway_analysis.estimate.amounts import Range, exactly, ordered
from headway_analysis.estimate.limits import Limits
from headway_analysis.estimate.measured import (
    NOTHING_MEASURED,
    BilledGroup,
    Mean,
    Measured,
    measure,
    of_record,
)
from headway_analysis.estimate.plan import Left, Plan, after_preflight
from headway_analysis.estimate.tally import Tally
from headway_analysis.estimate.whole import Spent, by_episodes
from headway_api.records import GroupRecord, Purpose, UsageClass, UsageEvent
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.evaluation.driver import due
from headway_coordinator.ledger import events

PRICES = {"prefill": "0.1", "cachedPrefill": "0.02", "sample": "0.4", "train": "0.5", "discarded": "0"}
PRICES |= {"evaluationPrefill": "0.1", "evaluationCachedPrefill": "0.02", "evaluationSample": "0.4"}
FINITE = st.floats(0, 1e9)


def price(key: str) -> Decimal | None:
    return Decimal(PRICES[key]) / 1000 if key in PRICES else None


def spec(**blocks: Any) -> RLTrainingJobSpec:
    return RLTrainingJobSpec.model_validate(
        {
            "model": {"base": "s3://b/m"},
            "data": {"train": {"uri": "s3://b/t.jsonl"}, "validation": {"uri": "s3://b/v.jsonl"}},
            "environment": {"image": "i", "entrypoint": "m:C"},
            "output": {"uri": "s3://b/o"},
            "algorithm": {"batchSize": 4, "groupSize": 8},
            "schedule": {"maxSteps": 50, "maxEpochs": 3},
        }
        | blocks
    )


def group(tokens: float, *, episodes: int = 4, train: float = 0.0, **more: Any) -> BilledGroup:
    used = {"prefill": tokens, "sample": tokens / 4, "train": train, "sandboxSeconds": 10.0 * episodes}
    return BilledGroup(used, episodes, **more)


PLAN = Plan(10, 4, 4, every_steps=5, at_start=True, validation_rows=20, test_rows=10, preflight_episodes=48)
SOME = measure([group(tokens, train=tokens) for tokens in (400.0, 440.0, 360.0, 420.0, 380.0, 400.0)])


@given(st.integers(1, 60), st.integers(0, 20), st.booleans())
def test_validations_are_those_that_the_job_makes(steps: int, every: int, at_start: bool) -> None:
    plan = Plan(steps, 1, 2, every_steps=every, at_start=at_start, validation_rows=7)
    made = [s for s in range(steps + 1) if due(s, every=every, at_start=at_start, last=s == steps)]
    assert list(plan.due) == made
    assert plan.validation_episodes == 7 * len(made)


def test_a_plan_is_bounded_by_the_data() -> None:
    plan = plans.of_training(spec(), train=30, validation=12, test=5, preflight=96)
    assert (plan.steps, plan.groups, plan.episodes) == (22, 88, 704)
    assert (plan.due, plan.validation_episodes) == ((0, 10, 20, 22), 48)
    assert plan.test_episodes == Range(5, 10, 10)
    assert plans.of_training(spec(), train=10**6).steps == 50


@pytest.mark.parametrize("rows", [-1, 0, 1])
def test_without_a_batch_there_is_nothing_to_estimate(rows: int) -> None:
    plan = plans.of_training(spec(), train=rows)
    found = whole.before(plan, limits.of_episode(exactly(5.0), Limits(512, 32)), price)
    assert (found.cost, found.usage) == (None, {})
    assert found.why == f"{max(0, rows)} training rows do not fill one batch of 4"
    assert by_episodes("Running", plan, after_preflight(plan), SOME, price).why == found.why


def test_accelerators_are_those_that_the_spec_names() -> None:
    asked = {"resources": {"limits": {"nvidia.com/gpu": 2, "cpu": "8", "memory": "8Gi"}}}
    found = spec(rollout={"replicas": 3, **asked}, learner={"nodes": 2, **asked})
    assert plans.accelerators_asked(found) == 10
    assert plans.accelerators_asked(spec()) == 0


@given(FINITE, FINITE, FINITE)
def test_a_range_keeps_its_order(low: float, likely: float, high: float) -> None:
    found = ordered(low, likely, high)
    assert 0 <= found.low <= found.likely <= found.high
    assert found.likely == likely


def test_a_value_that_is_not_a_number_makes_no_range() -> None:
    assert ordered(math.nan, math.nan, math.inf) == Range(0, 0, 0)
    assert ordered(math.nan, 5.0, math.nan) == Range(0, 5, 5)


LIMITS = st.builds(
    Limits,
    context_length=st.integers(1, 2_000_000),
    max_tokens=st.integers(1, 131_072),
    max_turns=st.none() | st.integers(1, 500),
    token_limit=st.none() | st.integers(1, 2_000_000),
    seconds=st.floats(10, 86_400),
    group_size=st.integers(2, 32),
)


@given(LIMITS, st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=5))
def test_limits_bound_what_an_episode_uses(asked: Limits, lengths: list[float]) -> None:
    prompt = limits.prompt_of(lengths, asked)
    found = limits.of_episode(prompt, asked)
    assert 0 <= prompt.low <= prompt.likely <= prompt.high <= asked.context_length
    for amount in found.values():
        assert all(map(math.isfinite, amount))
        assert 0 <= amount.low <= amount.likely <= amount.high
    assert found["sample"].likely <= (asked.token_limit or asked.context_length)
    assert found["train"].high <= asked.context_length
    made = whole.before(replace(PLAN, steps=100_000), found, price)
    assert made.cost is not None
    assert made.cost.low <= made.cost.likely <= made.cost.high


def test_a_longer_prompt_costs_more() -> None:
    asked = Limits(4096, 128, 8)
    costs = [whole.before(PLAN, limits.of_episode(exactly(n), asked), price).cost for n in (50.0, 2000.0)]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0].likely < costs[1].likely


def test_judges_are_named_before_anything_is_known_of_them() -> None:
    found = whole.before(replace(PLAN, judged=True), limits.of_episode(exactly(9.0), Limits(64, 8)), price)
    assert {"judgePrompt", "judgeSample"} <= set(found.unpriced)


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (NOTHING_MEASURED, "no episode was measured"),
        (measure([]), "no episode was measured"),
        (measure([group(400.0)]), "1 group of episodes does not show how much they differ"),
        (measure([BilledGroup({"discarded": 9.0}, 4, kept=False)] * 5), "all episodes of 5 groups were lost"),
        (measure([group(math.nan), group(math.inf)]), "no episode was measured"),
    ],
)
def test_too_few_episodes_give_no_estimate_and_a_reason(measured: Measured, why: str) -> None:
    found = by_episodes("Preflight", PLAN, after_preflight(PLAN), measured, price)
    assert (found.cost, found.why) == (None, why)


def test_the_whole_is_the_sum_of_its_parts() -> None:
    spent = Spent({"evaluationPrefill": 1000.0}, Decimal("0.1"))
    found = by_episodes("Preflight", PLAN, after_preflight(PLAN), SOME, price, spent=spent)
    assert found.usage["prefill"].likely == pytest.approx(160 * 100)
    assert found.usage["train"].likely == pytest.approx(160 * 100)
    assert found.usage["evaluationPrefill"].likely == pytest.approx(1000 + (60 + 20) * 100)
    assert found.unpriced == ("sandboxSeconds",)
    assert found.cost is not None
    sampled = Decimal("0.1") * 100 + Decimal("0.4") * 25
    rest = (160 + 80) * sampled + Decimal("0.5") * 16000
    assert found.cost.likely == Decimal("0.1") + rest / 1000
    assert found.cost.low < found.cost.likely < found.cost.high


def test_at_the_end_no_cost_is_left_to_estimate() -> None:
    spent = Spent({"prefill": 1234.0, "train": 77.0}, Decimal("12.345678"), 500.0)
    over = Left(0, 0, 0, exactly(0.0))
    found = by_episodes("Running", PLAN, over, SOME, price, spent=spent, ahead=exactly(0.0))
    assert found.cost == (spent.cost,) * 3
    assert found.usage["prefill"] == exactly(1234.0)
    assert found.seconds == exactly(500.0)


@given(st.lists(st.tuples(FINITE, FINITE, st.booleans()), max_size=8), st.floats(0, 1), st.integers(1, 10**5))
def test_any_groups_make_a_range_in_order(
    drawn: Sequence[tuple[float, float, bool]], share: float, steps: int
) -> None:
    found = measure([group(tokens, train=train, kept=kept) for tokens, train, kept in drawn])
    plan = replace(PLAN, steps=steps)
    left = Left(steps * 4 * share, steps * share, 10.0, Range(0, 5, 10), 3.0)
    made = by_episodes("Running", plan, left, found, price, spent=Spent(cost=Decimal(3)))
    if made.cost is not None:
        assert Decimal(3) <= made.cost.low <= made.cost.likely <= made.cost.high


def test_a_range_narrows_as_fewer_steps_are_left() -> None:
    def width(steps: float) -> Decimal:
        left = Left(steps * 4, steps, 0, exactly(0.0))
        cost = by_episodes("Running", PLAN, left, SOME, price).cost
        assert cost is not None
        return (cost.high - cost.low) / cost.likely

    assert width(10) > width(5) > width(1)


def test_an_interval_contains_the_mean_of_later_groups() -> None:
    rng, held, tries = random.Random(5), 0, 400
    for _ in range(tries):
        seen = measure([group(rng.lognormvariate(5, 0.6)) for _ in range(12)])
        ahead = [rng.lognormvariate(5, 0.6) for _ in range(40)]
        low, _, high = seen.means["prefill"].of_future(40)
        held += low <= sum(ahead) / 40 / 4 <= high
    assert held / tries >= 0.9


def test_a_group_that_is_given_up_is_paid_by_the_others() -> None:
    gone = BilledGroup({"discarded": 600.0}, 4, kept=False)
    found = measure([group(400.0), group(400.0), gone])
    assert found.means["prefill"].value == pytest.approx(100.0)
    assert found.means["discarded"].value == pytest.approx(75.0)


def test_usage_that_was_never_seen_may_still_occur() -> None:
    found = by_episodes("Preflight", PLAN, after_preflight(PLAN), SOME, price)
    assert found.usage["discarded"].likely == 0
    assert found.usage["discarded"].high > 0


def test_held_out_episodes_find_less_in_the_cache() -> None:
    shared = [replace(group(400.0), usage={"prefill": 400.0, "cachedPrefill": 200.0}, shared=120.0)] * 3
    found = by_episodes("Preflight", PLAN, after_preflight(PLAN), measure(shared), price)
    assert found.usage["evaluationPrefill"].likely == pytest.approx(80 * 130)
    assert found.usage["evaluationCachedPrefill"].likely == pytest.approx(80 * 20)
    alike = by_episodes("Preflight", replace(PLAN, tries=4), after_preflight(PLAN), measure(shared), price)
    assert alike.usage["evaluationPrefill"].likely == pytest.approx(80 * 100)


def test_training_takes_no_more_than_if_every_group_taught() -> None:
    taught = [group(400.0, train=400.0 if n < 2 else 0.0, row_tokens=400.0) for n in range(6)]
    found = by_episodes("Preflight", PLAN, after_preflight(PLAN), measure(taught), price)
    assert found.usage["train"].high == pytest.approx(160 * 100 * whole.DRIFT)
    assert found.usage["train"].low < found.usage["train"].likely == pytest.approx(160 * 100 / 3)


def test_accelerators_are_held_until_the_end() -> None:
    plan = replace(PLAN, accelerators=3)
    left = after_preflight(plan)
    ahead = whole.seconds_by_episodes(plan, left, 0.5)
    assert ahead.likely == (160 + 60 + 20) * 0.5
    found = by_episodes("Preflight", plan, left, SOME, price, ahead=ahead)
    assert found.usage["acceleratorSeconds"].likely == 3 * ahead.likely
    assert "acceleratorSeconds" in found.unpriced


def test_accelerators_are_named_by_those_held_so_far() -> None:
    held = {"acceleratorSeconds:H100": 300.0, "acceleratorSeconds:L4": 100.0}
    spent = Spent(held, seconds=50.0)
    found = by_episodes(
        "Running", PLAN, Left(0, 5, 0, exactly(0)), SOME, price, spent=spent, ahead=exactly(10)
    )
    assert found.usage["acceleratorSeconds:H100"].likely == pytest.approx(300 + 10 * 8 * 0.75)
    assert found.usage["acceleratorSeconds:L4"].likely == pytest.approx(100 + 10 * 8 * 0.25)
    assert "acceleratorSeconds" not in found.usage


GROUPS = (
    a_group("t0-000000", [1.0, 0.0]),
    a_group("t0-000001", [1.0, None, 0.0], retried=2),
    a_group("t0-000002", [None, None]),
    a_group("t1-000003", [0.5, 0.5], retried=1),
)


def billed(groups: Sequence[GroupRecord]) -> list[UsageEvent]:
    return [event for each in groups for event in events.of_group(each)]


def test_a_tally_of_segments_is_what_the_groups_say() -> None:
    unread = a_group("t1-000004", [1.0, 1.0])
    unread = unread.model_copy(update={"episodes": [given_up(sealed("t1-000004")), unread.episodes[1]]})
    groups = [*GROUPS, unread]
    tally = Tally()
    for each in groups:
        tally.add(billed([each]))
    tallied, read = tally.training(10**6), measure([replace(of_record(each), shared=0.0) for each in groups])
    assert tally.trained == len(groups)
    for name, mean in read.means.items():
        if name != "train":
            assert tallied.means[name].value == pytest.approx(mean.value, rel=1e-3), name
            assert tallied.means[name].deviation == pytest.approx(mean.deviation, rel=1e-3), name


def test_a_restart_gets_the_same_numbers() -> None:
    first, second = Tally(), Tally()
    for each in GROUPS:
        first.add(billed([each]))
    second.add(billed(GROUPS))
    assert first.training(4) == second.training(4)
    assert (first.began, first.ended) == (second.began, second.ended)


def test_a_withdrawn_group_counts_as_discarded() -> None:
    whole_group = a_group("t0-000000", [1.0, 0.0])
    meant = [event.model_copy(update={"id": f"{event.id}/x"}) for event in billed([GROUPS[2]])]
    tally = Tally()
    tally.add(billed([whole_group, GROUPS[3]]))
    tally.add(events.corrections(billed([whole_group]), meant))
    assert tally.training(10**6).means["sandboxSeconds"].value == pytest.approx(1.5)


def test_held_out_rows_are_counted_by_their_validation() -> None:
    tally = Tally()
    for step, row in ((0, 0), (0, 1), (0, 1), (5, 0)):
        held = a_group(f"v{step:06d}-{row:06d}", [1.0], purpose=Purpose.VALIDATION)
        tally.add(billed([held]))
    for step in (0, 10):
        tally.add(billed([a_group(f"e-step-{step}-000000", [1.0], purpose=Purpose.EVALUATION)]))
    assert tally.answered == Counter({0: 2, 5: 1})
    assert tally.tested == 2
    assert tally.evaluation().means["prefill"].value > 0, "by the classes of training"
    assert plans.unvalidated(PLAN, {0}, tally.answered) == 19 + 20
    assert plans.untested(PLAN, 2) == Range(8, 18, 18)


def test_preflight_episodes_count_in_the_estimate() -> None:
    tally = Tally()
    tally.add(billed([a_group("p0-000000", [1.0, 0.0], purpose=Purpose.PREFLIGHT)]))
    assert tally.trained == 0
    assert tally.training(4).means["sample"].value == 8


def test_recent_groups_weigh_more() -> None:
    tally = Tally()
    for number in range(40):
        each = a_group(f"t0-{number:06d}", [1.0, 0.0])
        if number >= 20:
            each = each.model_copy(
                update={"episodes": [sealed(each.group_id, index, turns=6) for index in range(2)]}
            )
        tally.add(billed([each]))
    assert 20 < tally.training(1).means["sample"].value < 24


def test_training_tokens_and_pace_come_from_steps() -> None:
    tally = Tally()
    at = 1000.0
    for step, tokens in ((1, 100), (2, 300), (4, 200)):
        at += 10_000 if step == 4 else 60
        event = UsageEvent(id=f"t0-000000/step-{step}/train", usage_class="train", quantity=tokens, at=at)  # type: ignore[arg-type]
        tally.add([event])
    mean = tally.step(4)
    assert mean is not None
    assert mean.value == pytest.approx(150.0), "a step without a segment trained nothing"
    assert tally.pace(2) == 60.0
    assert Tally().step(0) is None
    assert Tally().pace(0) is None


def test_files_that_are_not_of_groups_are_skipped() -> None:
    tally = Tally()
    ids = ("preflight-script-0-4-0/judge-0/judgePrompt", "accelerators-1/learner/H100", "", "t0-x/1", "x/y/z")
    tally.add([UsageEvent(id=one, usage_class="judgePrompt", quantity=1.0, at=5.0) for one in ids])  # type: ignore[arg-type]
    assert tally.training(1).groups == 0


def test_a_mean_of_one_group_has_no_range() -> None:
    assert Mean(5.0, 0.0, 1.0).of_future(10) == exactly(5.0)
    assert Mean(5.0, 1.0, 4.0).of_future(0) == exactly(5.0)


def test_judges_of_two_models_are_told_apart() -> None:
    tally = Tally()
    for number in range(4):
        whose, at = f"t0-{number:06d}-0-0", 1000.0 + number
        tally.add(
            [
                UsageEvent(
                    id=f"{whose}/episode/sandboxSeconds",
                    usage_class=UsageClass.SANDBOX_SECONDS,
                    quantity=1.0,
                    at=at,
                ),
                *(
                    UsageEvent(
                        id=f"{whose}/judge-{judge}/judgeSample",
                        usage_class=UsageClass.JUDGE_SAMPLE,
                        quantity=tokens,
                        at=at,
                        model=model,
                    )
                    for judge, (model, tokens) in enumerate([("gpt-x", 10.0), ("gpt-y", 4.0)])
                ),
            ]
        )
    means = tally.training(1).means
    assert means["judgeSample:gpt-x"].value == pytest.approx(10.0)
    assert means["judgeSample:gpt-y"].value == pytest.approx(4.0)
    assert "judgeSample" not in means
