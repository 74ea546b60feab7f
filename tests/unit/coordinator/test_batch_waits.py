"""The coordinator notes when each wait of a batch, other than for episodes, begins and ends."""

from __future__ import annotations

import time

import pytest
from episodes import a_group

from headway_api.records import MAX_BATCH_WAITS, BatchWaits, GroupRecord
from headway_coordinator.batch_waits import WaitNotes


class Clock:
    """A clock whose Unix time the test sets."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "time", found.time)
    return found


def group(position: int, queued: float | None, finished: float) -> GroupRecord:
    made = a_group(f"t0-{position:06d}", [1.0, 0.0])
    times = {"queued_at": queued, "started_at": finished - 1, "finished_at": finished}
    return made.model_copy(update={"episodes": [each.model_copy(update=times) for each in made.episodes]})


def intervals(waits: BatchWaits) -> list[tuple[str, float, float]]:
    return [(each.kind, each.began, each.ended) for each in waits.waits]


def test_the_start_lasts_until_a_learner_asks(clock: Clock) -> None:
    notes = WaitNotes(990)
    assert intervals(notes.of([])) == []
    for _ in range(2):
        notes.runs("start", False)
        clock.now += 5
    assert intervals(notes.of([])) == [("start", 990, 1000)]
    assert notes.of([]).sent_at == 1010


def test_a_wait_lasts_from_its_first_report_to_its_last(clock: Clock) -> None:
    notes = WaitNotes(1000)
    for at, held in ((1001, True), (1002, True), (1007, False), (1009, False)):
        clock.now = at
        notes.runs("validation", held)
    with notes.timed("weights"):
        clock.now += 3
    with notes.timed("weights"):
        pass  # a server already has the weights
    assert intervals(notes.of([])) == [("validation", 1001, 1007), ("weights", 1009, 1012)]


def test_last_begun_and_last_stored_groups_set_a_batchs_waits(clock: Clock) -> None:
    notes = WaitNotes(1000)
    clock.now = 1021
    notes.stored(1, 1000, group(1, 1004, 1020))
    clock.now = 1023
    notes.stored(2, 1000, group(2, 1002, 1019))
    notes.stored(3, 1000, group(3, 1022, 1022.5))
    assert intervals(notes.of([1, 2])) == [("budget", 1000, 1004), ("storing", 1019, 1023)]
    notes.forget([2])
    assert intervals(notes.of([1, 2])) == [("budget", 1000, 1004), ("storing", 1020, 1021)]


def test_group_sampled_by_a_predecessor_adds_no_waits(clock: Clock) -> None:
    notes = WaitNotes(1000)
    notes.stored(1, 1000, group(1, 400, 500))
    notes.stored(2, 1000, group(2, None, 500))
    assert intervals(notes.of([1, 2])) == []


def test_the_newest_waits_are_kept(clock: Clock) -> None:
    notes = WaitNotes(1000)
    for _ in range(50):
        with notes.timed("weights"):
            clock.now += 1
    notes.stored(1, 1000, group(1, 1001, 1002))
    found = notes.of([1])
    assert len(found.waits) == MAX_BATCH_WAITS
    assert max(each.ended for each in found.waits) == clock.now
