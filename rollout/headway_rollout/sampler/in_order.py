"""The `in_order` staleness rule as a state machine: no clock, no I/O, no tokens.

A training step takes P groups. At most B = (S + 1) * P groups are *active*: started, and neither abandoned
nor acknowledged by the learner. Groups start in data order; a batch is the P oldest active groups, and is
cut once all of them have finished, so that fast prompts are not preferred.

Why the lag never exceeds S: when a group starts at learner step s, at most B - 1 active groups are older.
Every step acknowledged before the group's own batch is cut removes P groups older than it, and
floor((B - 1) / P) = S. So its batch produces step s + S + 1 at the latest, from version s + S, and no token
of the group was sampled by a version below s. An abandoned group only shortens the queue before it.

A slot returns exactly once: when its group is abandoned, or when it is acknowledged. A group whose rewards
are uniform (`filtered`) keeps its place in its batch, where it has no gradient, and its slot until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Where an active group stands."""

    RUNNING = "running"
    FINISHED = "finished"
    FILTERED = "filtered"


class OutOfOrder(Exception):
    """An event that the state does not allow: a bug in the caller, never a condition to ride out."""


@dataclass
class InOrder:
    """Slots and order of the training groups, known by their position in the seeded data order."""

    batch_size: int
    """P: groups a step."""
    max_lag: int
    """S: how many steps older than the learner a trained token may be."""
    steps: int
    """Steps in all; no group is started that no step can train."""
    positions: int
    """Groups the data can yield in all epochs."""
    step: int = 0
    """Steps the learner has acknowledged."""
    active: dict[int, Phase] = field(default_factory=dict)
    """Active groups by position, in start order."""
    settled: set[int] = field(default_factory=set)
    """Positions acknowledged or abandoned: they never start again."""
    cursor: int = 0

    @property
    def slots(self) -> int:
        """B: groups that may be active at once."""
        return (self.max_lag + 1) * self.batch_size

    @property
    def free(self) -> int:
        """How many groups may start now."""
        wanted = (self.steps - self.step) * self.batch_size
        return max(0, min(self.slots, wanted) - len(self.active))

    @property
    def exhausted(self) -> bool:
        """Whether the data has no group left to start."""
        self._advance()
        return self.cursor >= self.positions

    @property
    def done(self) -> bool:
        """Whether no further batch can be cut: every step is taken, or the data cannot fill another."""
        if self.step >= self.steps:
            return True
        return self.exhausted and len(self.active) < self.batch_size

    def start(self) -> int | None:
        """Take a slot for the next position in data order; None while no slot or no data is left."""
        if self.free == 0 or self.exhausted:
            return None
        position = self.cursor
        self.active[position] = Phase.RUNNING
        self._advance()
        return position

    def finished(self, position: int) -> None:
        """A running group has its episodes, and their rewards differ."""
        self._move(position, Phase.FINISHED)

    def filtered(self, position: int) -> None:
        """A running group has its episodes, and their rewards are all alike."""
        self._move(position, Phase.FILTERED)

    def abandoned(self, position: int) -> None:
        """A running group has too few scored episodes: it leaves the order and returns its slot."""
        self._expect_running(position)
        del self.active[position]
        self.settled.add(position)

    def batch(self) -> list[int] | None:
        """The P oldest active groups, once all of them are finished. Cutting changes nothing by itself."""
        oldest = sorted(self.active)[: self.batch_size]
        if len(oldest) < self.batch_size or any(self.active[p] is Phase.RUNNING for p in oldest):
            return None
        return None if self._older_unstarted(oldest[-1]) else oldest

    def acknowledged(self, step: int, positions: Iterable[int]) -> None:
        """The learner made `step` durable with exactly the batch that was cut for it."""
        positions = list(positions)
        if step != self.step + 1 or sorted(positions) != self.batch():
            raise OutOfOrder(f"step {step} with groups {positions} does not follow step {self.step}")
        for position in positions:
            del self.active[position]
        self.settled.update(positions)
        self.step = step

    def restore(self, step: int, settled: Iterable[int], finished: Iterable[int]) -> None:
        """State after a restart: what was acknowledged or abandoned, and what waits in the spool."""
        self.step = step
        self.settled = set(settled)
        self.active = dict.fromkeys(sorted(finished), Phase.FINISHED)
        self.cursor = 0
        self._advance()

    def _advance(self) -> None:
        while self.cursor in self.settled or self.cursor in self.active:
            self.cursor += 1

    def _older_unstarted(self, position: int) -> bool:
        """After a restart, a position that was running when the process died comes first again."""
        self._advance()
        return self.cursor < min(position, self.positions)

    def _expect_running(self, position: int) -> None:
        if self.active.get(position) is not Phase.RUNNING:
            raise OutOfOrder(f"group {position} is not running")

    def _move(self, position: int, phase: Phase) -> None:
        self._expect_running(position)
        self.active[position] = phase
