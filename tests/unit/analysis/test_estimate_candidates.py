"""The estimated cost of a whole evaluation: ranges that hold, and that narrow to the bill."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from episodes import a_group
from finished_evaluation import group as drawn_group
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.estimate.amounts import Range, exactly
from headway_analysis.estimate.candidates import (
    CONTEXT,
    ORDER,
    OTHERS,
    Opening,
    Part,
    PartProgress,
    Sets,
    by_limits,
    of_evaluation,
    parts_of,
    sets_of,
)
from headway_analysis.estimate.limits import Limits
from headway_analysis.estimate.measured import NOTHING_MEASURED, BilledGroup, Measured, measure
from headway_analysis.estimate.tally import EvaluationTally, candidate_of
from headway_analysis.estimate.whole import PACE, Spent
from headway_api.config import EvalConfig
from headway_api.records import Purpose, SampledBy, UsageClass, UsageEvent
from headway_coordinator.ledger import events

PRICES = {
    "evaluationPrefill": "0.1", "evaluationCachedPrefill": "0.02", "evaluationSample": "0.4",
    "discarded": "0.1", "sandboxSeconds": "0", "endpointPrompt:far": "3", "endpointSample:far": "9",
    "evaluationPrefill:large": "0.7", "evaluationSample:large": "2", "evaluationCachedPrefill:large": "0.2",
    "discarded:large": "0.7", "acceleratorSeconds:H100": "40", "acceleratorSeconds": "50",
}  # fmt: skip
ASKED = Limits(2048, 64, 4, group_size=2)
AMOUNTS = st.floats(0, 1e6)


def price(key: str) -> Decimal | None:
    return Decimal(PRICES[key]) / 1000 if key in PRICES else None


def part(
    candidate: str = "base",
    groups: int = 50,
    sampled_by: SampledBy = "servers",
    model: str | None = None,
    **more: Any,
) -> Part:
    unit = "set/0" if sampled_by == "servers" else f"candidate/{candidate}"
    known = by_limits(exactly(300.0), ASKED, sampled_by, model)
    return Part(candidate, groups, 2, known, sampled_by=sampled_by, model=model, **({"unit": unit} | more))


def used(tokens: float, of: Part) -> dict[str, float]:
    """The usage of a group that computed so many tokens."""
    suffix = f":{of.model}" if of.model else ""
    by = {
        "servers": {
            "evaluationPrefill": tokens,
            "evaluationCachedPrefill": tokens,
            "evaluationSample": tokens,
        },
        "endpoint": {"endpointPrompt": 2 * tokens, "endpointSample": tokens},
        "nobody": dict[str, float](),
    }[of.sampled_by]
    return {f"{name}{suffix}": much for name, much in by.items()} | {"sandboxSeconds": 20.0}


def played(tokens: Sequence[float], of: Part) -> Measured:
    return measure([BilledGroup(used(each, of), of.group_size) for each in tokens])


def cost(standings: Sequence[PartProgress], **more: Any) -> tuple[Decimal, Decimal, Decimal]:
    found = of_evaluation(standings, price, **more).cost
    assert found is not None
    return found


PARTS = st.builds(
    part,
    st.sampled_from(["base", "tuned"]),
    st.integers(1, 500),
    st.sampled_from(["servers", "endpoint", "nobody"]),
    st.sampled_from([None, "large", "far"]),
)


@st.composite
def standings(draw: st.DrawFn) -> PartProgress:
    """A part with any progress, and with any usage of its groups."""
    of = draw(PARTS)
    groups = [BilledGroup(used(each, of), 2) for each in draw(st.lists(AMOUNTS, max_size=6))]
    groups += [BilledGroup({"discarded": each}, 2) for each in draw(st.lists(AMOUNTS, max_size=2))]
    return PartProgress(of, draw(st.integers(0, of.groups)), measure(groups))


@given(st.lists(standings(), max_size=5), AMOUNTS, st.dictionaries(st.sampled_from(["set/0"]), AMOUNTS))
def test_any_evaluation_has_a_range_in_order_above_its_bill(
    found: list[PartProgress], spent: float, paces: dict[str, float]
) -> None:
    billed = Decimal(f"{spent:.6f}")
    done = Spent({"evaluationSample": spent, "acceleratorSeconds:H100": spent}, billed, 10.0)
    made = of_evaluation(found, price, sets=Sets(2, 3, paces), spent=done)
    assert made.cost is not None
    assert done.cost <= made.cost.low <= made.cost.likely <= made.cost.high
    for amount in made.usage.values():
        assert 0 <= amount.low <= amount.likely <= amount.high
    if made.seconds is not None:
        assert 10.0 <= made.seconds.low <= made.seconds.likely <= made.seconds.high


@given(st.lists(standings(), min_size=1, max_size=4), st.decimals(0, 10**6, places=6), AMOUNTS)
def test_with_nothing_left_the_estimate_is_the_bill(
    found: list[PartProgress], billed: Decimal, tokens: float
) -> None:
    over = [replace(each, left=0) for each in found]
    made = of_evaluation(over, price, spent=Spent({"evaluationSample": tokens}, billed, 7.0))
    assert made.basis == "Running"
    assert made.cost == (billed,) * 3
    assert made.usage == ({"evaluationSample": exactly(tokens)} if tokens else {})
    assert made.seconds == exactly(7.0)


@given(st.integers(3, 200), st.floats(1, 1e5))
def test_equal_groups_narrow_the_range_with_each_one(groups: int, tokens: float) -> None:
    of, widths = part(groups=groups), list[Decimal]()
    for done in range(2, groups + 1):
        spent = Spent(cost=done * Decimal(repr(tokens)))
        standing = PartProgress(of, groups - done, played([tokens] * done, of))
        low, _, high = cost([standing], spent=spent)
        widths.append(high - low)
    rounding = Decimal("0.005")
    assert all(later <= earlier + rounding for earlier, later in pairwise(widths))
    assert widths[-1] == 0


def test_measured_groups_are_narrower_than_limits_and_prompts() -> None:
    of = part()
    low, _, high = cost([PartProgress(of, 50)])
    measured = cost(
        [PartProgress(of, 30, played([random.Random(n).uniform(300, 500) for n in range(20)], of))]
    )
    assert low < measured[0] < measured[1] < measured[2] < high


def test_an_interval_holds_the_cost_of_the_rest() -> None:
    held, tries = 0, 300
    of = part(groups=60)
    for seed in range(tries):
        rng = random.Random(seed)
        tokens = [rng.lognormvariate(6, 0.5) for _ in range(60)]
        bill = sum(Decimal("0.00052") * round(each) for each in tokens)
        spent = Spent(cost=sum((Decimal("0.00052") * round(each) for each in tokens[:12]), Decimal(0)))
        low, _, high = cost([PartProgress(of, 48, played(tokens[:12], of))], spent=spent)
        held += low <= bill <= high
    assert held / tries >= 0.93


@given(st.integers(1, 100_000), st.integers(1, 4096), st.none() | st.integers(1, 60), AMOUNTS)
def test_limits_make_a_range_in_order(context: int, limit: int, turns: int | None, prompt: float) -> None:
    asked = Limits(context, limit, turns, group_size=3)
    known: list[tuple[SampledBy, str | None]] = [("servers", None), ("servers", "large"), ("endpoint", "far")]
    for sampled_by, model in [*known, ("nobody", None)]:
        found = by_limits(exactly(min(prompt, context)), asked, sampled_by, model)
        for amount in found.values():
            assert 0 <= amount.low <= amount.likely <= amount.high
        assert all((":" in key) == bool(model) for key in found if key != "sandboxSeconds")
    assert set(by_limits(exactly(5.0), asked, "nobody", None)) == {"sandboxSeconds"}


def test_an_endpoint_is_paid_for_each_prompt_token_of_each_turn() -> None:
    found = by_limits(exactly(100.0), Limits(10_000, 16, 4), "endpoint", "far")
    servers = by_limits(exactly(100.0), Limits(10_000, 16, 4), "servers", None)
    prompts = servers["evaluationPrefill"].likely + servers["evaluationCachedPrefill"].likely
    assert found["endpointPrompt:far"].likely == pytest.approx(prompts)
    assert found["endpointPrompt:far"].low == 100
    assert found["endpointSample:far"].high == pytest.approx(4 * 16 * 1.1), "lost attempts are paid too"


def test_a_waiting_candidate_takes_others_usage_at_its_own_price() -> None:
    base, large = part(), part("large", model="large")
    tokens = [400.0] * 10
    _, likely, _ = cost([PartProgress(large, 50), PartProgress(base, 0, played(tokens, base))])
    each = 200 * (Decimal("0.0007") + Decimal("0.0002") + Decimal("0.002"))
    assert likely == 100 * each
    far = part("far", sampled_by="endpoint", model="far")
    _, likely, _ = cost([PartProgress(far, 50), PartProgress(base, 0, played(tokens, base))])
    assert likely == 100 * (400 * Decimal("0.003") + 200 * Decimal("0.009"))


def test_an_endpoints_prompt_is_split_as_servers_cache_it() -> None:
    far, base = part("far", sampled_by="endpoint", model="far"), part()
    made = of_evaluation([PartProgress(far, 0, played([400.0] * 5, far)), PartProgress(base, 50)], price)
    computed, cached = made.usage["evaluationPrefill"].likely, made.usage["evaluationCachedPrefill"].likely
    assert computed + cached == pytest.approx(100 * 400)
    limits = by_limits(exactly(300.0), ASKED, "servers", None)
    ratio = limits["evaluationPrefill"].likely / limits["evaluationCachedPrefill"].likely
    assert computed / cached == pytest.approx(ratio)


def test_candidates_that_differ_tell_less_about_each_other() -> None:
    base, tuned, waits = part(), part("tuned"), part("waits")
    alike = [
        PartProgress(base, 0, played([400.0] * 9, base)),
        PartProgress(tuned, 0, played([800.0] * 9, tuned)),
    ]
    low, likely, high = cost([*alike, PartProgress(waits, 50)])
    one = 50 * 2 * Decimal("0.00052")
    assert likely == 300 * one
    assert float(low) == pytest.approx(float(200 * one) / OTHERS, rel=1e-3)
    assert float(high) >= float(400 * one) * OTHERS


def test_few_own_groups_are_weighed_against_many_of_others() -> None:
    base, large = part(groups=100), part("large", 100, model="large")
    many = played([random.Random(n).uniform(300, 500) for n in range(100)], base)
    few = played([700.0, 900.0], large)
    mean = of_evaluation([PartProgress(large, 98, few)], price).usage["evaluationPrefill:large"]
    both = of_evaluation([PartProgress(base, 0, many), PartProgress(large, 98, few)], price).usage[
        "evaluationPrefill:large"
    ]
    assert mean.likely == 98 * 2 * 400
    assert 98 * 400 < both.likely < mean.likely
    assert both.high < mean.high
    more = played([random.Random(n).uniform(700, 900) for n in range(50)], large)
    usage = of_evaluation([PartProgress(base, 0, many), PartProgress(large, 50, more)], price).usage
    alone = of_evaluation([PartProgress(large, 50, more)], price).usage
    assert usage["evaluationPrefill:large"].likely == pytest.approx(
        alone["evaluationPrefill:large"].likely, rel=0.05
    )


def test_a_stored_run_shares_no_token_counts_with_others() -> None:
    again, base = part("again", sampled_by="nobody"), part()
    before = cost([PartProgress(base, 50)])
    assert cost([PartProgress(base, 50), PartProgress(again, 0, played([0.0] * 5, again))]) == before
    made = of_evaluation([PartProgress(base, 0, played([400.0] * 5, base)), PartProgress(again, 50)], price)
    assert made.usage["sandboxSeconds"].low == 0, "no model keeps its sandboxes waiting"
    assert {key for key in made.usage if key.startswith("evaluation")} == set()


def test_rows_already_played_do_not_estimate_a_suite() -> None:
    rows, suite = part(), replace(part(groups=20), suite="general")
    done = PartProgress(rows, 0, played([400.0] * 9, rows))
    assert cost([done, PartProgress(suite, 20)]) == cost([PartProgress(suite, 20)])


def test_future_rows_may_differ_from_rows_so_far() -> None:
    of = part(groups=100)
    made = of_evaluation([PartProgress(of, 50, played([400.0] * 50, of))], price)
    few = of_evaluation([PartProgress(of, 1, played([400.0] * 99, of))], price)
    assert made.usage["evaluationPrefill"] == pytest.approx(Range(20_000 / ORDER, 20_000, 20_000 * ORDER))
    assert few.usage["evaluationPrefill"] == pytest.approx(Range(400 / ORDER, 400, 400 * ORDER))


def test_usage_without_a_price_or_count_is_named() -> None:
    judged = replace(part(), judged=True)
    far = part("other", sampled_by="endpoint", model="unheard")
    made = of_evaluation([PartProgress(judged, 50), PartProgress(far, 50)], price, sets=Sets(accelerators=2))
    assert set(made.unpriced) == {
        "endpointPrompt", "endpointSample", "judgePrompt", "judgeSample", "acceleratorSeconds"
    }  # fmt: skip
    asked = measure([BilledGroup(used(400.0, judged) | {"judgePrompt:j": 9.0}, 2)] * 4)
    made = of_evaluation([PartProgress(judged, 46, asked)], price, sets=Sets(1, 2, {"set/0": 3.0}))
    assert made.unpriced == ("judgePrompt",), "it is asked, and has no price"


def test_the_estimate_says_why_until_something_was_measured() -> None:
    of = part()
    assert of_evaluation([PartProgress(of, 50)], price, why="no tokenizer").why == "no tokenizer"
    one = of_evaluation([PartProgress(of, 49, played([400.0], of))], price, why="no tokenizer")
    assert (one.basis, one.why) == ("Data", "no tokenizer"), "one group does not show how groups differ"
    found = of_evaluation([PartProgress(of, 48, played([400.0] * 2, of))], price, why="no tokenizer")
    assert (found.basis, found.why, found.episodes) == ("Running", "", 4)


def test_sets_of_servers_follow_one_another() -> None:
    first, second = part(), part("second", unit="set/1")
    far = part("far", 30, "endpoint", "far")
    found = [PartProgress(first, 20), PartProgress(second, 50), PartProgress(far, 30)]

    def until_end(at_once: int, **paces: float) -> Range:
        known = {name.replace("_", "/"): pace for name, pace in paces.items()}
        seconds = of_evaluation(found, price, sets=Sets(at_once, 0, known), spent=Spent(seconds=5.0)).seconds
        assert seconds is not None
        return seconds

    assert until_end(1, set_0=2.0).likely == 5 + (20 + 50) * 2
    assert until_end(2, set_0=2.0).likely == 5 + 50 * 2
    assert until_end(2, set_0=2.0, candidate_far=9.0).likely == 5 + 30 * 9
    assert until_end(1, set_0=2.0).high == 5 + 140 * PACE
    found[2] = replace(found[2], measured=played([400.0] * 3, far))
    assert until_end(1, set_0=2.0) == (5 + (30 + 90) / PACE, 5 + 140, 5 + 160 * PACE), "by 10 s an episode"
    assert of_evaluation(found, price, sets=Sets()).seconds is None


def test_accelerators_are_held_as_long_as_sets_are_up() -> None:
    of = part()
    sets = Sets(1, 3, {"set/0": 2.0})
    made = of_evaluation([PartProgress(of, 30)], price, sets=sets)
    assert made.usage["acceleratorSeconds"].likely == 3 * 30 * 2
    held = Spent({"acceleratorSeconds:H100": 400.0}, seconds=40.0)
    made = of_evaluation([PartProgress(of, 30)], price, sets=sets, spent=held)
    assert made.usage["acceleratorSeconds:H100"].likely == 400 + 30 * 2 * 10, "as many as were held"
    assert "acceleratorSeconds" not in made.usage


def config(**blocks: Any) -> EvalConfig:
    spec = {
        "candidates": [
            {"name": "small", "model": {"base": "s3://b/small"}},
            {"name": "large", "model": {"base": "s3://b/large"}},
            {"name": "far", "endpoint": {"url": "http://x/v1", "model": "frontier"}},
            {"name": "again", "rescore": {"uri": "s3://b/run", "step": 3}},
        ],
        "data": {"uri": "s3://b/t.jsonl"},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "evaluation": {"groupSize": 3, "sampling": {"temperature": 1.0}},
        "judges": [{"name": "j", "endpoint": {"url": "http://j/v1", "model": "m"}}],
        "suites": [{"name": "general", "task": "pkg/task", "image": "i", "limit": 7, "epochs": 2}],
        "rollout": {"replicas": 3, "resources": {"limits": {"nvidia.com/gpu": 2}}},
        "output": {"uri": "s3://b/o"},
    } | blocks
    resolved = [
        {"name": "small", "kind": "Model", "base": "s3://b/small", "serverSet": 0},
        {"name": "large", "kind": "Model", "base": "s3://b/large", "serverSet": 1},
        {"name": "far", "kind": "Endpoint"},
        {"name": "again", "kind": "Rescore"},
    ]
    return EvalConfig.model_validate(
        {"name": "j", "namespace": "ns", "uid": "u", "spec": spec, "candidates": resolved}
    )


def test_every_candidate_plays_every_row_and_sample() -> None:
    found = parts_of(config(), 40, {})
    assert [(each.candidate, each.suite, each.groups, each.group_size, each.judged) for each in found] == [
        ("small", None, 40, 3, True),
        ("small", "general", 7, 2, False),
        ("large", None, 40, 3, True),
        ("large", "general", 7, 2, False),
        ("far", None, 40, 3, True),
        ("far", "general", 7, 2, False),
        ("again", None, 40, 3, True),
    ]
    rows = [each for each in found if each.suite is None]
    assert [each.model for each in rows] == ["s3://b/small", "s3://b/large", "frontier", None]
    assert [each.unit for each in rows] == ["set/0", "set/1", "candidate/far", "candidate/again"]
    assert sets_of(config(), {}) == Sets(1, 6)


def test_an_unknown_context_is_that_of_the_others_or_assumed() -> None:
    turns = config().spec.agent.turn_limit
    assert turns is not None

    def limit(known: dict[str, Opening], candidate: str) -> float:
        return (
            next(p for p in parts_of(config(), 5, known) if p.candidate == candidate)
            .limits[
                "endpointPrompt:frontier" if candidate == "far" else f"evaluationPrefill:s3://b/{candidate}"
            ]
            .high
        )

    assert limit({}, "small") == turns * CONTEXT
    assert limit({"large": Opening(None, 1000)}, "small") == turns * 1000
    assert limit({"small": Opening(None, 500), "large": Opening(None, 1000)}, "small") == turns * 500
    long = limit({"far": Opening(exactly(10.0 * CONTEXT))}, "far")
    assert long == pytest.approx(1.1 * turns * (10 * CONTEXT + 2 * turns * config().spec.max_tokens))


def billed(*groups: Any) -> list[UsageEvent]:
    return [event for each in groups for event in events.of_group(each)]


def test_a_tally_tells_candidates_and_suites_apart() -> None:
    tally = EvaluationTally([0, 10])
    tally.add(billed(*[drawn_group("base", row, 2) for row in range(4)], drawn_group("base", 12, 2)))
    tally.add(billed(*[drawn_group("reference", row, 2) for row in range(3)]))
    assert tally.seen == {("base", 0): 4, ("base", 1): 1, ("reference", 0): 3}
    found = tally.measured("base", 0, done=4, episodes=2)
    groups = [drawn_group("base", row, 2) for row in range(4)]
    sampled = sum(
        event.quantity for event in billed(*groups) if event.usage_class is UsageClass.EVALUATION_SAMPLE
    )
    assert found.means["evaluationSample"].value == pytest.approx(sampled / 8)
    assert (found.groups, found.episodes) == (4, 8)
    assert "endpointPrompt:frontier" in tally.measured("reference", 0, done=3, episodes=2).means
    assert tally.measured("nobody", 0, done=9, episodes=2) == NOTHING_MEASURED
    assert len(tally.fresh) == 8


def test_groups_that_cost_nothing_are_groups_too() -> None:
    tally = EvaluationTally()
    tally.add(billed(*[a_group(f"e-base-{row:06d}", [1.0], purpose=Purpose.EVALUATION) for row in range(3)]))
    whole = tally.measured("base", 0, done=3, episodes=1).means["evaluationSample"]
    half = tally.measured("base", 0, done=6, episodes=1).means["evaluationSample"]
    assert half.value == pytest.approx(whole.value / 2)
    assert half.count == 6


def test_a_lost_group_does_not_take_the_place_of_another() -> None:
    tally = EvaluationTally()
    lost = a_group("e-base-000000", [None], purpose=Purpose.EVALUATION)
    tally.add(billed(lost, a_group("e-base-000001", [1.0], purpose=Purpose.EVALUATION)))
    found = tally.measured("base", 0, done=2, episodes=1)
    assert (found.episodes, found.means["evaluationSample"].count) == (2, 2)
    assert found.means["discarded"].value > 0


def test_positions_may_have_more_digits_than_six() -> None:
    tally = EvaluationTally([0, 1_000_000])
    tally.add(billed(a_group("e-a-000001-1000002", [1.0], purpose=Purpose.EVALUATION)))
    assert tally.seen == {("a-000001", 1): 1}
    assert candidate_of("e-a-000001-1000002") == "a-000001"


def test_records_of_other_purposes_are_skipped() -> None:
    tally = EvaluationTally()
    ids = (
        "accelerators-000001/rollout/H100",
        "preflight-0/judge-0/judgePrompt",
        "t0-000001-0-0/1/prefill",
        "",
    )
    tally.add([UsageEvent(id=one, usage_class="judgePrompt", quantity=1.0, at=5.0) for one in ids])  # type: ignore[arg-type]
    assert (tally.groups, tally.fresh, tally.ended) == ({}, set(), 0.0)


def test_a_suspension_does_not_count_in_the_pace() -> None:
    tally = EvaluationTally()
    for row, at in enumerate((0, 10, 20, 100_000, 100_010)):
        tally.add([_sandbox(f"e-base-{row:06d}-0-0", 1000.0 + at)])
    assert tally.pace({"base"}, 60.0) == (10 + 10 + 60 + 10) / 4
    assert tally.pace({"base", "other"}, 60.0) == tally.pace({"base"}, 60.0)
    assert tally.pace({"other"}, 60.0) is None


def _sandbox(episode: str, at: float) -> UsageEvent:
    return UsageEvent(
        id=f"{episode}/episode/sandboxSeconds", usage_class=UsageClass.SANDBOX_SECONDS, quantity=1.0, at=at
    )
