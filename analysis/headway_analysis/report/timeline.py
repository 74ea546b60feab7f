"""How the seconds of a step were spent, and steps and episodes as a trace for Perfetto. Pure.

A learner takes one batch after another, so a step lasts from the end of the step before to its own end. The
learner measures its own work, before and after its wait for the batch. It waits for the batch's last episode
to finish: for its sandbox, agent, turns, tools and judgement. Before that episode began, the learner waited
in the same way for the episode that had occupied its place. The coordinator reports all other waits with the
batch. A learner that starts in the middle of a step reports how long its start took.

Time that no process measured counts as `UNKNOWN`. Older versions measured less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

from headway_api.records import BatchWaits, EpisodeRecord, EpisodeSpan, StepReport

PREFIX: Final = "timing_s/"
WAIT: Final = "timing_s/wait_for_batch"
NO_PARTS: Final = ("timing_s/step", "timing_s/training", WAIT)
"""Metrics that are not parts of a step: sums of parts, and the wait for the batch, which episodes explain."""
START: Final = "start"
BEFORE_THE_WAIT: Final = (START, "report", "save_checkpoint", "prune")
"""What a learner does between the end of a step and its request for the next batch."""
AGENT: Final = "agent"
"""Kind of the span that contains the episode's other spans."""
PLACE: Final = "waiting for a place"
WAITS: Final = {
    "sandbox": "waiting for a sandbox",
    "reset": "reset by the environment",
    AGENT: "the agent between turns and tools",
    "place": PLACE,
    "turn": "sampling by the model",
    "tool": "tools",
    "judgement": "judgement by the environment",
    "release": "return of the sandbox",
}
OF_A_BATCH: Final = {
    "start": "start of the coordinator",
    "weights": "until a server had the weights",
    "validation": "a validation before the batch",
    "budget": "waiting for the budget",
    "storing": "storing of the batch's last group",
}
FORMING: Final = "forming of the batch"
"""Time from storing the batch's last group to sending the batch, if the coordinator waits for nothing
else."""
DELIVERY: Final = "delivery of the batch"
RESTART: Final = "until the learner was started again"
UNKNOWN: Final = "not accounted for"
SUCCESSION: Final = 0.25
"""Maximum seconds between the end of an episode and the beginning of the episode that takes its place."""


@dataclass(frozen=True)
class EpisodeTiming:
    """When an episode began and ended, and what it waited for."""

    name: str
    began: float
    ended: float
    """`began` and `ended` are Unix times."""
    outcome: str
    spans: tuple[EpisodeSpan, ...]
    """The episode's spans, sorted by begin. If two begin together, the longer one comes first."""
    queued: float | None = None
    """Unix time at which the episode began to wait for a place; None in older records."""

    @classmethod
    def of(cls, episode: EpisodeRecord) -> EpisodeTiming:
        """The times in an episode's record."""
        return cls(
            episode.episode_id,
            episode.started_at,
            episode.finished_at,
            episode.outcome.value,
            tuple(sorted(episode.spans, key=lambda span: (span.began, -span.ended))),
            episode.queued_at,
        )

    @property
    def of_index(self) -> str:
        """The part of the name that all attempts at one episode share."""
        return self.name.rpartition("-")[0]


@dataclass(frozen=True)
class StepTime:
    """How the seconds of one step were spent."""

    step: int
    seconds: float
    """Seconds from the end of the step before to the end of this step."""
    parts: Mapping[str, float]
    """Activity or wait -> seconds, the longest first. They add up to `seconds`."""

    @property
    def known(self) -> float:
        """The share of the seconds that is accounted for, from 0 to 1."""
        return 1 - self.parts.get(UNKNOWN, 0.0) / self.seconds if self.seconds > 0 else 1.0

    def as_json(self) -> dict[str, Any]:
        """The step as a JSON object."""
        return {"step": self.step, "seconds": self.seconds, "parts": dict(self.parts), "known": self.known}


def own_parts(report: StepReport) -> dict[str, float]:
    """Seconds of the learner's own work for a step, by the metric's name without `timing_s/`."""
    return {
        name.removeprefix(PREFIX): seconds
        for name, seconds in report.metrics.items()
        if name.startswith(PREFIX) and name not in NO_PARTS
    }


