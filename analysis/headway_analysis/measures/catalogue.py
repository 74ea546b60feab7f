"""Every measure of a candidate: its name, what a try adds to it, and which way is better.

`docs/evaluation.md` describes the same in text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

import numpy as np

from headway_analysis.measures.episodes import pass_at_k, pass_power_k
from headway_analysis.measures.names import apart, tool
from headway_analysis.measures.tries import COMPLETION, FORMAT, Try
from headway_analysis.statistics.estimates import Sample, Unit
from headway_api.records import Outcome

Price = Callable[[Try], Decimal | None]
"""Gives the cost of a try in US dollars; None if it is unknown."""
Part = tuple[float, float]
"""What a try adds to numerator and denominator; the denominator's part is 1 for a plain mean."""
Scale = Literal["share", "score", "amount"]
"""share: in 0..1 by definition. score: treated as a share if all values are in 0..1. amount: any number."""
TOOLS_NAMED: Final = 32
"""The most tools with a measure of their own: those called most. A model may make up any number of names."""


@dataclass(frozen=True)
class Measure:
    """One number of a candidate, as a mean or a ratio over tries or rows."""

    name: str
    scale: Scale
    part: Callable[[Try], Part | None] | None = None
    """What one try adds; None if the try has no value."""
    row: Callable[[Sequence[Try]], float | None] | None = None
    """The value of one row from all its tries. A measure has either `row` or `part`."""
    less_is_better: bool = False
    known: Callable[[Try], bool] | None = None
    """Whether a try reports the measure. If one try does not, the candidate has no value: the other tries
    would be a biased sample."""

    def sample(self, tries: Iterable[Try]) -> Sample:
        """The measure's values over one candidate's tries."""
        tries = list(tries)
        if self.known is not None and not all(map(self.known, tries)):
            tries = []
        found = sorted(self._by_row(tries) if self.row else self._by_try(tries))
        tops = np.array([top for _, _, top, _ in found])
        bottoms = np.array([bottom for _, _, _, bottom in found])
        bounded = bool(((tops >= 0) & (tops <= bottoms)).all())
        return Sample(
            units=tuple(unit for unit, _, _, _ in found),
            clusters=tuple(cluster for _, cluster, _, _ in found),
            tops=tops,
            bottoms=bottoms,
            share=self.scale == "share" or (self.scale == "score" and bounded),
        )

    def _by_try(self, tries: Iterable[Try]) -> Iterator[tuple[Unit, str, float, float]]:
        assert self.part is not None
        for each in tries:
            if (part := self.part(each)) is not None:
                yield (each.place.row, each.index), each.cluster, *part

    def _by_row(self, tries: Iterable[Try]) -> Iterator[tuple[Unit, str, float, float]]:
        assert self.row is not None
        rows: dict[int, list[Try]] = {}
        for each in tries:
            rows.setdefault(each.place.row, []).append(each)
        for row, members in rows.items():
            if (value := self.row(members)) is not None:
                yield (row, -1), members[0].cluster, value, 1.0


def catalogue(
    tries: Sequence[Try], ks: Sequence[int], price: Price | None = None, tools: Collection[str] = ()
) -> dict[str, Measure]:
    """Every measure that these tries have, by name. Give the tries of all candidates that are compared.

    Args:
        tools: names of tools, as in measures, that have a measure even if nobody called them.
    """
    measures = [
        *_judgments(),
        *_passes(ks),
        *_reported(tries),
        *_efforts(),
        *_tools(tries, tools),
        *_endings(),
        *(_costs(price) if price is not None else ()),
    ]
    return {measure.name: measure for measure in measures}


def _mean(
    name: str,
    scale: Scale,
    value: Callable[[Try], float | None],
    *,
    less_is_better: bool = False,
    known: Callable[[Try], bool] | None = None,
) -> Measure:
    """A mean over scored tries that have a value."""

    def part(each: Try) -> Part | None:
        found = value(each) if each.scored else None
        return None if found is None else (float(found), 1.0)

    return Measure(name, scale, part, less_is_better=less_is_better, known=known)


def _judgments() -> Iterator[Measure]:
    yield _mean("reward", "score", lambda each: each.reward)
    yield _mean("external_score", "score", lambda each: each.external_score)
    yield _mean("success", "share", lambda each: each.success)
    yield _mean("success_by_reward", "share", lambda each: each.success_by_reward)
    yield _mean(COMPLETION, "score", lambda each: each.completion)
    yield _mean(FORMAT, "score", lambda each: each.format)


