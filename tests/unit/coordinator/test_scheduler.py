"""The staleness rule holds under arbitrary schedules, for each order in which groups are trained."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway_coordinator.scheduler.choice import CHOICES, Group, Order, feasible, window
from headway_coordinator.scheduler.slots import BatchScheduler, OutOfOrderError

ORDERS: list[Order] = list(CHOICES)


def started(order: Order, size: int, lag: int, *, steps: int = 10) -> BatchScheduler:
    scheduler = BatchScheduler(size, lag, steps=steps, positions=100, order=order)
    while scheduler.start() is not None:
        pass
    return scheduler


class Change(NamedTuple):
    """What a step without groups changed."""

    size: int
    lag: int
    rolled_back: bool


class Schedule(RuleBasedStateMachine):
    """Groups begin and end, batches are cut, and steps are acknowledged in any valid order, with restarts."""

    @initialize(
        order=st.sampled_from(ORDERS),
        size=st.integers(1, 4),
        lag=st.integers(0, 3),
        positions=st.integers(4, 60),
    )
    def begin(self, order: Order, size: int, lag: int, positions: int) -> None:
        self.scheduler = BatchScheduler(size, lag, 12, positions, order)
        self.begun = Change(size, lag, rolled_back=False)
        self.changes: dict[int, Change] = {}
        """Changes by step, including steps that were rolled back, because these are taken again."""
        self.since: dict[int, int] = {}
        self.returned: dict[int, int] = {}
        self.trained: list[int] = []
        self.given: list[int] | None = None
        """Positions of the groups in the batch that the learner has."""
        self.taken: dict[int, list[int]] = {}
        """Positions of each step's groups, also of steps that were rolled back."""

    def running(self) -> list[int]:
        idle = [p for p, group in self.scheduler.active.items() if group.ended is None]
        return idle + sorted(self.scheduler.leaving)

    def age(self, position: int) -> int:
        """Steps with a gradient since the group started."""
        since, now = self.since[position], self.scheduler.step
        return now - since - sum(since < step <= now for step in self.changes)

    def in_force(self, step: int) -> Change:
        return next((self.changes[s] for s in sorted(self.changes, reverse=True) if s <= step), self.begun)

    @rule()
    def start(self) -> None:
        position = self.scheduler.start()
        if position is not None:
            self.since[position] = self.scheduler.step

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(self.running()))
        if data.draw(st.integers(0, 3)) and position not in self.scheduler.leaving:
            self.scheduler.finished(position)
        else:
            self.abandon(position)

    @precondition(lambda self: self.scheduler.step + 1 not in self.changes)
    @precondition(lambda self: self.scheduler.batch() is not None)
    @rule()
    def ask(self) -> None:
        self.given = self.scheduler.take()
        self.cancel_untrainable()

    @precondition(lambda self: self.scheduler.step + 1 not in self.taken)
    @precondition(lambda self: not self.scheduler.done)
    @precondition(lambda self: self.scheduler.cut is None and self.given is None)
    @rule(size=st.integers(1, 4), lag=st.integers(0, 3), rolled_back=st.booleans())
    def change(self, size: int, lag: int, rolled_back: bool) -> None:
        """Take a step with a remedy. A step that a rollback undid gets the same remedy again."""
        step = self.scheduler.step + 1
        change = self.changes.setdefault(step, Change(size, lag, rolled_back))
        late = self.scheduler.took_remedy(step, change.size, change.lag, rolled_back=change.rolled_back)
        for position in late.keys() - self.scheduler.leaving:
            self.returned[position] = self.returned.get(position, 0) + 1
        if change.rolled_back:
            assert all(self.since[p] >= step for p in self.scheduler.active), "of a policy that is gone"
        self.cancel_untrainable()

    @precondition(lambda self: self.given is not None)
    @rule()
    def acknowledge(self) -> None:
        assert self.given is not None
        assert len(set(self.given)) == len(self.given)
        assert len(self.given) == self.scheduler.batch_size or self.scheduler.step + 1 in self.taken
        for position in self.given:
            assert self.age(position) <= self.scheduler.max_staleness
            self.returned[position] = self.returned.get(position, 0) + 1
        if self.scheduler.order == "in_order":
            assert not self.trained or self.given[0] > max(self.trained)
        step = self.scheduler.step + 1
        assert self.taken.setdefault(step, self.given) == self.given, "made of other groups than before"
        self.scheduler.trained(step, self.given)
        self.trained += self.given
        self.given = None
        self.cancel_untrainable()

    def abandon(self, position: int) -> None:
        """Abandon a group, which held its slot until now."""
        assert position in self.scheduler.active or position in self.scheduler.leaving
        self.scheduler.abandoned(position)
        self.returned[position] = self.returned.get(position, 0) + 1
        self.cancel_untrainable()

    def cancel_untrainable(self) -> None:
        """End a group at once if no step can train it any more, as the job does."""
        if self.scheduler.over and self.running():
            self.abandon(self.running()[0])

    @rule(learner_too=st.booleans())
    def restart(self, learner_too: bool) -> None:
        """Running groups are lost, and finished ones are in the spool.

        The order in which they finished is forgotten.
        """
        self.successor(self.scheduler.step)
        if learner_too:
            self.given = None

    @precondition(lambda self: self.scheduler.step > 0)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """A person sets the pointer back, so the groups of later steps wait in the spool again."""
        to = data.draw(st.integers(0, self.scheduler.step - 1))
        again = {p for step in range(to + 1, self.scheduler.step + 1) for p in self.taken.get(step, [])}
        self.trained = [p for p in self.trained if p not in again]
        self.returned = {p: times for p, times in self.returned.items() if p not in again}
        self.successor(to, again)
        self.given = None

    def successor(self, step: int, again: frozenset[int] | set[int] = frozenset()) -> None:
        old = self.scheduler
        finished = {p for p, group in old.active.items() if group.ended is not None} | again
        now = self.in_force(step)
        self.scheduler = BatchScheduler(now.size, now.lag, old.steps, old.positions, old.order)
        undone = {number: groups for number, groups in self.taken.items() if number > step}
        idle = [number for number in self.changes if number <= step]
        since = {p: self.since[p] + sum(self.since[p] < number for number in idle) for p in finished}
        late = self.scheduler.restore(
            step,
            old.settled - again,
            since,
            undone,
            used=len(self.trained),
            changes=self.changes_again(step),
        )
        assert late == {}, "a scheduler that follows the rule leaves nothing that is too old"

    @invariant()
    def only_a_rollback_overbooks_slots(self) -> None:
        if not self.changes_again(self.scheduler.step):
            assert len(self.scheduler.active.keys() - self.pinned()) <= self.scheduler.slots

    @invariant()
    def a_slot_returns_exactly_once(self) -> None:
        assert set(self.returned.values()) <= {1}
        assert self.scheduler.settled == set(self.returned)
        assert not self.scheduler.settled & self.scheduler.active.keys()

    def changes_again(self, step: int) -> bool:
        """Whether a later step repeats a change that a rollback undid."""
        return any(number > step for number in self.changes)

    def pinned(self) -> set[int]:
        """Positions of the groups of steps that a rollback undid."""
        return {p for groups in self.scheduler.undone.values() for p in groups}

    @invariant()
    def nothing_is_kept_that_no_step_can_train(self) -> None:
        if self.changes_again(self.scheduler.step):
            return
        ahead = {step for step in self.scheduler.undone if step > self.scheduler.step}
        left = self.scheduler.steps - self.scheduler.step - len(ahead)
        assert len(self.scheduler.active.keys() - self.pinned()) <= left * self.scheduler.batch_size

    @invariant()
    def for_what_runs_there_is_a_batch_to_come(self) -> None:
        if self.running():
            cut = self.scheduler.cut or []
            leaving = {*self.running()} <= self.scheduler.leaving
            assert leaving or self.scheduler.step + bool(cut) < self.scheduler.steps
            assert leaving or self.scheduler.left - len(cut) >= self.scheduler.batch_size

    @invariant()
    def where_no_batch_can_be_cut_nothing_begins(self) -> None:
        if self.scheduler.over:
            assert copy.deepcopy(self.scheduler).start() is None
        if self.scheduler.done:
            assert self.scheduler.batch() is None

    @invariant()
    def what_the_learner_works_on_is_accepted(self) -> None:
        assert self.given is None or self.scheduler.accepts(self.scheduler.step + 1, self.given)

    @invariant()
    def there_is_always_a_way_on(self) -> None:
        later = copy.deepcopy(self.scheduler)
        while later.step + 1 in self.changes:
            again = self.changes[later.step + 1]
            later.took_remedy(later.step + 1, again.size, again.lag, rolled_back=again.rolled_back)
        while not later.done and later.batch() is None:
            idle = [p for p, group in later.active.items() if group.ended is None]
            assert idle or later.leaving or later.free, "nothing runs or may start, and no batch can be cut"
            for position in sorted(later.leaving):
                later.abandoned(position)
            for position in idle:
                later.finished(position)
            later.start()


