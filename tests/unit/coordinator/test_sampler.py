"""The staleness rule, driven by arbitrary schedules under each choice of who is trained next."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway_coordinator.sampler.choice import CHOICES, Group, Order, feasible, window
from headway_coordinator.sampler.slots import BatchScheduler, OutOfOrder

ORDERS: list[Order] = list(CHOICES)


def started(order: Order, size: int, lag: int, *, steps: int = 10) -> BatchScheduler:
    sampler = BatchScheduler(size, lag, steps=steps, positions=100, order=order)
    while sampler.start() is not None:
        pass
    return sampler


class Change(NamedTuple):
    """What a step without groups brought."""

    size: int
    lag: int
    rolled_back: bool


class Schedule(RuleBasedStateMachine):
    """Starts, ends, cuts, changes and acknowledges in any order the rule allows, with restarts."""

    @initialize(
        order=st.sampled_from(ORDERS),
        size=st.integers(1, 4),
        lag=st.integers(0, 3),
        positions=st.integers(4, 60),
    )
    def begin(self, order: Order, size: int, lag: int, positions: int) -> None:
        self.sampler = BatchScheduler(size, lag, 12, positions, order)
        self.begun = Change(size, lag, rolled_back=False)
        self.changes: dict[int, Change] = {}
        """By step; also of a step that was rolled back, for it is taken anew."""
        self.since: dict[int, int] = {}
        self.returned: dict[int, int] = {}
        self.trained: list[int] = []
        self.given: list[int] | None = None
        """What the learner is training on."""
        self.taken: dict[int, list[int]] = {}
        """What each step was made of, also after a rollback of it."""

    def running(self) -> list[int]:
        idle = [p for p, group in self.sampler.active.items() if group.ended is None]
        return idle + sorted(self.sampler.leaving)

    def age(self, position: int) -> int:
        """Steps with a gradient since a group started."""
        since, now = self.since[position], self.sampler.step
        return now - since - sum(since < step <= now for step in self.changes)

    def in_force(self, step: int) -> Change:
        return next((self.changes[s] for s in sorted(self.changes, reverse=True) if s <= step), self.begun)

    @rule()
    def start(self) -> None:
        position = self.sampler.start()
        if position is not None:
            self.since[position] = self.sampler.step

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(self.running()))
        if data.draw(st.integers(0, 3)) and position not in self.sampler.leaving:
            self.sampler.finished(position)
        else:
            self.abandon(position)

    @precondition(lambda self: self.sampler.step + 1 not in self.changes)
    @precondition(lambda self: self.sampler.batch() is not None)
    @rule()
    def ask(self) -> None:
        self.given = self.sampler.take()
        self.stop_doomed()

    @precondition(lambda self: self.sampler.step + 1 not in self.taken)
    @precondition(lambda self: not self.sampler.done)
    @precondition(lambda self: self.sampler.cut is None and self.given is None)
    @rule(size=st.integers(1, 4), lag=st.integers(0, 3), rolled_back=st.booleans())
    def change(self, size: int, lag: int, rolled_back: bool) -> None:
        """A remedy. One that a rollback undid is the one it was."""
        step = self.sampler.step + 1
        change = self.changes.setdefault(step, Change(size, lag, rolled_back))
        late = self.sampler.passed(step, change.size, change.lag, rolled_back=change.rolled_back)
        for position in late.keys() - self.sampler.leaving:
            self.returned[position] = self.returned.get(position, 0) + 1
        if change.rolled_back:
            assert all(self.since[p] >= step for p in self.sampler.active), "of a policy that is gone"
        self.stop_doomed()

    @precondition(lambda self: self.given is not None)
    @rule()
    def acknowledge(self) -> None:
        assert self.given is not None
        assert len(set(self.given)) == len(self.given)
        assert len(self.given) == self.sampler.batch_size or self.sampler.step + 1 in self.taken
        for position in self.given:
            assert self.age(position) <= self.sampler.max_lag
            self.returned[position] = self.returned.get(position, 0) + 1
        if self.sampler.order == "in_order":
            assert not self.trained or self.given[0] > max(self.trained)
        step = self.sampler.step + 1
        assert self.taken.setdefault(step, self.given) == self.given, "made of other groups than before"
        self.sampler.trained(step, self.given)
        self.trained += self.given
        self.given = None
        self.stop_doomed()

    def abandon(self, position: int) -> None:
        """It held its slot until now."""
        assert position in self.sampler.active or position in self.sampler.leaving
        self.sampler.abandoned(position)
        self.returned[position] = self.returned.get(position, 0) + 1
        self.stop_doomed()

    def stop_doomed(self) -> None:
        """As the job does, in the same moment: what no step can train any more is ended."""
        if self.sampler.over and self.running():
            self.abandon(self.running()[0])

    @rule(learner_too=st.booleans())
    def restart(self, learner_too: bool) -> None:
        """Whatever was running is lost, what had finished is in the spool; who was first is forgotten."""
        self.successor(self.sampler.step)
        if learner_too:
            self.given = None

    @precondition(lambda self: self.sampler.step > 0)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """A person sets the pointer back: the groups of the steps beyond wait in the spool again."""
        to = data.draw(st.integers(0, self.sampler.step - 1))
        again = {p for step in range(to + 1, self.sampler.step + 1) for p in self.taken.get(step, [])}
        self.trained = [p for p in self.trained if p not in again]
        self.returned = {p: times for p, times in self.returned.items() if p not in again}
        self.successor(to, again)
        self.given = None

    def successor(self, step: int, again: frozenset[int] | set[int] = frozenset()) -> None:
        old = self.sampler
        finished = {p for p, group in old.active.items() if group.ended is not None} | again
        now = self.in_force(step)
        self.sampler = BatchScheduler(now.size, now.lag, old.steps, old.positions, old.order)
        undone = {number: groups for number, groups in self.taken.items() if number > step}
        idle = [number for number in self.changes if number <= step]
        since = {p: self.since[p] + sum(self.since[p] < number for number in idle) for p in finished}
        late = self.sampler.restore(
            step,
            old.settled - again,
            since,
            undone,
            used=len(self.trained),
            changes=self.changes_again(step),
        )
        assert late == {}, "whoever keeps to the rule leaves nothing that is too old"

    @invariant()
    def slots_are_overbooked_by_nothing_but_a_rollback(self) -> None:
        if not self.changes_again(self.sampler.step):
            assert len(self.sampler.active.keys() - self.pinned()) <= self.sampler.slots

    @invariant()
    def a_slot_returns_exactly_once(self) -> None:
        assert set(self.returned.values()) <= {1}
        assert self.sampler.settled == set(self.returned)
        assert not self.sampler.settled & self.sampler.active.keys()

    def changes_again(self, step: int) -> bool:
        """Whether a change is ahead that a rollback undid."""
        return any(number > step for number in self.changes)

    def pinned(self) -> set[int]:
        """Groups of steps that a rollback undid."""
        return {p for groups in self.sampler.undone.values() for p in groups}

    @invariant()
    def nothing_is_kept_that_no_step_can_train(self) -> None:
        if self.changes_again(self.sampler.step):
            return
        ahead = {step for step in self.sampler.undone if step > self.sampler.step}
        left = self.sampler.steps - self.sampler.step - len(ahead)
        assert len(self.sampler.active.keys() - self.pinned()) <= left * self.sampler.batch_size

    @invariant()
    def for_what_runs_there_is_a_batch_to_come(self) -> None:
        if self.running():
            cut = self.sampler.cut or []
            leaving = {*self.running()} <= self.sampler.leaving
            assert leaving or self.sampler.step + bool(cut) < self.sampler.steps
            assert leaving or self.sampler.left - len(cut) >= self.sampler.batch_size

    @invariant()
    def where_no_batch_can_be_cut_nothing_begins(self) -> None:
        if self.sampler.over:
            assert copy.deepcopy(self.sampler).start() is None
        if self.sampler.done:
            assert self.sampler.batch() is None

    @invariant()
    def what_the_learner_works_on_is_accepted(self) -> None:
        assert self.given is None or self.sampler.accepts(self.sampler.step + 1, self.given)

    @invariant()
    def there_is_always_a_way_on(self) -> None:
        later = copy.deepcopy(self.sampler)
        while later.step + 1 in self.changes:
            again = self.changes[later.step + 1]
            later.passed(later.step + 1, again.size, again.lag, rolled_back=again.rolled_back)
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
    max_lag=st.integers(0, 3),
    steps=st.integers(1, 6),
    epochs_rows=st.integers(1, 30),
)
def test_a_job_without_failures_takes_every_step_its_data_allows(
    order: Order, batch_size: int, max_lag: int, steps: int, epochs_rows: int
) -> None:
    possible = min(steps, epochs_rows // batch_size)
    sampler = BatchScheduler(batch_size, max_lag, possible, epochs_rows, order)
    while not sampler.done:
        while (position := sampler.start()) is not None:
            sampler.finished(position)
        batch = sampler.take()
        assert batch is not None
        sampler.trained(sampler.step + 1, batch)
    assert sampler.step == possible
    assert not sampler.active


@pytest.mark.parametrize("order", ORDERS)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 4), lag=st.integers(0, 3))
def test_slow_groups_are_trained_in_time(order: Order, seed: int, size: int, lag: int) -> None:
    """A clock, log-normal latencies, groups that are lost: the learner takes each batch as soon as it can."""
    chance = random.Random(seed)
    sampler = BatchScheduler(size, lag, steps=12, positions=80, order=order)
    ends: dict[int, float] = {}
    since: dict[int, int] = {}
    now = 0.0
    while not sampler.done:
        while (position := sampler.start()) is not None:
            ends[position], since[position] = now + chance.lognormvariate(0, 2), sampler.step
        if (batch := sampler.take()) is not None:
            assert max(sampler.step - since[position] for position in batch) <= lag
            sampler.trained(sampler.step + 1, batch)
            continue
        position = min(ends, key=ends.__getitem__)
        now = ends.pop(position)
        (sampler.abandoned if chance.random() < 0.1 else sampler.finished)(position)
    assert sampler.step == 12 or sampler.left < size


@pytest.mark.parametrize("order", ORDERS)
def test_without_lag_no_group_starts_before_the_step_is_acknowledged(order: Order) -> None:
    sampler = BatchScheduler(batch_size=2, max_lag=0, steps=3, positions=10, order=order)
    assert [sampler.start(), sampler.start(), sampler.start()] == [0, 1, None]
    sampler.finished(1)
    assert sampler.batch() is None
    sampler.finished(0)
    assert sampler.take() == [0, 1]
    assert sampler.start() is None
    sampler.trained(1, [1, 0])
    assert sampler.start() == 2


def test_in_order_waits_for_a_group_that_died_with_its_coordinator() -> None:
    sampler = BatchScheduler(batch_size=2, max_lag=1, steps=5, positions=10)
    sampler.restore(step=1, settled=[0, 1], finished={3: 0, 4: 1})
    assert sampler.batch() is None
    assert sampler.start() == 2
    assert sampler.batch() is None
    sampler.finished(2)
    assert sampler.batch() == [2, 3]


def test_in_order_begins_again_what_a_later_group_waits_for() -> None:
    """Of two batches' groups one was lost: three are left, and one of them died with its coordinator."""
    sampler = BatchScheduler(batch_size=2, max_lag=1, steps=12, positions=4)
    sampler.restore(step=0, settled=[1], finished={0: 0, 3: 0})
    assert sampler.batch() is None
    assert sampler.start() == 2
    sampler.finished(2)
    assert sampler.batch() == [0, 2]


