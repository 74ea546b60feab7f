"""The staleness rule as a state machine: no clock, no I/O, no tokens.

A training step takes P groups. At most B = (S + 1) * P groups are *active*: started, and neither abandoned
nor trained by the learner. Groups start in data order; which of the finished make the next batch is the
`Choice` of `choice.py`. Under each of them no token is trained more than S steps after the version that
sampled it; docs/staleness.md has the derivation, and a property test drives all three.

A batch is chosen when the learner first asks for it and stays as it is until it is trained: what
finishes meanwhile waits for the next one. A step that was undone by a rollback gets the groups it had: they
are trained, and billed, as that step's.

A slot returns exactly once: when its group is abandoned, or when it is trained. A group whose rewards
are uniform keeps its place in its batch, where it has no gradient, and its slot until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headway_coordinator.sampler.choice import CHOICES, Group, Order, feasible


class OutOfOrder(Exception):
    """An event that the state does not allow: a bug in the caller, never a condition to ride out."""


@dataclass
class Active:
    """A group that holds a slot."""

    since: int
    """Learner's step when it started: no token of it was sampled by an older version."""
    ended: int | None = None
    """When it finished, in the order of finishing; None while it runs."""


@dataclass
class Sampler:
    """Slots and batches of the training groups, known by their position in the seeded data order."""

    batch_size: int
    """P: groups a step."""
    max_lag: int
    """S: how many steps older than the learner a trained token may be."""
    steps: int
    """Steps in all; no group is started that no step can train."""
    positions: int
    """Groups the data can yield in all epochs."""
    order: Order = "in_order"
    step: int = 0
    """Steps the learner has taken."""
    active: dict[int, Active] = field(default_factory=dict)
    """By position."""
    settled: set[int] = field(default_factory=set)
    """Positions trained or abandoned: they never start again."""
    cursor: int = 0
    cut: list[int] | None = None
    """The batch that the learner was given for the next step."""
    undone: dict[int, list[int]] = field(default_factory=dict)
    """Step -> groups it was made of before a rollback, ascending."""
    _finished: int = 0

    @property
    def slots(self) -> int:
        """B: groups that may be active at once."""
        return (self.max_lag + 1) * self.batch_size

    @property
    def free(self) -> int:
        """How many groups may start now."""
        if self.over:
            return 0
        wanted = (self.steps - self.step) * self.batch_size
        return max(0, min(self.slots, wanted) - len(self.active))

    @property
    def exhausted(self) -> bool:
        """Whether the data has no group left to start."""
        self._advance()
        return self.cursor >= self.positions

    @property
    def left(self) -> int:
        """Groups that are neither trained nor abandoned, started or not."""
        return self.positions - len(self.settled)

    @property
    def done(self) -> bool:
        """Whether no further batch can be cut: every step is taken, or the data cannot fill another."""
        return self._last(self.step, self.left)

    @property
    def over(self) -> bool:
        """Whether no further batch can be cut but the one that stands: nothing can train what still runs."""
        if self.cut is None:
            return self.done
        return self._last(self.step + 1, self.left - self.batch_size)

    def start(self) -> int | None:
        """Take a slot for the next position in data order; None while no slot or no data is left."""
        if self.free == 0 or self.exhausted:
            return None
        position = self.cursor
        self.active[position] = Active(since=self.step)
        self._advance()
        return position

    def finished(self, position: int) -> None:
        """A running group has its episodes."""
        self._running(position).ended = self._finished
        self._finished += 1

    def abandoned(self, position: int) -> None:
        """Nothing can be trained on a running group: it leaves the order and returns its slot."""
        self._running(position)
        del self.active[position]
        self.settled.add(position)

    def batch(self) -> list[int] | None:
        """Positions of the next batch, ascending; None while it cannot be cut. Asking changes nothing."""
        if (settled := self.cut or self.undone.get(self.step + 1)) is not None:
            return settled
        chosen = CHOICES[self.order](self._groups(), self.batch_size, self.max_lag)
        return None if chosen is None or self._out_of_order(chosen) else chosen

    def take(self) -> list[int] | None:
        """The next batch, which stands from now on."""
        self.cut = self.batch()
        return self.cut

    def accepts(self, step: int, positions: Iterable[int]) -> bool:
        """Whether the learner may report `step` with these groups.

        They are those of the batch it was given, by this process or, where this one has given none, by a
        predecessor, which saw other groups finish first.
        """
        given = sorted(positions)
        if step != self.step + 1:
            return False
        if self.cut or step in self.undone or self.order == "in_order":
            return given == self.batch()
        ended = all(p in self.active and self.active[p].ended is not None for p in given)
        distinct = len(set(given)) == self.batch_size == len(given)
        return ended and distinct and feasible(given, self._groups(), self.batch_size)

    def trained(self, step: int, positions: Iterable[int]) -> None:
        """The learner took `step` with exactly the batch that was cut for it."""
        positions = list(positions)
        if not self.accepts(step, positions):
            raise OutOfOrder(f"step {step} with groups {positions} does not follow step {self.step}")
        for position in positions:
            del self.active[position]
        self.settled.update(positions)
        self.step = step
        self.cut = None

    def restore(
        self,
        step: int,
        settled: Iterable[int],
        finished: Mapping[int, int],
        undone: Mapping[int, Collection[int]] | None = None,
    ) -> list[int]:
        """State after a restart: what was trained or abandoned, and what waits in the spool.

        Returns the waiting groups that cannot be trained in time: they are abandoned. A process that keeps to
        this class leaves none; one that was thought dead may.

        Args:
            step: the newest step taken.
            settled: positions that never start again.
            finished: the oldest version's step of each waiting group, by position.
            undone: positions of each step that a rollback undid.
        """
        self.step = step
        self.settled = set(settled)
        self.active = {p: Active(finished[p], n) for n, p in enumerate(sorted(finished))}
        self._finished = len(finished)
        self.cursor = 0
        self.cut = None
        self.undone = {
            number: sorted(positions)
            for number, positions in (undone or {}).items()
            if finished.keys() >= set(positions)
        }
        late = self._overdue()
        for position in late:
            del self.active[position]
        self.settled.update(late)
        self._advance()
        return late

    def _last(self, step: int, left: int) -> bool:
        return step >= self.steps or left < self.batch_size

    def _overdue(self) -> list[int]:
        """Waiting groups that would be too old in any batch, the most urgent of the others going first."""
        again = [position for step in sorted(self.undone) for position in self.undone[step]]
        place, late = len(again), []
        for position in self._queue():
            if position in again:
                continue
            group = self.active.get(position)
            if group is not None and group.since + self.max_lag - self.step < place // self.batch_size:
                late.append(position)
            else:
                place += 1
        return late

    def _queue(self) -> list[int]:
        """Who is trained after whom, where nobody is lost."""
        if self.order == "in_order":  # what comes before in the data is waited for, started or not
            return [p for p in range(max(self.active, default=-1) + 1) if p not in self.settled]
        return sorted(self.active, key=lambda position: (self.active[position].since, position))

    def _groups(self) -> list[Group]:
        return [Group(p, a.since + self.max_lag - self.step, a.ended) for p, a in self.active.items()]

    def _advance(self) -> None:
        while self.cursor in self.settled or self.cursor in self.active:
            self.cursor += 1

    def _out_of_order(self, chosen: list[int]) -> bool:
        """After a restart, a position that was running when the process died comes first again."""
        self._advance()
        return self.order == "in_order" and self.cursor < min(chosen[-1], self.positions)

    def _running(self, position: int) -> Active:
        group = self.active.get(position)
        if group is None or group.ended is not None:
            raise OutOfOrder(f"group {position} is not running")
        return group
