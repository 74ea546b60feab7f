"""Whether a candidate may be promoted: a pure verdict over the values that the candidates' tries gave.

A gate passes on evidence, not on luck: the lower bound of a 95 % interval must reach the gate's threshold.
So chance promotes a candidate whose true value is exactly at the threshold in nominally 2.5 % of runs. For
bounded values (shares, and rewards with a range) the gate takes the lower of two bounds: the interval's, and
that of `statistics.floors`. Then at most 5 % of runs promote such a candidate, even if failing rows are so
rare that the sample has none. A sample cannot show clusters far larger than its own: docs/evaluation.md has
numbers for that case.
Amounts (turns, tokens, seconds, cost) are unbounded: if large values are rare, chance promotes a candidate
more often. `minimum_of` Value compares the value itself, without an interval.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isclose
from typing import Final, Literal

from headway_analysis.statistics.differences import ENOUGH, Difference, compare, least_gain
from headway_analysis.statistics.estimates import Estimate, Sample, estimate
from headway_analysis.statistics.floors import SHARE, least_value

Samples = Mapping[str, Mapping[str, Sample]]
"""Candidate -> metric -> values, over the rows that are judged."""
ByTask = Mapping[str, Samples]
"""`Samples` by task."""


@dataclass(frozen=True)
class Bound:
    """A metric, and how much worse than the baseline it may be."""

    metric: str
    margin: float = 0.0
    task: str | None = None
    """Task on whose rows the metric is compared. None: the gate's task."""


@dataclass(frozen=True)
class GateSpec:
    """The conditions that `candidate` must meet. Every condition that is set must hold."""

    candidate: str
    metric: str = "external_score"
    task: str = "all"
    """Task that is judged; `all` has every row outside suites."""
    minimum: float | None = None
    """Lowest value of `metric` that passes."""
    minimum_of: Literal["LowerBound", "Value"] = "LowerBound"
    """What is compared with `minimum`: the interval's lower bound, or the value.

    LowerBound promotes a candidate that is exactly at the minimum in 2.5 % of runs, Value in half of them.
    """
    must_beat: str | None = None
    """Baseline candidate. The lower bound of the paired difference's 95 % interval must be above `margin`."""
    margin: float = 0.0
    no_worse: Sequence[Bound] = ()
    """Further metrics. The difference's lower bound must be above -margin, in the direction that is
    better."""
    baseline: str | None = None
    """Candidate that `no_worse` compares with. None: the candidate of `must_beat`."""
    max_lost: float = 0.05
    """Largest share of a candidate's tries that may be lost (`InfraError`). Measures leave lost tries out,
    and these may be the hard ones."""

    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest possible reward, in all tasks but `suites`."""
    suites: Collection[str] = ()
    """Tasks that are suites."""
    tools: Collection[str] = ()
    """Tools of the environment that a condition of the gate names, spelled as in measures. A tool that nobody
    called has the value 0."""

    @property
    def tasks(self) -> set[str]:
        """Every task that a condition is about."""
        return {self.task, *(bound.task for bound in self.no_worse if bound.task is not None)}

    @property
    def candidates(self) -> list[str]:
        """Every candidate that a condition is about."""
        others = (self.must_beat, self.baseline if self.no_worse else None)
        return list(dict.fromkeys([self.candidate, *(name for name in others if name is not None)]))


class Verdict(StrEnum):
    """The verdict of a gate or of one of its conditions."""

    PASSED = "Passed"
    REFUSED = "Refused"
    TOO_FEW_ROWS = "TooFewRows"
    """The value is good enough, but the rows cannot show that it is not chance."""
    ERROR = "Error"
    """The gate cannot be judged: it names a metric, candidate or task that nothing reports."""


@dataclass(frozen=True)
class Check:
    """One condition of the gate."""

    verdict: Verdict
    message: str
    """Text for a person, with the value, the interval, the bound and the number of rows."""
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    """The message's numbers by name, for programs. None: the rows do not give this number."""


@dataclass(frozen=True)
class Judgment:
    """The gate's verdict: the worst verdict of its conditions."""

    verdict: Verdict
    message: str
    checks: tuple[Check, ...]


