"""What episodes of a running job used, counted from the segments of its ledger as they are written.

A restarted coordinator reads the same segments, and so gets the same numbers. Recent training groups weigh
more: a group counts half as much as a group that was played `half_life` groups later.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum
from statistics import median
from typing import Final, TypeVar

from headway_analysis.estimate.measured import IN_TRAINING, BilledGroup, Mean, Measured, measure
from headway_api.prices import of as of_model
from headway_api.records import UsageClass, UsageEvent

MAX_ENTRIES: Final = 1024
"""How many of the latest groups of each kind, and of the latest steps, are remembered."""
FEWEST_BATCHES: Final = 2.0
"""The shortest half-life of a group's weight, in batches."""
OF_THE_PAST: Final = 0.25
"""The shortest half-life of a group's weight, as a share of all groups. The longer of both applies."""
RECENT_STEPS: Final = 25
"""The number of latest steps from which the pace and the training tokens of a step are measured."""
STEP: Final = re.compile(r"step-(\d+)")
GROUP: Final = re.compile(r"(?P<group>[tp]\d+-\d+|v\d+-\d+|e-.+-\d{6,})(?:-(?P<index>\d+)-\d+)?")
"""The start of an event's id: the group's id, then the episode's index and attempt if the event has them."""
K = TypeVar("K")
T = TypeVar("T")


@dataclass
class Group:
    """What one group used, and the largest index of its episodes."""

    usage: dict[str, float] = field(default_factory=dict)
    last: int = 0
    """Largest index of an episode."""
    ended: float = 0.0
    """Unix time of its last event."""

    def add(self, event: UsageEvent, index: str | None, key: str) -> None:
        """Add an event of the group.

        Args:
            event: the event, which belongs to this group.
            index: the episode's index; None if the event belongs to the whole group.
            key: the key of the bill to which the quantity is added.
        """
        self.usage[key] = self.usage.get(key, 0.0) + event.quantity
        self.last = max(self.last, int(index or 0))
        self.ended = max(self.ended, event.at)

    @property
    def played(self) -> BilledGroup:
        """The group as input of `measure`. If no sandbox of the group is billed, it was abandoned."""
        kept = self.usage.get(UsageClass.SANDBOX_SECONDS, 0.0) > 0
        return BilledGroup(self._used, self.last + 1, kept)

    def measured(self, episodes: int) -> BilledGroup:
        """An evaluation's group as input of `measure`. It counts as kept: no other group replaces a lost one.

        Args:
            episodes: the planned number of episodes of the group.
        """
        return BilledGroup(self._used, episodes)

    @property
    def _used(self) -> dict[str, float]:
        return {name: max(0.0, much) for name, much in self.usage.items()}


@dataclass
class _Step:
    tokens: float = 0.0
    at: float = 0.0


@dataclass
class Tally:
    """What the ledger of one training job has so far. Not thread-safe: one caller at a time."""

    train: dict[str, Group] = field(default_factory=dict)
    """Groups of training and of the preflight by id, in the order in which they were written."""
    held_out: dict[str, Group] = field(default_factory=dict)
    """Groups of validations by id."""
    steps: dict[int, _Step] = field(default_factory=dict)
    """Steps that trained a token."""
    answered: Counter[int] = field(default_factory=Counter)
    """Step of a validation -> rows of it that were played."""
    tested: int = 0
    """Rows of the test split that were played, added up over all weights that are tested."""
    trained: int = 0
    """Number of training groups, including those that are forgotten."""
    began: float = 0.0
    """Unix time of the first event; 0 before any event."""
    ended: float = 0.0
    """Unix time of the last event."""
    _test: dict[str, Group] = field(default_factory=dict)

    def add(self, events: Iterable[UsageEvent]) -> None:
        """Add events that were written to the ledger."""
        for event in events:
            self._add(event)
        for groups in (self.train, self.held_out, self._test):
            _forget(groups)
        _forget(self.steps)

    def _add(self, event: UsageEvent) -> None:
        whose, *parts = event.id.split("/")
        self.began = min(self.began or event.at, event.at)
        self.ended = max(self.ended, event.at)
        if (of := STEP.fullmatch(parts[0] if parts else "")) is not None:
            step = self.steps.setdefault(int(of[1]), _Step())
            step.tokens += event.quantity
            step.at = max(step.at, event.at)
        elif (of := GROUP.fullmatch(whose)) is not None:
            name = event.usage_class.value
            key = of_model(IN_TRAINING.get(name, name), event.model)
            self._group(of["group"]).add(event, of["index"], key)

    def _group(self, group_id: str) -> Group:
        """The entry of a group. A group without an entry gets one, and is counted."""
        kind = group_id[0]
        groups = {"v": self.held_out, "e": self._test}.get(kind, self.train)
        if group_id not in groups:
            groups[group_id] = Group()
            if kind == "v":
                self.answered[int(group_id[1:].partition("-")[0])] += 1
            self.tested += kind == "e"
            self.trained += kind == "t"
        return groups[group_id]

    def training(self, batch_size: int) -> Measured:
        """What recent training episodes used."""
        found = [group.played for group in self.train.values()]
        half_life = max(FEWEST_BATCHES * batch_size, OF_THE_PAST * len(found))
        weights = [0.5 ** ((len(found) - 1 - place) / half_life) for place in range(len(found))]
        return measure(found, weights)

    def evaluation(self) -> Measured:
        """What episodes of validations used, in the classes of training."""
        return measure([group.played for group in self.held_out.values()])

    def step(self, taken: int) -> Mean | None:
        """Training tokens of a step, over the latest `RECENT_STEPS` steps; None before the first.

        Args:
            taken: steps taken. A step that trained no token has no segment, and counts as 0.
        """
        recent = range(max(1, taken - RECENT_STEPS + 1), taken + 1)
        found = [BilledGroup({"train": self.steps.get(n, _Step()).tokens}, 1) for n in recent]
        return measure(found).means["train"] if found else None

    def pace(self, taken: int) -> float | None:
        """Median seconds between recent steps; None before two. A mean would include times of suspension."""
        recent = [self.steps[n].at for n in range(taken - RECENT_STEPS, taken + 1) if n in self.steps]
        gaps = [later - earlier for earlier, later in pairwise(recent)]
        return median(gaps) if gaps else None


