"""Where the seconds of a step went, and all of it as a trace that Perfetto opens. Pure.

A learner takes one batch after another, so a step lasts from the end of the one before to its own end. The
learner measures what it does itself. Else it waits for the batch's last episode: for its sandbox, turns,
tools and judgement, and before it began, for those of the episode whose place it took.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

from headway_api.records import EpisodeRecord, EpisodeSpan, StepReport

PREFIX: Final = "timing_s/"
WAIT: Final = "timing_s/wait_for_batch"
NO_PARTS: Final = ("timing_s/step", "timing_s/training", WAIT)
"""Sums of other figures, and what is explained by episodes."""
WAITS: Final = {
    "sandbox": "waiting for a sandbox",
    "reset": "reset by the environment",
    "turn": "sampling by the model",
    "tool": "tools",
    "judgement": "judgement by the environment",
}
BETWEEN: Final = "the agent and the platform between them"
PLACE: Final = "waiting for a place"
DELIVERY: Final = "delivery of the batch"
UNKNOWN: Final = "not accounted for"
SUCCESSION: Final = 0.25
"""Seconds between the end of an episode and the beginning of the one that takes its place, at most."""


@dataclass(frozen=True)
class Lived:
    """When an episode was, and what it waited for."""

    name: str
    began: float
    ended: float
    """Unix times."""
    outcome: str
    spans: tuple[EpisodeSpan, ...]

    @classmethod
    def of(cls, episode: EpisodeRecord) -> Lived:
        """An episode's times."""
        spans = tuple(sorted(episode.spans, key=lambda span: span.began))
        return cls(episode.episode_id, episode.started_at, episode.finished_at, episode.outcome.value, spans)


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of one step went."""

    step: int
    seconds: float
    """From the end of the step before to its own."""
    parts: Mapping[str, float]
    """What -> seconds, the most first; they add up to `seconds`."""

    @property
    def known(self) -> float:
        """The share of the seconds that is accounted for, from 0 to 1."""
        return 1 - self.parts.get(UNKNOWN, 0.0) / self.seconds if self.seconds > 0 else 1.0

    def as_json(self) -> dict[str, Any]:
        """As an object of JSON."""
        return {"step": self.step, "seconds": self.seconds, "parts": dict(self.parts), "known": self.known}


def own_parts(report: StepReport) -> dict[str, float]:
    """What the learner did itself for a step, in seconds, by the last part of a `timing_s/` name."""
    return {
        name.removeprefix(PREFIX): seconds
        for name, seconds in report.metrics.items()
        if name.startswith(PREFIX) and name not in NO_PARTS
    }


def in_order(report: StepReport) -> dict[str, float]:
    """The same after the wait for the batch."""
    return {WAIT.removeprefix(PREFIX): report.metrics.get(WAIT, 0.0), **own_parts(report)}


def laid_out(parts: Mapping[str, float], begun: float) -> Iterator[tuple[str, float, float]]:
    """(part, begin, end) of parts that follow one another, in Unix times."""
    for name, seconds in parts.items():
        yield name, begun, begun + seconds
        begun += seconds


def spent(before: StepReport, report: StepReport, episodes: Sequence[Lived]) -> StepTime | None:
    """Where the time of a step went; None if its reports do not say when they ended.

    Args:
        before: the report of the step before it, by the same learner.
        episodes: those of the batch that it was made of.
    """
    if before.ended_at is None or report.ended_at is None:
        return None
    seconds = report.ended_at - before.ended_at
    parts: dict[str, float] = defaultdict(float)
    own = own_parts(report)
    _add(parts, {f"learner: {name.replace('_', ' ')}": amount for name, amount in own.items()})
    waited = report.metrics.get(WAIT, 0.0)
    delivered = report.ended_at - sum(own.values())
    _add(parts, waiting(delivered - waited, delivered, episodes))
    rest = seconds - sum(parts.values())
    if rest > 0:
        parts[UNKNOWN] += rest
    most_first = sorted(parts.items(), key=lambda part: -part[1])
    return StepTime(report.step, seconds, dict(most_first))


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for what, amount in more.items():
        total[what] += amount


def waiting(since: float, until: float, episodes: Sequence[Lived]) -> dict[str, float]:
    """What the learner waited for between two moments, by the chain of episodes that ended last.

    The seconds add up to `until - since`.
    """
    found: dict[str, float] = defaultdict(float)
    last = max((each for each in episodes if each.ended <= until), key=lambda each: each.ended, default=None)
    moment = until
    while moment > since:
        if last is None:
            found[PLACE if found else UNKNOWN] += moment - since
            break
        gap = moment - max(last.ended, since)
        found[PLACE if found else DELIVERY] += max(0.0, gap)
        _add(found, _lived(last, since, min(moment, last.ended)))
        moment = min(moment, last.began)
        last = _before(last, episodes)
    return {what: amount for what, amount in found.items() if amount > 0}


def _before(one: Lived, episodes: Iterable[Lived]) -> Lived | None:
    """The episode whose place another took."""
    earlier = (each for each in episodes if each.ended <= one.began and each.began < one.began)
    found = max(earlier, key=lambda each: each.ended, default=None)
    return found if found is not None and one.began - found.ended <= SUCCESSION else None


def _lived(one: Lived, since: float, until: float) -> dict[str, float]:
    """What an episode did between two moments, by kind. Of spans side by side, the first to begin counts."""
    found: dict[str, float] = defaultdict(float)
    begin, end = max(since, one.began), min(until, one.ended)
    moment = begin
    for span in one.spans:
        low, high = max(moment, one.began + span.began), min(end, one.began + span.ended)
        if high > low:
            found[WAITS[span.kind]] += high - low
            moment = high
    whole = max(0.0, end - begin)
    found[BETWEEN] += max(0.0, whole - sum(found.values()))
    return found


def trace(reports: Sequence[StepReport], episodes: Sequence[Lived]) -> dict[str, Any]:
    """Steps and episodes in Chrome's JSON form of traces, which ui.perfetto.dev opens."""
    slices = [*_learner(reports), *_episodes(episodes)]
    start = min((each[2] for each in slices), default=0.0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((LEARNER, "learner"), (EPISODES, "episodes"))
    ]
    for process, lane, began, ended, name, about in slices:
        events.append(
            {
                "ph": "X",
                "pid": process,
                "tid": lane,
                "ts": round((began - start) * 1e6),
                "dur": max(0, round((ended - began) * 1e6)),
                "name": name,
                "args": dict(about),
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"begins": start}}


LEARNER, EPISODES = 1, 2
"""Processes of a trace."""
Slice = tuple[int, int, float, float, str, Mapping[str, Any]]
"""Process, lane, Unix times of begin and end, name, and what else is known."""


def _learner(reports: Sequence[StepReport]) -> Iterator[Slice]:
    for report in reports:
        if report.ended_at is None or not report.groups:
            continue
        parts = in_order(report)
        begun = report.ended_at - sum(parts.values())
        yield (LEARNER, 1, begun, report.ended_at, f"step {report.step}", {"groups": len(report.groups)})
        for name, began, ended in laid_out(parts, begun):
            yield (LEARNER, 1, began, ended, name.replace("_", " "), {})


def _episodes(episodes: Sequence[Lived]) -> Iterator[Slice]:
    """Each in the lowest lane that is free."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for each in sorted(episodes, key=lambda one: one.began):
        while busy and busy[0][0] <= each.began:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else len(busy) + 1
        heappush(busy, (each.ended, lane))
        yield (EPISODES, lane, each.began, each.ended, each.name, {"outcome": each.outcome})
        for span in each.spans:
            name = f"{span.kind} {span.name}".strip()
            yield (EPISODES, lane, each.began + span.began, each.began + span.ended, name, {})