LOST = "infra_error"
"""Measure with the share of tries that were lost, so that they have no value."""
PER_SUCCESS = "cost_per_success"
REWARD = "reward"
ROUNDING: Final = 1e-12
"""Two means are equal if they differ by no more than this, either absolutely or relative to the larger."""
RANK = (Verdict.PASSED, Verdict.TOO_FEW_ROWS, Verdict.REFUSED, Verdict.ERROR)
"""The verdicts from the best to the worst."""


def judge(
    spec: GateSpec,
    samples: Samples,
    less_is_better: Collection[str] = (),
    others: ByTask | None = None,
    failed: Collection[str] = (),
) -> Judgment:
    """The gate's verdict.

    Args:
        samples: the values of `spec.task`'s rows, from `measures.candidate.samples`.
        less_is_better: metrics for which a lower value is better.
        others: the values of the other tasks that conditions are about, by task.
        failed: candidates that ended before all of their rows were measured. Their tries are not a fair
            sample.
    """
    by_task = {**(others or {}), spec.task: samples}
    checks = (
        *_failed(spec, failed),
        *_checks(spec, by_task, less_is_better),
        *_losses(spec, by_task),
    )
    worst = max(checks, key=lambda check: RANK.index(check.verdict))
    return Judgment(worst.verdict, "; ".join(check.message for check in checks), checks)


@dataclass(frozen=True)
class _Rows:
    """The values that a condition is about."""

    samples: Samples
    task: str
    field: str
    """The field of the spec's gate that names the task."""
    where: str = ""
    """The task as a message says it; empty if it is the gate's own task."""
    metric_field: str = "spec.gate.metric"
    """The field that names the metric."""


def _checks(spec: GateSpec, by_task: ByTask, less_is_better: Collection[str]) -> Iterator[Check]:
    own = _Rows(by_task[spec.task], spec.task, "spec.gate.task")
    baseline = spec.baseline or spec.must_beat
    if spec.minimum is not None:
        yield _minimum(spec, spec.minimum, own, less_is_better)
    if spec.must_beat is not None:
        yield _against(spec, spec.must_beat, Bound(spec.metric, spec.margin), own, less_is_better, True)
    for number, bound in enumerate(spec.no_worse):
        if baseline is None:
            yield Check(
                Verdict.ERROR, f"gate.noWorse names {bound.metric}, but no baseline: set gate.mustBeat"
            )
            continue
        at = f"spec.gate.noWorse[{number}]"
        rows = replace(own, metric_field=f"{at}.metric")
        if bound.task is not None and bound.task != spec.task:
            where = f" in {bound.task}"
            rows = _Rows(by_task[bound.task], bound.task, f"{at}.task", where, f"{at}.metric")
        yield _against(spec, baseline, bound, rows, less_is_better, False)
    if spec.minimum is None and spec.must_beat is None and not spec.no_worse:
        yield Check(
            Verdict.ERROR, "the gate has no condition: set gate.minimum, gate.mustBeat or gate.noWorse"
        )


def _failed(spec: GateSpec, failed: Collection[str]) -> Iterator[Check]:
    for name in spec.candidates:
        if name in failed:
            yield Check(
                Verdict.ERROR,
                f"candidate {name} failed before all of its rows were measured: it cannot be judged",
            )


def _losses(spec: GateSpec, by_task: ByTask) -> Iterator[Check]:
    """A check with the verdict `TOO_FEW_ROWS` for each candidate that lost more tries than `max_lost`."""
    for task, samples in by_task.items():
        for name in spec.candidates:
            lost = samples.get(name, {}).get(LOST)
            if lost is None or lost.mean <= spec.max_lost:
                continue
            count, of = int(lost.tops.sum()), len(lost.units)
            where = "" if task == spec.task else f" in {task}"
            yield Check(
                Verdict.TOO_FEW_ROWS,
                f"{name} lost {count} of {of} tries{where} to InfraError, more than the "
                f"{_number(spec.max_lost)} of spec.gate.maxLost. Read their errors in results.parquet, "
                "repair the sandbox or server, or raise spec.rollout.timeoutSeconds",
                {"lost": count, "tries": of, "maxLost": spec.max_lost},
            )