TestSchedule = Schedule.TestCase


@pytest.mark.parametrize("order", ORDERS)
@given(
    batch_size=st.integers(1, 4),
    max_staleness=st.integers(0, 3),
    steps=st.integers(1, 6),
    epochs_rows=st.integers(1, 30),
)
def test_a_job_without_failures_takes_every_step_its_data_allows(
    order: Order, batch_size: int, max_staleness: int, steps: int, epochs_rows: int
) -> None:
    possible = min(steps, epochs_rows // batch_size)
    scheduler = BatchScheduler(batch_size, max_staleness, possible, epochs_rows, order)
    while not scheduler.done:
        while (position := scheduler.start()) is not None:
            scheduler.finished(position)
        batch = scheduler.take()
        assert batch is not None
        scheduler.trained(scheduler.step + 1, batch)
    assert scheduler.step == possible
    assert not scheduler.active


@pytest.mark.parametrize("order", ORDERS)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 4), lag=st.integers(0, 3))
def test_slow_groups_are_trained_in_time(order: Order, seed: int, size: int, lag: int) -> None:
    """A simulation with a clock, log-normal latencies and lost groups.

    The learner takes each batch at once.
    """
    chance = random.Random(seed)
    scheduler = BatchScheduler(size, lag, steps=12, positions=80, order=order)
    ends: dict[int, float] = {}
    since: dict[int, int] = {}
    now = 0.0
    while not scheduler.done:
        while (position := scheduler.start()) is not None:
            ends[position], since[position] = now + chance.lognormvariate(0, 2), scheduler.step
        if (batch := scheduler.take()) is not None:
            assert max(scheduler.step - since[position] for position in batch) <= lag
            scheduler.trained(scheduler.step + 1, batch)
            continue
        position = min(ends, key=ends.__getitem__)
        now = ends.pop(position)
        (scheduler.abandoned if chance.random() < 0.1 else scheduler.finished)(position)
    assert scheduler.step == 12 or scheduler.left < size