def _passes(ks: Sequence[int]) -> Iterator[Measure]:
    for k in ks:
        for suffix, judgment in (("", _by_score), ("_by_reward", _by_reward)):
            for stem, estimator in (("pass_at", pass_at_k), ("pass_power", pass_power_k)):
                yield Measure(f"{stem}_{k}{suffix}", "share", row=_over_row(k, judgment, estimator))


def _by_score(each: Try) -> bool:
    return each.success


def _by_reward(each: Try) -> bool:
    return each.success_by_reward


def _over_row(
    k: int, judgment: Callable[[Try], bool], estimator: Callable[[int, int, int], float]
) -> Callable[[Sequence[Try]], float | None]:
    """A function that gives a row's unbiased estimate; None if fewer than k of its tries are scored."""

    def value(tries: Sequence[Try]) -> float | None:
        scored = [each for each in tries if each.scored]
        return estimator(len(scored), sum(map(judgment, scored)), k) if len(scored) >= k else None

    return value


def _reported(tries: Sequence[Try]) -> Iterator[Measure]:
    """Measures of the environment's own numbers. `completion` and `format` have a measure already."""
    for name in sorted({name for each in tries for name in each.metrics} - {COMPLETION, FORMAT}):
        yield _mean(f"metric_{apart(name)}", "score", _metric(name))


def _metric(name: str) -> Callable[[Try], float | None]:
    return lambda each: each.metrics.get(name)


def _calls_of(name: str) -> Callable[[Try], float]:
    """The number of a try's calls to tools whose metric name is `name`."""
    return lambda each: sum(
        count for called, count in each.tool_calls.by_tool.items() if tool(called) == name
    )


def _efforts() -> Iterator[Measure]:
    yield _mean("turns", "amount", lambda each: each.turns, less_is_better=True)
    yield _tokens("prompt_tokens", lambda each: each.prompt_tokens)
    yield _tokens("cached_tokens", lambda each: each.cached_tokens)
    yield _tokens("sampled_tokens", lambda each: each.sampled_tokens)
    yield _mean("seconds", "amount", lambda each: each.seconds, less_is_better=True)
    yield _mean("sandbox_seconds", "amount", lambda each: each.sandbox_seconds, less_is_better=True)


def _tokens(name: str, value: Callable[[Try], float]) -> Measure:
    """Mean tokens of a try. The measure has no value if an endpoint left the tokens of a turn uncounted."""
    return _mean(name, "amount", value, less_is_better=True, known=lambda each: not each.uncounted_turns)


def _tools(tries: Sequence[Try], tools: Collection[str]) -> Iterator[Measure]:
    def failed(each: Try) -> Part | None:
        calls = each.tool_calls
        return (calls.failed, calls.readable) if each.scored and calls.readable else None

    def malformed(each: Try) -> Part | None:
        calls = each.tool_calls
        return (calls.malformed, calls.total) if each.scored and calls.total else None

    yield _mean("tool_calls", "amount", lambda each: each.tool_calls.total, less_is_better=True)
    yield Measure("failed_tool_calls", "share", failed, less_is_better=True)
    yield Measure("malformed_tool_calls", "share", malformed, less_is_better=True)
    called: Counter[str] = Counter()
    for each in tries:
        for name, count in each.tool_calls.by_tool.items():
            called[tool(name)] += count
    kept = sorted(called, key=lambda name: (-called[name], name))[:TOOLS_NAMED]
    for name in sorted({*kept, *tools}):
        yield _mean(f"tool_calls_{name}", "amount", _calls_of(name), less_is_better=True)


def _endings() -> Iterator[Measure]:
    def lost(each: Try) -> Part | None:
        return float(not each.scored), 1.0

    yield _mean("turn_limit", "share", lambda each: each.turn_limit, less_is_better=True)
    yield _mean("token_limit", "share", lambda each: each.token_limit, less_is_better=True)
    yield _mean("agent_error", "share", lambda each: each.outcome is Outcome.AGENT_ERROR, less_is_better=True)
    yield Measure("infra_error", "share", lost, less_is_better=True)


def _costs(price: Price) -> Iterator[Measure]:
    """Costs include wasted tries: the numerator counts every try, the denominator only scored tries or
    successes."""

    def known(each: Try) -> bool:
        return price(each) is not None

    def each_scored(each: Try) -> Part | None:
        return float(price(each) or 0), float(each.scored)

    def each_success(each: Try) -> Part | None:
        return float(price(each) or 0), float(each.success)

    yield Measure("cost", "amount", each_scored, less_is_better=True, known=known)
    yield Measure("cost_per_success", "amount", each_success, less_is_better=True, known=known)
