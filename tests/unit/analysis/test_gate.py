"""The gate: its verdicts, its words, and how seldom it promotes by accident."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from simulated import SETS, Floats, chances, flips, layout, linked_chances

from headway_analysis.gate import Bound, GateSpec, Judgment, Samples, Verdict, judge
from headway_analysis.statistics import differences
from headway_analysis.statistics.estimates import Sample, estimate

ROWS = 40
LOWER = {"turns"}
SPEC = GateSpec("tuned", metric="success")
RNG = np.random.default_rng(11)
TURNS = RNG.normal(5, 1, ROWS)


def rate(hits: int, rows: int = ROWS) -> Sample:
    """The first rows succeed."""
    return layout([1] * rows)((np.arange(rows) < hits).astype(float), True)


def amounts(values: Floats) -> Sample:
    return layout([1] * len(values))(values, False)


SAMPLES: Samples = {
    "tuned": {"success": rate(38), "turns": amounts(TURNS + RNG.normal(-1, 0.1, ROWS))},
    "base": {"success": rate(20), "turns": amounts(TURNS)},
    "twin": {"success": rate(37), "turns": amounts(TURNS + RNG.normal(-1, 0.1, ROWS))},
}


def verdict(spec: GateSpec, samples: Samples = SAMPLES) -> Judgment:
    return judge(spec, samples, LOWER)


@pytest.mark.parametrize(
    ("minimum", "of", "expected"),
    [
        (0.8, "LowerBound", Verdict.PASSED),
        (0.9, "LowerBound", Verdict.TOO_FEW_ROWS),
        (0.95, "Value", Verdict.PASSED),
        (0.96, "LowerBound", Verdict.REFUSED),
        (0.96, "Value", Verdict.REFUSED),
    ],
)
def test_a_minimum_is_compared_with_lower_bound_or_value(minimum: float, of: str, expected: Verdict) -> None:
    spec = replace(SPEC, minimum=minimum, minimum_of="Value" if of == "Value" else "LowerBound")
    assert verdict(spec).verdict is expected


def test_the_message_has_every_number() -> None:
    found = verdict(replace(SPEC, minimum=0.9, must_beat="base", margin=0.1, no_worse=[Bound("turns", 0.5)]))
    exact = stats.binomtest(38, ROWS).proportion_ci(method="exact").low
    ours = estimate(SAMPLES["tuned"]["success"])
    assert ours is not None
    assert ours.low is not None
    for number in ("0.95", f"{ours.low:.4g}", "40 rows", "minimum 0.9", f"{exact:.4g}"):
        assert number in found.checks[0].message
    for number in ("0.95 - 0.5 = 0.45", "more than 0.1 better", "p = "):
        assert number in found.checks[1].message
    assert "less than 0.5 worse" in found.checks[2].message
    assert found.message == "; ".join(check.message for check in found.checks)


@pytest.mark.parametrize(
    ("baseline", "margin", "expected"),
    [
        ("base", 0.0, Verdict.PASSED),
        ("base", 0.4, Verdict.TOO_FEW_ROWS),
        ("base", 0.45, Verdict.REFUSED),
        ("twin", 0.0, Verdict.TOO_FEW_ROWS),
        ("twin", 0.1, Verdict.REFUSED),
    ],
)
def test_the_whole_difference_interval_must_exceed_the_margin(
    baseline: str, margin: float, expected: Verdict
) -> None:
    assert verdict(replace(SPEC, must_beat=baseline, margin=margin)).verdict is expected


@pytest.mark.parametrize(
    ("candidate", "baseline", "margin", "expected"),
    [
        ("tuned", "base", 0.0, Verdict.PASSED),  # it takes one turn less
        ("base", "tuned", 0.5, Verdict.REFUSED),
        ("base", "tuned", 1.5, Verdict.PASSED),
        ("tuned", "twin", 0.1, Verdict.PASSED),
    ],
)
def test_of_turns_fewer_are_better(candidate: str, baseline: str, margin: float, expected: Verdict) -> None:
    assert (
        verdict(GateSpec(candidate, baseline=baseline, no_worse=[Bound("turns", margin)])).verdict is expected
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (replace(SPEC, metric="accuracy", minimum=0.5), ("accuracy", "success, turns")),
        (replace(SPEC, must_beat="other"), ("other", "base, tuned, twin")),
        (replace(SPEC, candidate="gone", minimum=0.5), ("gone", "base, tuned, twin")),
        (replace(SPEC, must_beat="base", no_worse=[Bound("cost")]), ("cost", "success, turns")),
        (replace(SPEC, no_worse=[Bound("turns")]), ("noWorse", "mustBeat")),
        (replace(SPEC, metric="turns", minimum=1.0), ("turns", "lower")),
        (SPEC, ("no condition", "gate.minimum")),
    ],
)
def test_what_cannot_be_judged_names_what_to_write(spec: GateSpec, words: tuple[str, str]) -> None:
    found = verdict(spec)
    assert found.verdict is Verdict.ERROR
    assert all(word in found.message for word in words)


def test_one_condition_that_fails_refuses_the_whole() -> None:
    spec = replace(SPEC, minimum=0.8, must_beat="base", no_worse=[Bound("success", 0.0), Bound("turns", 0.0)])
    assert verdict(spec).verdict is Verdict.PASSED
    assert verdict(replace(spec, minimum=0.99)).verdict is Verdict.REFUSED
    assert verdict(replace(spec, margin=0.4)).verdict is Verdict.TOO_FEW_ROWS


@pytest.mark.parametrize("spec", [replace(SPEC, minimum=0.1), replace(SPEC, must_beat="base")])
def test_five_rows_are_too_few(spec: GateSpec) -> None:
    few = {"tuned": {"success": rate(5, 5)}, "base": {"success": rate(0, 5)}}
    assert verdict(spec, few).verdict is Verdict.TOO_FEW_ROWS


def test_candidates_without_a_common_row_are_too_few_rows() -> None:
    sample = rate(38)
    parts = {
        "tuned": {"success": sample.of(sample.units[:20])},
        "base": {"success": sample.of(sample.units[20:])},
    }
    assert verdict(replace(SPEC, must_beat="base"), parts).verdict is Verdict.TOO_FEW_ROWS


@pytest.mark.parametrize("rows", [6, 10, 30, 54, 100, 400])
def test_plain_rates_at_the_minimum_pass_in_at_most_5_percent(rows: int) -> None:
    """Counted. Over all true rates, the worst is where a possible lower bound is just the minimum."""
    floors = [estimate(rate(hits, rows)) for hits in range(rows + 1)]
    for hits, found in enumerate(floors):
        assert found is not None
        assert found.floor is not None
        assert hits == 0 or stats.binom.sf(hits - 1, rows, found.floor) <= 0.0251


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("sizes", "tries"), [([1] * 30, 8), ([1, 2, 3, 2] * 7 + [1, 4], 2)])
def test_clustered_rates_at_the_minimum_pass_at_most_5_percent(
    sizes: list[int], tries: int, share: float
) -> None:
    rng, make, promoted = np.random.default_rng(12), layout(sizes, tries), 0
    values = flips(rng, chances(rng, share, 0.3, sizes, tries))[: SETS // 2]
    for each in values:
        found = judge(replace(SPEC, minimum=share), {"tuned": {"success": make(each, True)}})
        promoted += found.verdict is Verdict.PASSED
    assert promoted / len(values) <= 0.05


@pytest.mark.parametrize(
    ("rates", "rows", "tries"),
    [
        ((0.5, 0.5), 30, 1),
        ((0.1, 0.1), 30, 8),
        ((0.5, 0.7), 30, 4),
        ((0.97, 0.9), 30, 8),
        ((1.0, 0.95), 30, 1),
        ((1.0, 0.95), 100, 1),
    ],
)
def test_candidates_at_the_margin_pass_in_at_most_5_percent(
    rates: tuple[float, float], rows: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A margin below 0 is what `noWorse` asks."""
    monkeypatch.setattr(differences, "RESAMPLES", 1)
    rng, make, promoted = np.random.default_rng(13), layout([1] * rows, tries), 0
    drawn = linked_chances(rng, rates, 0.3, rows, tries)
    theirs, ours = (flips(rng, chance)[: SETS // 2] for chance in drawn)
    margin = rates[1] - rates[0]
    spec = GateSpec("tuned", baseline="base", no_worse=[Bound("success", -margin)])
    if margin >= 0:
        spec = replace(SPEC, must_beat="base", margin=margin)
    for one, other in zip(ours, theirs, strict=True):
        samples = {"tuned": {"success": make(one, True)}, "base": {"success": make(other, True)}}
        promoted += judge(spec, samples).verdict is Verdict.PASSED
    assert promoted / len(ours) <= 0.05


SOME = SETS // 4
"""So few are promoted here that fewer sets tell."""


def rare(rng: np.random.Generator, rows: int, tries: int, easy: float, failing: float) -> Floats:
    """Successes where most rows are easy, and some always fail."""
    chance = np.where(rng.random((SOME, rows)) < failing, 0.0, easy)
    return flips(rng, np.repeat(chance, tries, axis=1))


@pytest.mark.parametrize(
    ("rows", "easy", "failing"), [(30, 0.97, 0.05), (30, 0.9, 0.05), (60, 0.9, 0.03), (30, 0.5, 0.3)]
)
def test_rows_that_always_fail_are_not_forgotten(rows: int, easy: float, failing: float) -> None:
    """One sample of 30 rows in five has no row of a kind that is one in twenty."""
    make, promoted = layout([1] * rows, 8), 0
    for each in rare(np.random.default_rng(14), rows, 8, easy, failing):
        spec = replace(SPEC, minimum=easy * (1 - failing))
        promoted += judge(spec, {"tuned": {"success": make(each, True)}}).verdict is Verdict.PASSED
    assert promoted / SOME <= 0.05


@pytest.mark.parametrize(
    ("rows", "low", "high"), [(30, 0.2, 0.35), (60, 0.73, 0.87), (120, 0.97, 1.0)], ids=str
)
def test_more_rows_pass_the_same_candidate(rows: int, low: float, high: float) -> None:
    """What docs/adr/0022 says that the bound costs."""
    rng, make, promoted = np.random.default_rng(17), layout([1] * rows, 8), 0
    for each in flips(rng, chances(rng, 0.9, 0.3, [1] * rows, 8))[:SOME]:
        found = judge(replace(SPEC, minimum=0.8), {"tuned": {"success": make(each, True)}})
        promoted += found.verdict is Verdict.PASSED
    print(f"{rows} rows: {promoted / SOME:.0%}")
    assert low <= promoted / SOME <= high


def graded(rng: np.random.Generator, rows: int, zeros: float) -> Floats:
    """Scores near 1, of which some are 0."""
    return np.where(rng.random((SOME, rows)) < zeros, 0.0, rng.uniform(0.97, 1, (SOME, rows)))


@pytest.mark.parametrize("zeros", [0.01, 0.03, 0.1])
def test_scores_that_are_seldom_0_are_not_promoted_by_accident(zeros: float) -> None:
    make, promoted = layout([1] * 30), 0
    for each in graded(np.random.default_rng(15), 30, zeros):
        spec = GateSpec("tuned", metric="score", minimum=0.985 * (1 - zeros))
        promoted += judge(spec, {"tuned": {"score": make(each, True)}}).verdict is Verdict.PASSED
    assert promoted / SOME <= 0.05


@pytest.mark.parametrize(("rows", "mean"), [(60, 0.94), (30, 0.9)])
def test_seldom_negative_rewards_are_not_promoted_by_accident(rows: int, mean: float) -> None:
    """Most samples have no reward of -1, and so look like shares."""
    rng, make, promoted = np.random.default_rng(18), layout([1] * rows), 0
    spec = GateSpec("tuned", metric="reward", minimum=mean - 0.001, reward_range=(-1.0, 1.0))
    for each in np.where(rng.random((SOME, rows)) < (1 - mean) / 2, -1.0, 1.0):
        share = bool((each >= 0).all())
        promoted += judge(spec, {"tuned": {"reward": make(each, share)}}).verdict is Verdict.PASSED
    assert promoted / SOME <= 0.05


@pytest.mark.parametrize(("rows", "zeros"), [(30, 0.02), (30, 0.05), (60, 0.05)])
def test_a_loss_on_rare_rows_is_not_taken_for_no_worse(
    rows: int, zeros: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "RESAMPLES", 1)
    rng, make, promoted = np.random.default_rng(16), layout([1] * rows), 0
    theirs = rng.uniform(0.97, 1, (SOME, rows))
    ours = np.where(rng.random((SOME, rows)) < zeros, 0.0, theirs)
    spec = GateSpec("tuned", baseline="base", no_worse=[Bound("score", 0.985 * zeros)])
    for one, other in zip(ours, theirs, strict=True):
        samples = {"tuned": {"score": make(one, True)}, "base": {"score": make(other, True)}}
        promoted += judge(spec, samples).verdict is Verdict.PASSED
    assert promoted / SOME <= 0.05


def calls(malformed: Floats, made: float = 5) -> Sample:
    """A ratio: of so many calls in each row these were malformed."""
    units = tuple((row, 0) for row in range(len(malformed)))
    return Sample(
        units, tuple(str(row) for row, _ in units), malformed, np.full(len(malformed), made), share=True
    )


def test_two_candidates_without_a_malformed_call_are_no_worse() -> None:
    name = "malformed_tool_calls"
    spec = GateSpec("tuned", baseline="base", no_worse=[Bound(name, 0.05)])
    for rows, expected in ((30, Verdict.TOO_FEW_ROWS), (500, Verdict.PASSED)):
        none = calls(np.zeros(rows))
        assert judge(spec, {"tuned": {name: none}, "base": {name: none}}, {name}).verdict is expected


def lost(count: int) -> Sample:
    return rate(count)


@pytest.mark.parametrize(("count", "expected"), [(2, Verdict.PASSED), (3, Verdict.TOO_FEW_ROWS)])
@pytest.mark.parametrize("who", ["tuned", "base"])
def test_a_gate_does_not_pass_where_many_tries_are_lost(who: str, count: int, expected: Verdict) -> None:
    spec = replace(SPEC, minimum=0.8, must_beat="base")
    samples = {name: {**SAMPLES[name], "infra_error": lost(0)} for name in ("tuned", "base")}
    samples[who]["infra_error"] = lost(count)
    found = verdict(spec, samples)
    assert found.verdict is expected
    assert (f"{who} lost {count} of 40 tries" in found.message) == (expected is not Verdict.PASSED)
    assert verdict(replace(spec, max_lost=0.1), samples).verdict is Verdict.PASSED


@pytest.mark.parametrize("name", ["tuned", "base"])
def test_a_gate_cannot_judge_a_candidate_that_failed_half_way(name: str) -> None:
    spec = replace(SPEC, minimum=0.8, must_beat="base")
    found = judge(spec, SAMPLES, LOWER, failed=[name])
    assert found.verdict is Verdict.ERROR
    assert f"candidate {name} failed" in found.message
    assert judge(spec, SAMPLES, LOWER, failed=["twin"]).verdict is Verdict.PASSED


def test_a_cost_per_success_without_a_success() -> None:
    cost = amounts(RNG.normal(1, 0.1, ROWS))
    some, none = {"cost": cost, "cost_per_success": cost}, {"cost": cost}
    spec = GateSpec("tuned", baseline="base", no_worse=[Bound("cost_per_success")])
    worse = {"cost", "cost_per_success"}
    assert judge(spec, {"tuned": some, "base": none}, worse).verdict is Verdict.PASSED
    refused = judge(spec, {"tuned": none, "base": some}, worse)
    assert refused.verdict is Verdict.REFUSED
    assert "tuned has no success" in refused.message
    assert judge(spec, {"tuned": none, "base": none}, worse).verdict is Verdict.REFUSED


@pytest.mark.parametrize("who", ["tuned", "base"])
def test_without_tool_calls_a_candidate_has_no_failed_call_share(who: str) -> None:
    name = "failed_tool_calls"
    samples = {each: {"infra_error": lost(0), name: calls(np.zeros(ROWS))} for each in ("tuned", "base")}
    del samples[who][name]
    found = judge(GateSpec("tuned", baseline="base", no_worse=[Bound(name)]), samples, {name})
    assert found.verdict is Verdict.TOO_FEW_ROWS
    assert f"{who} made no tool call" in found.message


@pytest.mark.parametrize(("rows", "low", "high"), [(30, 0.15, 0.3), (100, 0.06, 0.15)])
def test_rare_large_amounts_pass_a_gate_too_often(rows: int, low: float, high: float) -> None:
    """A limit that docs/evaluation.md names: nothing bounds an amount, so a gate supposes no worse row."""
    rng, make, promoted = np.random.default_rng(19), layout([1] * rows), 0
    spec = replace(SPEC, baseline="base", no_worse=[Bound("turns", 0.05 * 17)])
    for _ in range(SOME):
        base = rng.choice([2.0, 3.0, 4.0], rows)
        tuned = np.where(rng.random(rows) < 0.05, 20.0, rng.choice([2.0, 3.0, 4.0], rows))
        samples = {"tuned": {"turns": make(tuned, False)}, "base": {"turns": make(base, False)}}
        promoted += judge(spec, samples, LOWER).verdict is Verdict.PASSED
    print(f"{rows} rows: {promoted / SOME:.0%}")
    assert low <= promoted / SOME <= high


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("turn_limit", "which tuned does not report; it reports success, turns"),
        ("cost", "give each class of its tokens a price in the price book, or name another metric"),
    ],
)
def test_a_metric_that_nothing_reports_is_named_with_its_field(metric: str, says: str) -> None:
    least = verdict(replace(SPEC, metric=metric, minimum=0.5))
    worse = verdict(replace(SPEC, baseline="base", no_worse=[Bound("success", 0.1), Bound(metric)]))
    assert (least.verdict, worse.verdict) == (Verdict.ERROR, Verdict.ERROR)
    assert f"spec.gate.metric names the metric {metric}, " in least.message
    assert f"spec.gate.noWorse[1].metric names the metric {metric}, " in worse.message
    assert says in least.message
    assert says in worse.message