@pytest.mark.parametrize("order", ORDERS)
def test_zero_lag_starts_no_group_before_step_is_acknowledged(order: Order) -> None:
    scheduler = BatchScheduler(batch_size=2, max_staleness=0, steps=3, positions=10, order=order)
    assert [scheduler.start(), scheduler.start(), scheduler.start()] == [0, 1, None]
    scheduler.finished(1)
    assert scheduler.batch() is None
    scheduler.finished(0)
    assert scheduler.take() == [0, 1]
    assert scheduler.start() is None
    scheduler.trained(1, [1, 0])
    assert scheduler.start() == 2


def test_in_order_waits_for_a_group_lost_with_its_coordinator() -> None:
    scheduler = BatchScheduler(batch_size=2, max_staleness=1, steps=5, positions=10)
    scheduler.restore(step=1, settled=[0, 1], finished={3: 0, 4: 1})
    assert scheduler.batch() is None
    assert scheduler.start() == 2
    assert scheduler.batch() is None
    scheduler.finished(2)
    assert scheduler.batch() == [2, 3]


def test_in_order_restarts_a_lost_group_that_a_later_one_needs() -> None:
    """There are four groups for two batches.

    Group 1 was abandoned, and group 2 was lost with its coordinator.
    """
    scheduler = BatchScheduler(batch_size=2, max_staleness=1, steps=12, positions=4)
    scheduler.restore(step=0, settled=[1], finished={0: 0, 3: 0})
    assert scheduler.batch() is None
    assert scheduler.start() == 2
    scheduler.finished(2)
    assert scheduler.batch() == [0, 2]