@pytest.mark.parametrize(
    ("order", "expected"), [("in_order", None), ("windowed", [1, 2]), ("ready_first", [4, 5])]
)
def test_whom_each_choice_prefers(order: Order, expected: list[int] | None) -> None:
    """P = 2, S = 2: six groups under way, of which 0 is slow and 4 and 5 were the first to finish."""
    sampler = started(order, 2, 2)
    for position in (5, 4, 2, 1, 3):
        sampler.finished(position)
    assert sampler.batch() == expected


def test_who_was_passed_over_is_waited_for_in_the_end() -> None:
    """P = 1, S = 1: group 0 may be passed over once, and then nobody is trained before it."""
    sampler = started("ready_first", 1, 1)
    sampler.finished(1)
    assert sampler.take() == [1]
    sampler.trained(1, [1])
    assert sampler.start() == 2
    sampler.finished(2)
    assert sampler.batch() is None
    sampler.finished(0)
    assert sampler.batch() == [0]


def test_a_batch_that_was_given_stands() -> None:
    sampler = started("ready_first", 1, 1)
    sampler.finished(1)
    assert sampler.take() == [1]
    sampler.finished(0)
    assert sampler.take() == sampler.batch() == [1]
    assert not sampler.accepts(1, [0])


def test_an_undone_step_gets_the_groups_it_had() -> None:
    sampler = BatchScheduler(batch_size=1, max_lag=2, steps=5, positions=10, order="ready_first")
    waiting = dict.fromkeys([0, 1, 2], 0)
    sampler.restore(step=0, settled=[], finished=waiting, undone={1: [2], 2: [1], 3: [7]})
    for step, expected in ((1, [2]), (2, [1]), (3, [0])):
        assert not sampler.accepts(step, [9])
        assert sampler.take() == expected, "7 is not in the spool: that step is made of what there is"
        sampler.trained(step, expected)


