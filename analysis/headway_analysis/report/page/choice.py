"""Chooses the groups that are read for a page, and the most informative of their episodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Self

from headway_analysis.measures.episodes import gap
from headway_api.records import EpisodeRecord, GroupRecord, Outcome, Purpose, StepReport, ValidationRecord

MAX_STEPS: Final = 8
"""The most steps whose batches are read."""
MAX_GROUPS: Final = 256
"""The most groups that are read of these batches."""
APART: Final = "reward and score apart"
ROWS: Final = 8
"""Held-out rows that are shown at the first and at the last validation. An evaluation shows this number of
rows on which candidates differ, and half as many on which all score low."""


@dataclass(frozen=True)
class Shown:
    """An episode that the page shows, and why. The rest of its group is dropped, because groups are large."""

    episode: EpisodeRecord
    purpose: Purpose
    step: int
    row: int
    candidate: str | None
    group_mean: float | None
    """Mean reward of the group's scored episodes."""
    why: str

    @classmethod
    def of(cls, group: GroupRecord, episode: EpisodeRecord, why: str, step: int | None = None) -> Self:
        """An episode of a group. `step`: the step that trained the group. None: the group's own step."""
        rewards = [each.reward for each in group.scored if each.reward is not None]
        mean = fmean(rewards) if rewards else None
        return cls(
            episode,
            group.purpose,
            group.step if step is None else step,
            group.row,
            group.candidate,
            mean,
            why,
        )

    @property
    def gap(self) -> float:
        """Distance between reward and external score; 0 if one of them is missing."""
        return gap(self.episode)

    @property
    def advantage(self) -> float | None:
        """The reward minus the mean of its group; None for an episode without a reward."""
        reward = self.episode.reward
        return None if reward is None or self.group_mean is None else reward - self.group_mean


def validated_rows(validations: Sequence[ValidationRecord]) -> list[tuple[int, str]]:
    """(step, group) of the held-out rows that are shown.

    The last validation comes first: the rows whose reward and external score are furthest apart, then the
    rows with the lowest and the highest score. The same rows at the first validation follow.
    """
    if not validations:
        return []
    last, first = validations[-1], validations[0]

    def gap(group: str) -> float:
        row = last.rows[group]
        return abs(fmean(row.rewards) - fmean(row.scores)) if row.rewards and row.scores else 0.0

    def worth(group: str) -> float:
        row = last.rows[group]
        return fmean(row.scores or row.rewards)

    groups = sorted(last.rows)
    apart = sorted((each for each in groups if gap(each) > 0), key=lambda each: -gap(each))[: ROWS // 2]
    rest = sorted((each for each in groups if each not in apart), key=worth)
    half = (ROWS - len(apart)) // 2
    chosen = [*apart, *rest[:half], *rest[max(half, len(rest) - (ROWS - len(apart) - half)) :]]
    found = [(last.step, group) for group in dict.fromkeys(chosen)]
    if first.step != last.step:
        again = {_place(group): group for group in first.rows}
        found += [(first.step, again[_place(group)]) for _, group in found if _place(group) in again]
    return found


def _place(group: str) -> str:
    """The part of a validation group's id that names its row, such as 000003 of `v000004-000003`."""
    return group.rpartition("-")[2]


def evenly_spread(reports: Sequence[StepReport]) -> list[int]:
    """At most `MAX_STEPS` of the steps that trained groups: the first, the last and evenly spaced others."""
    order = sorted({report.step for report in reports if report.groups})
    places = [round(at * (len(order) - 1) / (MAX_STEPS - 1)) for at in range(MAX_STEPS)] if order else []
    return [order[at] for at in dict.fromkeys(places)]


def trained_steps(reports: Sequence[StepReport], also: Iterable[int] = ()) -> list[StepReport]:
    """Steps whose groups are read: the first, the last, those of `also`, and some between.

    The steps are in order. Together they have at most `MAX_GROUPS` groups, unless the last step alone has
    more.
    """
    steps = {report.step: report for report in reports if report.groups}
    if not steps:
        return []
    evenly = evenly_spread(reports)
    chosen: list[int] = []
    groups = 0
    for step in dict.fromkeys((evenly[-1], evenly[0], *(each for each in also if each in steps), *evenly)):
        groups += len(steps[step].groups)
        if chosen and (groups > MAX_GROUPS or len(chosen) == MAX_STEPS):
            break
        chosen.append(step)
    return [steps[step] for step in sorted(chosen)]


def asked_steps(reports: Sequence[StepReport], steps: Collection[int]) -> list[StepReport]:
    """Those of `steps` that trained groups, in order. Their number of groups is not limited."""
    found = {report.step: report for report in reports if report.groups and report.step in steps}
    return [found[step] for step in sorted(found)]


class OfStep:
    """Chooses episodes of one step while its groups are read, and keeps only the chosen ones.

    It chooses the episodes with the highest reward, with the lowest reward, and with reward and score
    furthest apart. It also chooses one episode of each outcome other than Completed.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._found: dict[str, Shown] = {}

    def add(self, group: GroupRecord) -> None:
        """Consider one more group of the step."""
        for episode in group.episodes:
            if episode.reward is not None:
                self._take("best reward of the step", group, episode, lambda each: _reward(each.episode))
                self._take("least reward of the step", group, episode, lambda each: -_reward(each.episode))
                self._take(APART, group, episode, lambda each: each.gap)
            if episode.outcome is not Outcome.COMPLETED:
                self._take(f"ended {episode.outcome.value}", group, episode, lambda each: 0.0)

    def _take(
        self, why: str, group: GroupRecord, episode: EpisodeRecord, worth: Callable[[Shown], float]
    ) -> None:
        new = Shown.of(group, episode, why, self._step)
        if why not in self._found or worth(new) > worth(self._found[why]):
            self._found[why] = new

    @property
    def chosen(self) -> list[Shown]:
        """The chosen episodes of all groups so far, without duplicates."""
        apart = [each for each in self._found.values() if each.why != APART or each.gap > 0]
        return list({each.episode.episode_id: each for each in reversed(apart)}.values())[::-1]


def _reward(episode: EpisodeRecord) -> float:
    return 0.0 if episode.reward is None else episode.reward


def compared_rows(candidates: Mapping[str, Mapping[int, float]]) -> list[int]:
    """Rows of an evaluation that are shown.

    Those are the rows on which candidates differ most, and of the others those with the lowest scores.

    Args:
        candidates: name -> row -> mean score, for the rows that were read.
    """
    common = set.intersection(*(set(of) for of in candidates.values())) if candidates else set()

    def scores(row: int) -> list[float]:
        return [of[row] for of in candidates.values()]

    apart = sorted(common, key=lambda row: (min(scores(row)) - max(scores(row)), row))[:ROWS]
    failed = sorted(common - {*apart}, key=lambda row: (sum(scores(row)), row))[: ROWS // 2]
    return sorted({*apart, *failed})


def mean_score(group: GroupRecord) -> float:
    """Mean external score of a group. An episode without an external score counts with its reward."""
    values = [each.score if each.score is not None else _reward(each) for each in group.scored]
    return fmean(values) if values else 0.0
