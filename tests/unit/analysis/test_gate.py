"""The gate: its verdicts and its messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from simulated import Floats, layout

from headway_analysis.gate import Bound, GateSpec, Judgment, Samples, Verdict, judge
from headway_analysis.statistics.estimates import Sample, estimate

ROWS = 40
LOWER = {"turns"}
SPEC = GateSpec("tuned", metric="success")
RNG = np.random.default_rng(11)
TURNS = RNG.normal(5, 1, ROWS)


def rate(hits: int, rows: int = ROWS) -> Sample:
    """A sample in which the first rows succeed and the others fail."""
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
        ("tuned", "base", 0.0, Verdict.PASSED),  # it needs one turn less
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
def test_the_error_for_an_undecidable_gate_says_what_to_write(spec: GateSpec, words: tuple[str, str]) -> None:
    found = verdict(spec)
    assert found.verdict is Verdict.ERROR
    assert all(word in found.message for word in words)


def test_a_gate_fails_if_one_condition_fails() -> None:
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


def calls(malformed: Floats, made: float = 5) -> Sample:
    """A ratio: so many malformed calls of so many calls, in each row."""
    units = tuple((row, 0) for row in range(len(malformed)))
    return Sample(
        units, tuple(str(row) for row, _ in units), malformed, np.full(len(malformed), made), share=True
    )


def test_a_candidate_without_malformed_calls_is_not_worse() -> None:
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


@pytest.mark.parametrize(("value", "rows"), [(0.8, 48), (0.2, 48), (0.3, 10), (0.9, 30), (0.7, 20)])
def test_rounding_does_not_put_a_mean_below_its_minimum(value: float, rows: int) -> None:
    """numpy adds 48 times 0.8 to slightly less than 48 * 0.8."""
    samples = {"tuned": {"score": layout([1] * rows)(np.full(rows, value), True)}}
    spec = GateSpec("tuned", metric="score", minimum=value, minimum_of="Value")
    assert judge(spec, samples).verdict is Verdict.PASSED
    assert judge(replace(spec, minimum=value + 1e-9), samples).verdict is Verdict.REFUSED


def test_a_worse_candidate_is_refused_even_with_few_rows() -> None:
    parts = {"tuned": {"success": rate(0, 5)}, "base": {"success": rate(5, 5)}}
    assert verdict(replace(SPEC, must_beat="base"), parts).verdict is Verdict.REFUSED
    parts = {"tuned": {"turns": amounts(np.full(8, 9.0))}, "base": {"turns": amounts(np.full(8, 3.0))}}
    spec = GateSpec("tuned", baseline="base", no_worse=[Bound("turns")])
    assert verdict(spec, parts).verdict is Verdict.REFUSED


def test_a_check_has_the_numbers_of_its_message() -> None:
    spec = replace(SPEC, minimum=0.8, must_beat="base", margin=0.1, no_worse=[Bound("turns", 0.5)])
    for check in verdict(spec).checks:
        assert check.numbers
        for name, number in check.numbers.items():
            assert number is not None, name
            assert f"{abs(number):.4g}" in check.message, name


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