def test_a_successor_accepts_what_its_predecessor_gave() -> None:
    sampler = BatchScheduler(batch_size=1, max_lag=1, steps=5, positions=10, order="ready_first")
    sampler.restore(step=0, settled=[], finished={0: 0, 1: 0})
    assert sampler.accepts(1, [1])
    assert not sampler.accepts(1, [2]), "it never finished"
    assert not sampler.accepts(1, [0, 1]), "too many"
    assert not sampler.accepts(2, [1]), "another step"
    assert sampler.take() == [0]
    assert not sampler.accepts(1, [1]), "this one has given another"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda sampler: sampler.trained(1, [1]),
        lambda sampler: sampler.trained(2, [0]),
        lambda sampler: sampler.finished(0),
        lambda sampler: sampler.abandoned(7),
    ],
)
def test_what_the_state_does_not_allow_is_refused(wrong: Callable[[BatchScheduler], None]) -> None:
    sampler = started("in_order", 1, 1)
    sampler.finished(0)
    with pytest.raises(OutOfOrder):
        wrong(sampler)


@pytest.mark.parametrize(("size", "lag", "expected"), [(4, 0, 4), (4, 1, 6), (4, 3, 10), (1, 1, 1)])
def test_the_window_lies_between_a_batch_and_all_slots(size: int, lag: int, expected: int) -> None:
    assert window(size, lag) == expected
    assert size <= expected <= (lag + 1) * size