def _missing(candidate: str, metric: str, rows: _Rows) -> Check | None:
    """A check that says why a candidate has no such metric in the task; None if it has the metric."""
    samples = rows.samples
    if candidate not in samples:
        return Check(
            Verdict.ERROR, f"the gate names {candidate}, which has no results; there are {_names(samples)}"
        )
    if not any(samples.values()):
        return Check(
            Verdict.ERROR,
            f"{rows.field}: no candidate has results in the task {rows.task}; name a task of the rows, a "
            "suite, or all",
        )
    if not samples[candidate]:
        others = _names([name for name, found in samples.items() if found])
        return Check(
            Verdict.ERROR,
            f"{rows.field}: {candidate} has no results in the task {rows.task}, which {others} has; name "
            "another task, or another candidate",
        )
    if metric not in samples[candidate]:
        return Check(
            Verdict.ERROR,
            f"{rows.metric_field} names the metric {metric}, which {candidate} does not report{rows.where}; "
            f"{_instead(metric)}it reports {_names(samples[candidate])}",
        )
    return None


def _instead(metric: str) -> str:
    if not metric.startswith("cost"):
        return ""
    return "give each class of its tokens a price in the price book, or name another metric: "


def _names(known: Collection[str]) -> str:
    return ", ".join(sorted(known)) or "none"


def _minimum(spec: GateSpec, minimum: float, rows: _Rows, less_is_better: Collection[str]) -> Check:
    metric, samples = spec.metric, rows.samples
    if (missing := _missing(spec.candidate, metric, rows)) is not None:
        return missing
    if metric in less_is_better:
        return Check(
            Verdict.ERROR, f"gate.minimum cannot judge {metric}, which is better when lower: use gate.noWorse"
        )
    found = estimate(samples[spec.candidate][metric])
    if found is None:
        return Check(Verdict.ERROR, f"{metric} of {spec.candidate} has no value")
    sample = samples[spec.candidate][metric]
    ends = _ends(spec, metric, rows.task, sample)
    least = least_value(sample, ends) if spec.minimum_of == "LowerBound" else None
    floor = None if spec.minimum_of == "Value" else _floor(found, least)
    verdict, why = _reaches(found, minimum, spec.minimum_of, floor)
    text = f"{metric} of {spec.candidate} is {shown(found)}; minimum {_number(minimum)}: {why}"
    numbers = {"value": found.value, "low": found.low, "high": found.high, "minimum": minimum, "shown": floor}
    return Check(verdict, text, numbers)


def _ends(spec: GateSpec, metric: str, task: str, *of: Sample) -> tuple[float, float] | None:
    """Lowest and highest possible value; None if nothing bounds the metric.

    The range of rewards comes from the spec, not from the rows: a reward below 0 may be possible though no
    row has one.
    """
    if metric == REWARD and task not in spec.suites:
        return spec.reward_range
    return SHARE if all(each.share for each in of) else None


def _floor(found: Estimate, least: float | None) -> float | None:
    """The lower bound that the rows show for the value; None if they are too few to show one."""
    return None if found.floor is None or found.clusters < ENOUGH else _lower(found.floor, least)


def _reaches(found: Estimate, minimum: float, of: str, floor: float | None) -> tuple[Verdict, str]:
    if _is_below(found.value, minimum):
        return Verdict.REFUSED, "the value is below it"
    if of == "Value":
        return Verdict.PASSED, "the value reaches it"
    if floor is None:
        return Verdict.TOO_FEW_ROWS, f"{_counted(found.clusters)} cannot show that it is reached"
    shows = f"the rows show at least {_number(floor)}"
    if floor >= minimum:
        return Verdict.PASSED, shows
    return Verdict.TOO_FEW_ROWS, f"the value reaches it, but {shows}: too few rows to tell"


def _is_below(value: float, bound: float) -> bool:
    """Whether a mean is below a bound by more than rounding: 48 times 0.8 has the mean 0.7999999999999999."""
    return value < bound and not isclose(value, bound, rel_tol=ROUNDING, abs_tol=ROUNDING)


def _lower(end: float, least: float | None) -> float:
    """The lower of two bounds: an interval's end, and the bound of `statistics.floors` if there is one."""
    return end if least is None else min(end, least)