@pytest.mark.parametrize(
    ("order", "expected"), [("in_order", None), ("windowed", [1, 2]), ("ready_first", [4, 5])]
)
def test_each_sampler_prefers_its_own_groups(order: Order, expected: list[int] | None) -> None:
    """Batch size 2, staleness 2: of six running groups, 0 is slow, and 4 and 5 finished first."""
    scheduler = started(order, 2, 2)
    for position in (5, 4, 2, 1, 3):
        scheduler.finished(position)
    assert scheduler.batch() == expected


def test_a_skipped_group_is_eventually_waited_for() -> None:
    """Batch size 1, staleness 1: group 0 may be skipped once. Then no group is trained before it."""
    scheduler = started("ready_first", 1, 1)
    scheduler.finished(1)
    assert scheduler.take() == [1]
    scheduler.trained(1, [1])
    assert scheduler.start() == 2
    scheduler.finished(2)
    assert scheduler.batch() is None
    scheduler.finished(0)
    assert scheduler.batch() == [0]


def test_a_batch_once_given_does_not_change() -> None:
    scheduler = started("ready_first", 1, 1)
    scheduler.finished(1)
    assert scheduler.take() == [1]
    scheduler.finished(0)
    assert scheduler.take() == scheduler.batch() == [1]
    assert not scheduler.accepts(1, [0])


def test_an_undone_step_gets_the_groups_it_had() -> None:
    scheduler = BatchScheduler(batch_size=1, max_staleness=2, steps=5, positions=10, order="ready_first")
    waiting = dict.fromkeys([0, 1, 2], 0)
    scheduler.restore(step=0, settled=[], finished=waiting, undone={1: [2], 2: [1], 3: [7]})
    for step, expected in ((1, [2]), (2, [1]), (3, [0])):
        assert not scheduler.accepts(step, [9])
        assert scheduler.take() == expected, "7 is not in the spool: that step is made of what there is"
        scheduler.trained(step, expected)


def test_a_successor_accepts_its_predecessors_batch() -> None:
    scheduler = BatchScheduler(batch_size=1, max_staleness=1, steps=5, positions=10, order="ready_first")
    scheduler.restore(step=0, settled=[], finished={0: 0, 1: 0})
    assert scheduler.accepts(1, [1])
    assert not scheduler.accepts(1, [2]), "it never finished"
    assert not scheduler.accepts(1, [0, 1]), "too many"
    assert not scheduler.accepts(2, [1]), "another step"
    assert scheduler.take() == [0]
    assert not scheduler.accepts(1, [1]), "this one has given another"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda scheduler: scheduler.trained(1, [1]),
        lambda scheduler: scheduler.trained(2, [0]),
        lambda scheduler: scheduler.finished(0),
        lambda scheduler: scheduler.abandoned(7),
    ],
)
def test_operations_that_the_state_forbids_are_refused(wrong: Callable[[BatchScheduler], None]) -> None:
    scheduler = started("in_order", 1, 1)
    scheduler.finished(0)
    with pytest.raises(OutOfOrderError):
        wrong(scheduler)


@pytest.mark.parametrize(("size", "lag", "expected"), [(4, 0, 4), (4, 1, 6), (4, 3, 10), (1, 1, 1)])
def test_the_window_lies_between_a_batch_and_all_slots(size: int, lag: int, expected: int) -> None:
    assert window(size, lag) == expected
    assert size <= expected <= (lag + 1) * size


