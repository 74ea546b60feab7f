"""The staleness rule as a state machine: no clock, no I/O, no tokens.

A training step takes P groups. At most B = (S + 1) * P groups are *active*: started, not abandoned, and
not yet trained by the learner. Groups start in data order. The `Choice` of `choice.py` decides which finished
groups make the next batch. With each choice, no token is trained more than S steps after the version that
sampled it. docs/staleness.md has the derivation, and a property test drives all three.

A batch is chosen when the learner first asks for it, and does not change until it is trained. Groups that
finish meanwhile wait for the next one. A step that a rollback undid gets its earlier groups again, which are
trained and billed as that step's.

A step may be taken without groups: a remedy (docs/remedies.md). No group ages by it, because there was no
gradient. If it changes P or S, or goes back to older weights, groups that no step can train any more are
abandoned.

A slot becomes free exactly once: when its group is abandoned or trained. A uniform group keeps its place in
its batch, where it has no gradient, and keeps its slot until that batch is trained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headway_coordinator.scheduler.choice import CHOICES, Group, Order, feasible

Late = Literal["TooOld", "NoStepLeft", "RolledBack"]
"""Why a group cannot be trained any more, in the names of `AbandonReason`."""


class OutOfOrderError(Exception):
    """An event that the state does not allow. It is a bug in the caller, so do not continue after it."""


@dataclass
class Active:
    """A group that holds a slot."""

    since: int
    """The learner's step when the group started: no older version sampled any of its tokens. Each later step
    without groups adds 1, so the difference to the learner's step counts only steps with a gradient."""
    ended: int | None = None
    """The group's number in the order of finishing; None while it runs."""


