"""Candidates side by side: every measure of each, the differences to the baseline, and the gate's verdict.

Status, metrics and report all use this computation. During the run it takes the tries so far, and at the end
all tries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headway_analysis.gate import GateSpec, Judgment, judge
from headway_analysis.measures.candidate import (
    ALL,
    by_task,
    differences,
    less_is_better,
    of_task,
    samples,
    suites_of,
    tasks_of,
)
from headway_analysis.measures.catalogue import Measure, Price, catalogue
from headway_analysis.measures.episodes import comparable
from headway_analysis.measures.tries import Try
from headway_analysis.statistics.differences import Difference
from headway_analysis.statistics.estimates import Estimate

HEADLINE: Final = "external_score"
DIGITS: Final = 12
"""Means that agree to so many digits are equal: the order of a sum changes the last ones."""
COMPARED: Final = (HEADLINE, "success", "reward", "completion")
"""The measures that are compared within each task. They are few, because a job may have many tasks, and each
comparison draws thousands of sign flips."""


@dataclass(frozen=True)
class Comparison:
    """The results of a job's tries."""

    baseline: str
    estimates: Mapping[str, Mapping[str, Mapping[str, Estimate]]]
    """Candidate -> task -> measure -> estimate; the task `all` has every row outside suites."""
    differences: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)
    """Measure -> candidate -> paired difference from the baseline, over all rows outside suites."""
    suites: Mapping[str, Mapping[str, Mapping[str, Difference]]] = field(default_factory=dict)
    """Suite that was measured -> measure -> candidate -> paired difference from the baseline."""
    tasks: Mapping[str, Mapping[str, Mapping[str, Difference]]] = field(default_factory=dict)
    """Task of the job's own rows -> measure of `COMPARED` -> candidate -> paired difference from the
    baseline."""
    gate: Judgment | None = None

    def estimate(self, candidate: str, measure: str, task: str = "all") -> Estimate | None:
        """One estimate; None if it has no value."""
        return self.estimates.get(candidate, {}).get(task, {}).get(measure)

    def difference(self, candidate: str, measure: str = HEADLINE) -> Difference | None:
        """One candidate's difference from the baseline."""
        return self.differences.get(measure, {}).get(candidate)

    def best(self) -> str | None:
        """The candidate with the best external score; the first one if several are equal.

        A candidate comes last if it lost so many more tries than another that its score cannot be ranked
        (`comparable`).
        """
        scores = {name: found for name in self.estimates if (found := self.estimate(name, HEADLINE))}
        lost = [self.estimate(name, "infra_error") for name in scores]
        fit = comparable([0.0 if share is None else share.value for share in lost])
        return max(
            zip(fit, scores, strict=True),
            key=lambda e: (e[0], round(scores[e[1]].value, DIGITS)),
            default=(True, None),
        )[1]


def compare_all(
    tries: Mapping[str, Sequence[Try]],
    ks: Sequence[int],
    baseline: str,
    gate: GateSpec | None,
    price: Price | None = None,
    compared: Sequence[str] | None = None,
    failed: Collection[str] = (),
) -> Comparison:
    """Sum up the tries of every candidate.

    Args:
        tries: by candidate; a candidate without tries is left out.
        ks: the k of pass@k and pass^k.
        baseline: candidate that the others are compared with.
        gate: what to judge, if anything.
        price: cost of a try in US dollars.
        compared: measures whose paired differences from the baseline are computed. None: all measures.
        failed: candidates that ended before all of their rows were measured; the gate cannot judge them.
    """
    known = {name: found for name, found in tries.items() if found}
    every = [each for found in known.values() for each in found]
    measures = catalogue(every, ks, price, gate.tools if gate is not None else ())
    suites = suites_of(every)
    in_tasks = [name for name in COMPARED if compared is None or name in compared]
    return Comparison(
        baseline=baseline,
        estimates={name: by_task(found, measures, price) for name, found in known.items()},
        differences=_differences(_of(known, ALL), baseline, measures, compared),
        suites={suite: _differences(_of(known, suite), baseline, measures, compared) for suite in suites},
        tasks={
            task: _differences(_of(known, task), baseline, measures, in_tasks)
            for task in tasks_of(every)
            if task != ALL and task not in suites
        },
        gate=None if gate is None else _judged(gate, known, measures, failed),
    )


def _of(tries: Mapping[str, Sequence[Try]], task: str) -> dict[str, list[Try]]:
    """The tries of one task, of the candidates that have any."""
    found = {name: of_task(of, task) for name, of in tries.items()}
    return {name: of for name, of in found.items() if of}


def _differences(
    tries: Mapping[str, Sequence[Try]],
    baseline: str,
    measures: Mapping[str, Measure],
    compared: Sequence[str] | None,
) -> dict[str, dict[str, Difference]]:
    if baseline not in tries or len(tries) < 2:
        return {}
    names = measures if compared is None else [name for name in compared if name in measures]
    return {name: differences(tries, baseline, measures[name]) for name in names}


def _judged(
    gate: GateSpec,
    tries: Mapping[str, Sequence[Try]],
    measures: Mapping[str, Measure],
    failed: Collection[str],
) -> Judgment:
    found = {
        task: {name: samples(of_task(of, task), measures) for name, of in tries.items()}
        for task in gate.tasks
    }
    return judge(gate, found[gate.task], less_is_better(measures), found, failed)