def test_feasible_means_all_remaining_groups_train_in_time() -> None:
    groups = [Group(0, 0, 1), Group(1, 0, 2), Group(2, 1, 3), Group(3, 1, 4)]
    assert feasible([0, 1], groups, 2)
    assert not feasible([0, 2], groups, 2), "1 would be too old"
    assert feasible([], groups[2:], 2)
    assert not feasible([], [*groups[2:], Group(4, 1, None)], 2), "three for two places"


@pytest.mark.parametrize("order", ORDERS)
@given(data=st.data())
def test_groups_kept_from_a_predecessor_are_trained_in_time(order: Order, data: st.DataObject) -> None:
    """A predecessor thought dead may have gone on writing, so groups may have any age and number."""
    size, lag, step = (data.draw(st.integers(low, 4)) for low in (1, 0, 0))
    since = data.draw(st.dictionaries(st.integers(0, 25), st.integers(step - 6, step), max_size=20))
    scheduler = BatchScheduler(size, lag, steps=step + 12, positions=80, order=order)
    late = scheduler.restore(step, (), since)
    assert late.keys() == scheduler.restore(step, (), since).keys()
    assert not scheduler.active.keys() & set(late)
    assert scheduler.settled == set(late)
    while not scheduler.done:
        while (position := scheduler.start()) is not None:
            since[position] = scheduler.step
            scheduler.finished(position)
        batch = scheduler.take()
        assert batch is not None
        assert max(scheduler.step - since[position] for position in batch) <= lag
        scheduler.trained(scheduler.step + 1, batch)


@pytest.mark.parametrize("order", CHOICES)
def test_undone_step_with_other_groups_changes_all_later_ones(order: Order) -> None:
    """The other groups may have belonged to the later steps."""
    scheduler = BatchScheduler(batch_size=1, max_staleness=1, steps=10, positions=20, order=order)
    scheduler.restore(2, {0, 1}, {2: 2, 3: 3}, {4: [2], 5: [3]}, used=2, changes=True)
    assert scheduler.took_remedy(3, 1, 1, rolled_back=True) == {2: "RolledBack"}
    assert scheduler.take() == [3]
    scheduler.trained(4, [3])
    assert scheduler.batch() is None
    assert scheduler.start() == 4
    scheduler.finished(4)
    assert scheduler.take() == [4]
    scheduler.restore(3, {0, 1, 2}, {4: 3}, {4: [3], 5: [4]}, used=2)
    assert scheduler.undone == {}, "as well where one of its groups is not there any more"


@pytest.mark.parametrize("order", CHOICES)
def test_lag_bound_accepted_on_retry_applies_to_undone_steps(order: Order) -> None:
    scheduler = BatchScheduler(batch_size=1, max_staleness=2, steps=10, positions=20, order=order)
    scheduler.restore(2, {0, 1}, {2: 2, 3: 2}, {4: [2], 5: [3]}, used=2, changes=True)
    assert scheduler.took_remedy(3, 1, 0) == {3: "TooOld"}
    assert scheduler.take() == [2]
    scheduler.trained(4, [2])
    assert scheduler.batch() is None
    assert scheduler.start() == 4


@pytest.mark.parametrize("order", ["windowed", "ready_first"])
def test_larger_batch_accepted_on_retry_applies_to_undone_steps(order: Order) -> None:
    """A smaller batch would leave more groups than later batches can take in time."""
    scheduler = BatchScheduler(batch_size=1, max_staleness=1, steps=10, positions=20, order=order)
    scheduler.restore(2, {0, 1}, {2: 2, 3: 2}, {4: [2], 5: [3]}, used=2, changes=True)
    assert scheduler.took_remedy(3, 2, 1) == {}
    while (position := scheduler.start()) is not None:
        scheduler.finished(position)
    assert scheduler.take() == [2, 3]