@dataclass
class EvaluationTally:
    """What the ledger of one evaluation has so far, by candidate and section. Not thread-safe.

    A group's id ends with its position. A section is the range of positions of the job's own rows, or of one
    suite's samples.
    """

    starts: Sequence[int] = (0,)
    """First position of each section: the job's own rows, then the samples of each suite."""
    groups: dict[tuple[str, int], dict[str, Group]] = field(default_factory=dict)
    """Candidate and number of the section -> its groups by id, in the order in which they were written."""
    seen: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Candidate and number of the section -> number of groups, including those that are forgotten."""
    fresh: set[str] = field(default_factory=set)
    """Ids of groups that were written since a caller last cleared this set."""
    began: float = 0.0
    """Unix time of the first event of a group; 0 before any event."""
    ended: float = 0.0
    """Unix time of the last event."""

    def add(self, events: Iterable[UsageEvent]) -> None:
        """Add events that were written to the ledger. Events outside evaluation groups are ignored."""
        for event in events:
            of = GROUP.fullmatch(event.id.partition("/")[0])
            if of is None or not of["group"].startswith("e-"):
                continue
            self.began = min(self.began or event.at, event.at)
            self.ended = max(self.ended, event.at)
            key = of_model(event.usage_class.value, event.model)
            self._group(of["group"]).add(event, of["index"], key)
            self.fresh.add(of["group"])
        for groups in self.groups.values():
            _forget(groups)

    def _group(self, group_id: str) -> Group:
        """The entry of a group. A group without an entry gets one, and is counted."""
        position = int(group_id.rpartition("-")[2])
        where = candidate_of(group_id), bisect_right(self.starts, position) - 1
        groups = self.groups.setdefault(where, {})
        if group_id not in groups:
            groups[group_id] = Group()
            self.seen[where] += 1
        return groups[group_id]

    def measured(self, candidate: str, section: int, *, done: int, episodes: int) -> Measured:
        """What episodes of a candidate used, by the keys of its bill. All groups have the same weight.

        Args:
            candidate: the candidate's name.
            section: number of the section in `starts`.
            done: finished groups of the section. A group without an event cost nothing, and counts as 0.
            episodes: number of episodes of a group.
        """
        where = candidate, section
        known = self.groups.get(where, {})
        blank = round(max(0, done - self.seen[where]) * len(known) / self.seen[where]) if known else 0
        found = [group.measured(episodes) for group in known.values()]
        return measure([*found, *[BilledGroup({}, episodes)] * blank])

    def pace(self, candidates: Collection[str], longest: float) -> float | None:
        """Mean seconds from the end of one group to the end of the next; None before two groups.

        The groups are those of candidates that are measured side by side.

        Args:
            candidates: the candidates' names.
            longest: seconds at which longer gaps are cut, since the job was then suspended or not running.
        """
        ends = sorted(
            group.ended
            for (candidate, _), groups in self.groups.items()
            if candidate in candidates
            for group in groups.values()
        )
        gaps = [min(longest, later - earlier) for earlier, later in pairwise(ends)]
        return fsum(gaps) / len(gaps) if gaps else None


def candidate_of(group_id: str) -> str:
    """The candidate's name in the id of an evaluation's group."""
    return group_id.removeprefix("e-").rpartition("-")[0]


def _forget(known: dict[K, T]) -> None:
    """Drop the oldest entries beyond `MAX_ENTRIES`."""
    for name in [*known][: max(0, len(known) - MAX_ENTRIES)]:
        del known[name]