def in_order(report: StepReport) -> dict[str, float]:
    """Seconds of a step's parts in the order of time, including the wait for the batch."""
    before, after = _around_the_wait(report)
    return {**before, WAIT.removeprefix(PREFIX): report.metrics.get(WAIT, 0.0), **after}


def _around_the_wait(report: StepReport) -> tuple[dict[str, float], dict[str, float]]:
    """The learner's own work before its wait for the batch, and its own work after the wait."""
    own = own_parts(report)
    before: dict[str, float] = {name: own.pop(name) for name in BEFORE_THE_WAIT if name in own}
    return before, own


def laid_out(parts: Mapping[str, float], begun: float) -> Iterator[tuple[str, float, float]]:
    """(part, begin, end) of parts that follow one another, in Unix times."""
    for name, seconds in parts.items():
        yield name, begun, begun + seconds
        begun += seconds


def spent(before: StepReport, report: StepReport, episodes: Sequence[EpisodeTiming]) -> StepTime | None:
    """How the time of a step was spent; None if the reports do not say when the steps ended.

    Args:
        before: the report of the step before.
        report: the report of the step.
        episodes: the times of the batch's episodes.
    """
    if before.ended_at is None or report.ended_at is None:
        return None
    seconds = report.ended_at - before.ended_at
    parts: dict[str, float] = defaultdict(float)
    early, late = _around_the_wait(report)
    waited = report.metrics.get(WAIT, 0.0)
    delivered = report.ended_at - sum(late.values())
    _add(parts, waiting(delivered - waited, delivered, episodes, report.waits))
    rest = seconds - sum(parts.values()) - sum(early.values()) - sum(late.values())
    if START in early:
        # The learner that was replaced may have ended its last step after the new learner had started.
        early[START] = max(0.0, early[START] + min(0.0, rest))
    _add(parts, {_learner_part(name): amount for name, amount in (early | late).items()})
    if rest > 0:
        parts[RESTART if START in early else UNKNOWN] += rest
    largest_first = sorted(parts.items(), key=lambda part: -part[1])
    return StepTime(report.step, seconds, dict(largest_first))


def _learner_part(name: str) -> str:
    return f"learner: {name.replace('_', ' ')}"


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for what, amount in more.items():
        total[what] += amount


def waiting(
    since: float, until: float, episodes: Sequence[EpisodeTiming], batch: BatchWaits | None = None
) -> dict[str, float]:
    """What the learner waited for between two moments, in seconds.

    The function follows a chain of episodes back in time. The chain begins with the episode that ended last,
    and continues with the episode whose place this one took. The seconds add up to `until - since`.

    Args:
        since: Unix time at which the wait began.
        until: Unix time at which the wait ended.
        episodes: the times of the batch's episodes.
        batch: waits that the coordinator measured besides the episodes; None in older reports.
    """
    found: dict[str, float] = defaultdict(float)
    batch_waits, forming = _batch_waits(batch, until), _forming(batch)
    last = max((each for each in episodes if each.ended <= until), key=lambda each: each.ended, default=None)
    moment = until
    while last is not None and moment > since:
        ended = max(since, min(moment, last.ended))
        _add(found, _measured(batch_waits, ended, moment, else_by=forming))
        _add(found, _episode_waits(last, since, ended))
        before, began = _before(last, episodes), min(ended, last.began)
        # The wait for the place: since the episode before left it, or since this episode was queued.
        queued = before.ended if before is not None else last.began if last.queued is None else last.queued
        moment = max(since, min(began, queued))
        found[PLACE] += max(0.0, began - moment)
        last = before or _attempt_before(last, episodes)
    _add(found, _measured(batch_waits, since, moment, else_by=forming))
    return {what: amount for what, amount in found.items() if amount > 0}


Interval = tuple[str, float, float]
"""Name of an activity or wait, and the Unix times of its begin and end."""


def _batch_waits(batch: BatchWaits | None, until: float) -> list[Interval]:
    """The waits that belong to the batch and not to an episode: those that the coordinator recorded, and the
    batch's delivery to the learner."""
    if batch is None:
        return []
    waits = [(OF_A_BATCH[wait.kind], wait.began, wait.ended) for wait in batch.waits]
    return [*waits, (DELIVERY, batch.sent_at, until)]