def _against(
    spec: GateSpec,
    baseline: str,
    bound: Bound,
    rows: _Rows,
    less_is_better: Collection[str],
    must_beat: bool,
) -> Check:
    """One paired comparison: the candidate must be better by more than the margin, or worse by less.

    `must_beat` chooses between these two conditions.
    """
    ours, metric, where, samples = spec.candidate, bound.metric, rows.where, rows.samples
    for candidate in (ours, baseline):
        nothing = _without(candidate, metric, rows, spec) or _missing(candidate, metric, rows)
        if nothing is not None:
            return nothing
    sign = -1 if metric in less_is_better else 1
    found = compare(samples[ours][metric], samples[baseline][metric])
    asked = (
        f"more than {_number(bound.margin)} better"
        if must_beat
        else f"less than {_number(bound.margin)} worse"
    )
    if found is None:
        return Check(
            Verdict.TOO_FEW_ROWS,
            f"{metric}{where}: {ours} and {baseline} have no try in common; asked: {asked}",
        )
    least = bound.margin if must_beat else -bound.margin
    both = samples[ours][metric], samples[baseline][metric]
    gain = least_gain(*both, sign, _ends(spec, metric, rows.task, *both))
    floor = _gained(found, sign, gain)
    verdict, why = _differs(found, least, sign, floor)
    text = f"{metric}{where} of {ours} against {baseline}: {difference_text(found)}; asked: {asked}"
    numbers = {
        "candidate": found.candidate,
        "baseline": found.baseline,
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "margin": bound.margin,
        "shown": floor,
    }
    return Check(verdict, f"{text}: {why}", numbers)


def _without(candidate: str, metric: str, rows: _Rows, spec: GateSpec) -> Check | None:
    """The check if a candidate has tries, but the metric would divide by 0: no success, or no tool call."""
    found = rows.samples.get(candidate)
    if not found or metric in found:
        return None
    if metric == PER_SUCCESS and "cost" in found:
        if candidate == spec.candidate:
            return Check(Verdict.REFUSED, f"{candidate} has no success{rows.where}, so it has no {metric}")
        if metric in rows.samples.get(spec.candidate, {}):
            text = f"{candidate} has no success{rows.where}, so {metric} of {spec.candidate} is not worse"
            return Check(Verdict.PASSED, text)
    if metric in ("failed_tool_calls", "malformed_tool_calls") and LOST in found:
        text = f"{candidate} made no tool call{rows.where}, so there is no {metric} to compare"
        return Check(Verdict.TOO_FEW_ROWS, text)
    return None


def _gained(found: Difference, sign: int, gain: float | None) -> float | None:
    """The lower bound that the rows show for the difference, in the direction that is better.

    `gain`: the bound of `statistics.floors`; None if nothing bounds the values.
    """
    if found.low is None or found.high is None:
        return None
    return _lower(found.low if sign > 0 else -found.high, gain)


def _differs(found: Difference, least: float, sign: int, floor: float | None) -> tuple[Verdict, str]:
    """Whether the difference, in the direction that is better, is shown to be above `least`."""
    if not _is_below(least, sign * found.value):
        return Verdict.REFUSED, "it is not"
    if floor is None:
        return Verdict.TOO_FEW_ROWS, f"{_counted(found.clusters)} in common: too few to tell"
    way = "better" if floor >= 0 else "worse"
    edge = f"at {'least' if floor >= 0 else 'most'} {_number(abs(floor))} {way}"
    if floor > least:
        return Verdict.PASSED, f"it is; the rows show that it is {edge}"
    return Verdict.TOO_FEW_ROWS, f"it is, but the rows show only that it is {edge}: too few to tell"


def _counted(clusters: int) -> str:
    return f"{clusters} independent row{'' if clusters == 1 else 's'} or clusters"


def shown(found: Estimate) -> str:
    """An estimate in words."""
    counts = f"{found.n} rows, {found.tries} values"
    if found.low is None or found.high is None:
        return f"{_number(found.value)} (no interval; {counts})"
    return f"{_number(found.value)} (95 % interval {_number(found.low)} to {_number(found.high)}; {counts})"


def difference_text(found: Difference) -> str:
    """A difference in words."""
    values = f"{_number(found.candidate)} - {_number(found.baseline)} = {_number(found.value)}"
    if found.low is None or found.high is None or found.p is None or found.smallest is None:
        return f"{values} (no interval; {found.n} rows)"
    return (
        f"{values} (95 % interval {_number(found.low)} to {_number(found.high)}, p = {found.p:.2g}; "
        f"{found.n} rows, {found.tries} pairs, which show a difference of {_number(found.smallest)})"
    )


def _number(value: float) -> str:
    return f"{value:.4g}"
