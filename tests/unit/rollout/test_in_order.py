"""The staleness rule, driven by arbitrary schedules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway_rollout.sampler.in_order import InOrder, OutOfOrder, Phase


class Schedule(RuleBasedStateMachine):
    """Starts, finishes, filters, abandons and acknowledges in any order the rule allows, with restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.sampler = InOrder(batch_size=3, max_lag=2, steps=12, positions=60)
        self.started_at: dict[int, int] = {}
        self.returned: dict[int, int] = {}
        self.trained: list[int] = []

    def running(self) -> list[int]:
        return [p for p, phase in self.sampler.active.items() if phase is Phase.RUNNING]

    @rule()
    def start(self) -> None:
        position = self.sampler.start()
        if position is not None:
            self.started_at[position] = self.sampler.step

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(self.running()))
        how = data.draw(st.sampled_from(["finished", "finished", "filtered", "abandoned"]))
        getattr(self.sampler, how)(position)
        if how == "abandoned":
            self.returned[position] = self.returned.get(position, 0) + 1

    @precondition(lambda self: self.sampler.batch() is not None)
    @rule()
    def acknowledge(self) -> None:
        batch = self.sampler.batch()
        assert batch is not None
        assert len(batch) == self.sampler.batch_size
        for position in batch:
            lag = self.sampler.step - self.started_at[position]
            assert lag <= self.sampler.max_lag
            self.returned[position] = self.returned.get(position, 0) + 1
        assert batch == sorted(batch)
        assert not self.trained or batch[0] > self.trained[-1]
        self.sampler.acknowledged(self.sampler.step + 1, batch)
        self.trained += batch

    @rule()
    def restart(self) -> None:
        """Whatever was running is lost; what was finished is in the spool."""
        old = self.sampler
        finished = [p for p, phase in old.active.items() if phase is not Phase.RUNNING]
        self.sampler = InOrder(old.batch_size, old.max_lag, old.steps, old.positions)
        self.sampler.restore(old.step, old.settled, finished)

    @invariant()
    def slots_are_never_overbooked(self) -> None:
        assert len(self.sampler.active) <= self.sampler.slots

    @invariant()
    def a_slot_returns_exactly_once(self) -> None:
        assert set(self.returned.values()) <= {1}
        assert self.sampler.settled == set(self.returned)
        assert not self.sampler.settled & self.sampler.active.keys()

    @invariant()
    def nothing_is_started_that_no_step_can_train(self) -> None:
        assert len(self.sampler.active) <= (self.sampler.steps - self.sampler.step) * self.sampler.batch_size


TestSchedule = Schedule.TestCase


@given(
    batch_size=st.integers(1, 4),
    max_lag=st.integers(0, 3),
    steps=st.integers(1, 6),
    epochs_rows=st.integers(1, 30),
)
def test_a_job_without_failures_takes_every_step_its_data_allows(
    batch_size: int, max_lag: int, steps: int, epochs_rows: int
) -> None:
    sampler = InOrder(batch_size, max_lag, min(steps, epochs_rows // batch_size), epochs_rows)
    while not sampler.done:
        while (position := sampler.start()) is not None:
            sampler.finished(position)
        batch = sampler.batch()
        assert batch is not None
        sampler.acknowledged(sampler.step + 1, batch)
    assert sampler.step == min(steps, epochs_rows // batch_size)
    assert not sampler.active


def test_without_lag_no_group_starts_before_the_step_is_acknowledged() -> None:
    sampler = InOrder(batch_size=2, max_lag=0, steps=3, positions=10)
    assert [sampler.start(), sampler.start(), sampler.start()] == [0, 1, None]
    sampler.finished(1)
    assert sampler.batch() is None
    sampler.filtered(0)
    assert sampler.batch() == [0, 1]
    assert sampler.start() is None
    sampler.acknowledged(1, [1, 0])
    assert sampler.start() == 2


def test_a_batch_waits_for_a_group_that_died_with_its_coordinator() -> None:
    sampler = InOrder(batch_size=2, max_lag=1, steps=5, positions=10)
    sampler.restore(step=1, settled=[0, 1], finished=[3, 4])
    assert sampler.batch() is None
    assert sampler.start() == 2
    assert sampler.batch() is None
    sampler.finished(2)
    assert sampler.batch() == [2, 3]


def test_an_acknowledgement_of_another_batch_is_refused() -> None:
    sampler = InOrder(batch_size=1, max_lag=1, steps=5, positions=10)
    sampler.start(), sampler.start()
    sampler.finished(0)
    with pytest.raises(OutOfOrder):
        sampler.acknowledged(1, [1])
    with pytest.raises(OutOfOrder):
        sampler.acknowledged(2, [0])
    with pytest.raises(OutOfOrder):
        sampler.finished(0)