def test_feasible_is_that_everyone_left_can_be_trained_in_time() -> None:
    groups = [Group(0, 0, 1), Group(1, 0, 2), Group(2, 1, 3), Group(3, 1, 4)]
    assert feasible([0, 1], groups, 2)
    assert not feasible([0, 2], groups, 2), "1 would be too old"
    assert feasible([], groups[2:], 2)
    assert not feasible([], [*groups[2:], Group(4, 1, None)], 2), "three for two places"


@pytest.mark.parametrize("order", ORDERS)
@given(data=st.data())
def test_whatever_a_predecessor_left_what_is_kept_of_it_is_trained_in_time(
    order: Order, data: st.DataObject
) -> None:
    """Groups of any age in any number: one that was thought dead may have gone on writing."""
    size, lag, step = (data.draw(st.integers(low, 4)) for low in (1, 0, 0))
    since = data.draw(st.dictionaries(st.integers(0, 25), st.integers(step - 6, step), max_size=20))
    sampler = BatchScheduler(size, lag, steps=step + 12, positions=80, order=order)
    late = sampler.restore(step, (), since)
    assert late.keys() == sampler.restore(step, (), since).keys()
    assert not sampler.active.keys() & set(late)
    assert sampler.settled == set(late)
    while not sampler.done:
        while (position := sampler.start()) is not None:
            since[position] = sampler.step
            sampler.finished(position)
        batch = sampler.take()
        assert batch is not None
        assert max(sampler.step - since[position] for position in batch) <= lag
        sampler.trained(sampler.step + 1, batch)


@pytest.mark.parametrize("order", CHOICES)
def test_a_step_that_is_made_of_others_leaves_none_after_it_as_it_was(order: Order) -> None:
    """The others may be groups of those."""
    sampler = BatchScheduler(batch_size=1, max_lag=1, steps=10, positions=20, order=order)
    sampler.restore(2, {0, 1}, {2: 2, 3: 3}, {4: [2], 5: [3]}, used=2, changes=True)
    assert sampler.passed(3, 1, 1, rolled_back=True) == {2: "RolledBack"}
    assert sampler.take() == [3]
    sampler.trained(4, [3])
    assert sampler.batch() is None
    assert sampler.start() == 4
    sampler.finished(4)
    assert sampler.take() == [4]
    sampler.restore(3, {0, 1, 2}, {4: 3}, {4: [3], 5: [4]}, used=2)
    assert sampler.undone == {}, "as well where one of its groups is not there any more"


@pytest.mark.parametrize("order", CHOICES)
def test_a_bound_that_was_refused_and_is_taken_anew_holds_for_undone_steps_too(order: Order) -> None:
    sampler = BatchScheduler(batch_size=1, max_lag=2, steps=10, positions=20, order=order)
    sampler.restore(2, {0, 1}, {2: 2, 3: 2}, {4: [2], 5: [3]}, used=2, changes=True)
    assert sampler.passed(3, 1, 0) == {3: "TooOld"}
    assert sampler.take() == [2]
    sampler.trained(4, [2])
    assert sampler.batch() is None
    assert sampler.start() == 4


@pytest.mark.parametrize("order", ["windowed", "ready_first"])
def test_a_batch_that_was_refused_and_is_larger_anew_is_so_for_undone_steps_too(order: Order) -> None:
    """One of fewer would leave more groups than the batches after it can take in time."""
    sampler = BatchScheduler(batch_size=1, max_lag=1, steps=10, positions=20, order=order)
    sampler.restore(2, {0, 1}, {2: 2, 3: 2}, {4: [2], 5: [3]}, used=2, changes=True)
    assert sampler.passed(3, 2, 1) == {}
    while (position := sampler.start()) is not None:
        sampler.finished(position)
    assert sampler.take() == [2, 3]