def _forming(batch: BatchWaits | None) -> list[Interval]:
    """The time in which the coordinator formed a batch. Other waits in this time take precedence."""
    waits = [] if batch is None else batch.waits
    stored = [wait.ended for wait in waits if wait.kind == "storing"]
    return [(FORMING, max(stored), batch.sent_at)] if batch is not None and stored else []


def _before(one: EpisodeTiming, episodes: Iterable[EpisodeTiming]) -> EpisodeTiming | None:
    """The episode whose place `one` took: the last to end while `one` waited."""
    since = one.began - SUCCESSION if one.queued is None else max(one.queued, one.began - SUCCESSION)
    earlier = (each for each in episodes if since <= each.ended <= one.began and each.began < one.began)
    return max(earlier, key=lambda each: each.ended, default=None)


def _attempt_before(one: EpisodeTiming, episodes: Iterable[EpisodeTiming]) -> EpisodeTiming | None:
    """The latest earlier attempt at the same episode."""
    earlier = (
        each
        for each in episodes
        if each.of_index == one.of_index and each.ended <= one.began and each.began < one.began
    )
    return max(earlier, key=lambda each: each.ended, default=None)


def _episode_waits(one: EpisodeTiming, since: float, until: float) -> dict[str, float]:
    """Seconds of an episode's activities between two moments. Time outside all other spans is the agent's."""
    spans = [(WAITS[span.kind], one.began + span.began, one.began + span.ended) for span in one.spans]
    agent = [each for each in spans if each[0] == WAITS[AGENT]]
    inner = [each for each in spans if each[0] != WAITS[AGENT]]
    return _measured(inner, max(since, one.began), min(until, one.ended), else_by=agent)


def _measured(
    intervals: Iterable[Interval], since: float, until: float, *, else_by: Sequence[Interval] = ()
) -> dict[str, float]:
    """Seconds of each measured activity between two moments. The rest counts as `UNKNOWN`.

    Args:
        intervals: activities that take precedence.
        since: Unix time of the first moment.
        until: Unix time of the second moment.
        else_by: activities that count while none of `intervals` covers the time.
    """
    found, gaps = _covered(intervals, since, until)
    for gap in gaps:
        more, unknown = _covered(else_by, *gap)
        _add(found, more)
        found[UNKNOWN] += sum(ended - began for began, ended in unknown)
    return found


def _covered(
    intervals: Iterable[Interval], since: float, until: float
) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """Seconds of each activity between two moments, and the gaps that no activity covers.

    If intervals overlap, the interval that began first counts.
    """
    found: dict[str, float] = defaultdict(float)
    gaps: list[tuple[float, float]] = []
    moment = since
    for what, began, ended in sorted(intervals, key=lambda each: each[1]):
        low, high = max(moment, began), min(until, ended)
        if high > low:
            if low > moment:
                gaps.append((moment, low))
            found[what] += high - low
            moment = high
    if until > moment:
        gaps.append((moment, until))
    return found, gaps


def trace(reports: Sequence[StepReport], episodes: Sequence[EpisodeTiming]) -> dict[str, Any]:
    """Steps and episodes as a trace in Chrome's JSON format, which ui.perfetto.dev opens."""
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
"""Process ids in a trace."""
Slice = tuple[int, int, float, float, str, Mapping[str, Any]]
"""Process, lane, Unix times of begin and end, name, and further arguments."""


def _learner(reports: Sequence[StepReport]) -> Iterator[Slice]:
    for report in reports:
        if report.ended_at is None or not report.groups:
            continue
        parts = in_order(report)
        begun = report.ended_at - sum(parts.values())
        yield (LEARNER, 1, begun, report.ended_at, f"step {report.step}", {"groups": len(report.groups)})
        for name, began, ended in laid_out(parts, begun):
            yield (LEARNER, 1, began, ended, name.replace("_", " "), {})


def _episodes(episodes: Sequence[EpisodeTiming]) -> Iterator[Slice]:
    """The slices of each episode, in the lowest lane that is free when the episode begins."""
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