@dataclass
class BatchScheduler:
    """Slots and batches of the training groups.

    Groups are known by their position in the seeded data order.
    """

    batch_size: int
    """P: groups a step."""
    max_staleness: int
    """S: how many steps a trained token may be older than the learner."""
    steps: int
    """Maximum steps in all. A group that no step could train is not started."""
    positions: int
    """Groups the data can yield in all epochs."""
    order: Order = "in_order"
    step: int = 0
    """Steps the learner has taken."""
    active: dict[int, Active] = field(default_factory=dict)
    """Groups that hold a slot, by position."""
    settled: set[int] = field(default_factory=set)
    """Positions trained or abandoned: they never start again."""
    used: int = 0
    """The number of groups that were trained."""
    leaving: set[int] = field(default_factory=set)
    """Positions abandoned while they run. Each holds its slot until it has ended."""
    cursor: int = 0
    cut: list[int] | None = None
    """The batch that the learner was given for the next step."""
    undone: dict[int, list[int]] = field(default_factory=dict)
    """Step -> the groups that it had before a rollback, ascending."""
    _finished: int = 0

    @property
    def slots(self) -> int:
        """B: groups that may be active at once."""
        return (self.max_staleness + 1) * self.batch_size

    @property
    def free(self) -> int:
        """How many groups may start now."""
        if self.over:
            return 0
        # Abandoned groups are not subtracted: with `in_order`, finished groups may wait for an earlier one
        # that has not begun.
        batches = min(self.steps - self.step, (self.positions - self.used) // self.batch_size)
        wanted = batches * self.batch_size
        return max(0, min(self.slots, wanted) - len(self.active) - len(self.leaving))

    @property
    def total(self) -> int:
        """The expected number of steps, if nothing more is abandoned or changed. The data may end first."""
        return self.step + max(0, min(self.steps - self.step, self.left // self.batch_size))

    @property
    def exhausted(self) -> bool:
        """Whether the data has no group left to start."""
        self._advance()
        return self.cursor >= self.positions

    @property
    def left(self) -> int:
        """Groups that are neither trained nor abandoned, started or not."""
        return self.positions - len(self.settled) - len(self.leaving)

    @property
    def done(self) -> bool:
        """Whether no further batch can be cut: every step is taken, or the data cannot fill another."""
        return self._last(self.step, self.left)

    @property
    def over(self) -> bool:
        """Whether no batch can be cut after the current one, so nothing can train what still runs."""
        if self.cut is None:
            return self.done
        return self._last(self.step + 1, self.left - len(self.cut))

    def start(self) -> int | None:
        """Take a slot for the next position in data order; None while no slot or no data is left."""
        if self.free == 0 or self.exhausted:
            return None
        position = self.cursor
        self.active[position] = Active(since=self.step)
        self._advance()
        return position

    def finished(self, position: int) -> None:
        """Note that a running group has finished its episodes."""
        self._running(position).ended = self._finished
        self._finished += 1

    def abandoned(self, position: int) -> None:
        """Remove a running group that will not be trained. Its slot becomes free."""
        if position in self.leaving:
            self.leaving.remove(position)
            self.settled.add(position)
            return
        self._running(position)
        del self.active[position]
        self.settled.add(position)

    def batch(self) -> list[int] | None:
        """Positions of the next batch, ascending; None while it cannot be cut. Asking changes nothing."""
        if (settled := self.cut or self.undone.get(self.step + 1)) is not None:
            return settled
        chosen = CHOICES[self.order](self._groups(), self.batch_size, self.max_staleness)
        return None if chosen is None or self._out_of_order(chosen) else chosen

    def take(self) -> list[int] | None:
        """Cut the next batch, and keep it until it is trained."""
        self.cut = self.batch()
        return self.cut

    def accepts(self, step: int, positions: Iterable[int]) -> bool:
        """Whether the learner may report `step` with these groups.

        They must be the groups of the batch that this process gave the learner. If this process gave none, a
        predecessor did, and may have seen other groups finish first. Then any feasible batch is accepted.
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
        """Note that the learner took `step` with exactly the batch that was cut for it."""
        positions = list(positions)
        if not self.accepts(step, positions):
            raise OutOfOrderError(f"step {step} with groups {positions} does not follow step {self.step}")
        for position in positions:
            del self.active[position]
        self.settled.update(positions)
        self.used += len(positions)
        self.step = step
        self.cut = None

    def took_remedy(
        self, step: int, batch_size: int, max_staleness: int, *, rolled_back: bool = False
    ) -> dict[int, Late]:
        """Note that the learner took `step` without groups. P and S have these values from now on.

        Returns the groups that are abandoned because of it. Finished ones are settled. Running ones are
        `leaving`, and must be ended.

        Args:
            rolled_back: whether the step went back to older weights. If so, the policy that sampled earlier
                groups is gone.
        """
        if step != self.step + 1 or self.cut is not None:
            raise OutOfOrderError(f"step {step} without groups does not follow step {self.step}")
        before = [p for p, group in self.active.items() if group.since < step]
        gone: dict[int, Late] = dict.fromkeys(before if rolled_back else (), "RolledBack")
        self._give_up(gone)
        for group in self.active.values():
            group.since += group.since < step
        self.step, self.batch_size, self.max_staleness = step, batch_size, max_staleness
        self._remake(self._unfit())
        return gone | self._give_up(self._late())

    def restore(
        self,
        step: int,
        settled: Iterable[int],
        finished: Mapping[int, int],
        undone: Mapping[int, Collection[int]] | None = None,
        *,
        used: int = 0,
        changes: bool = False,
    ) -> dict[int, Late]:
        """Restore the state after a restart: what was trained or abandoned, and what waits in the spool.

        Returns the waiting groups that cannot be trained in time, which are abandoned. A predecessor leaves
        no such group, unless it was thought dead and still wrote.

        Args:
            step: the newest step taken.
            settled: positions that never start again.
            finished: `Active.since` of each waiting group, by position: no token of it is older.
            undone: positions of each step with groups that a rollback undid.
            used: groups trained; they are among the settled.
            changes: whether a step without groups will be taken again. Until then every batch is one of
                `undone`. Once that step is taken, late groups are looked for.
        """
        self.step = step
        self.settled, self.used = set(settled), used
        self.leaving = set()
        self.active = {p: Active(finished[p], n) for n, p in enumerate(sorted(finished))}
        self._finished = len(finished)
        self.cursor = 0
        self.cut = None
        self.undone = {number: sorted(positions) for number, positions in (undone or {}).items()}
        self._remake(number for number, of in self.undone.items() if not finished.keys() >= set(of))
        late = self._give_up({} if changes else self._late())
        self._advance()
        return late

    def _last(self, step: int, left: int) -> bool:
        return step >= self.steps or left < self.batch_size

    def _late(self) -> dict[int, Late]:
        """Groups that would be too old in any batch, or that no batch has room for.

        The most urgent groups get their places first.
        """
        ahead = [step for step in self.undone if step > self.step]
        again = {position for step in ahead for position in self.undone[step]}
        late: dict[int, Late] = {}
        place = len(ahead) * self.batch_size
        for position in self._queue():
            if position in again:
                continue
            group, batch = self.active.get(position), place // self.batch_size
            if group is not None and group.since + self.max_staleness - self.step < batch:
                late[position] = "TooOld"
            elif group is not None and batch >= self.steps - self.step:
                late[position] = "NoStepLeft"
            else:
                place += 1
        return late

    def _give_up(self, late: dict[int, Late]) -> dict[int, Late]:
        """Remove these groups from the order.

        Undone steps with such groups get other groups. Each later undone step gets others too, because its
        own may go to an earlier one.
        """
        for position in late:
            running = self.active.pop(position).ended is None
            (self.leaving if running else self.settled).add(position)
        self._remake(step for step, of in self.undone.items() if late.keys() & set(of))
        return late

    def _unfit(self) -> Iterator[int]:
        """Undone steps that do not have P groups, or come too late for theirs.

        Undone steps can be unfit if a remedy was refused before the rollback and is taken now. The search
        ends at the next step without groups, which may change P and S.
        """
        number = self.step + 1
        while (positions := self.undone.get(number)) is not None:
            late = any(self.active[p].since + self.max_staleness < number - 1 for p in positions)
            if late or len(positions) != self.batch_size:
                yield number
            number += 1

    def _remake(self, steps: Iterable[int]) -> None:
        first = min(steps, default=self.steps + 1)
        self.undone = {step: of for step, of in self.undone.items() if step < first}

    def _queue(self) -> list[int]:
        """The order of training if no group is lost."""
        if self.order == "in_order":  # earlier positions of the data are waited for, started or not
            every = range(max(self.active, default=-1) + 1)
            return [p for p in every if p not in self.settled and p not in self.leaving]
        return sorted(self.active, key=lambda position: (self.active[position].since, position))

    def _groups(self) -> list[Group]:
        return [Group(p, a.since + self.max_staleness - self.step, a.ended) for p, a in self.active.items()]

    def _advance(self) -> None:
        while self.cursor in self.settled or self.cursor in self.active or self.cursor in self.leaving:
            self.cursor += 1

    def _out_of_order(self, chosen: list[int]) -> bool:
        """Whether the choice skips a position that must start again, because it ran when the process died."""
        self._advance()
        return self.order == "in_order" and self.cursor < min(chosen[-1], self.positions)

    def _running(self, position: int) -> Active:
        group = self.active.get(position)
        if group is None or group.ended is not None:
            raise OutOfOrderError(f"group {position} is not running")
        return group
