"""Each trap is found by its check, and no check raises an alarm on a clean task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.traps.clean import CLEAN
from tests.traps.from_the_guide import FROM_THE_GUIDE
from tests.traps.further import FURTHER
from tests.traps.judge import ALARMS, ALL, judged
from tests.traps.trap import Task, Trap

TRAPS = (*FROM_THE_GUIDE, *FURTHER)
SEEDS = range(10)
FEW = 32
"""Enough episodes for a warning, in groups of 4. `make test-traps` samples twice as many, in groups of 8."""


@pytest.mark.ci
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_a_trap_is_named_by_its_check(trap: Trap) -> None:
    report = judged(trap.task, trap, episodes=FEW, group_size=4, checks={trap.check})
    assert report.of(trap.check).verdict in ALARMS, f"{trap.says}\n{report}"


@pytest.mark.parametrize(
    "task",
    [CLEAN[0], *(pytest.param(task, marks=pytest.mark.long) for task in CLEAN[1:])],
    ids=lambda t: t.name,
)
def test_a_clean_task_raises_no_alarm(task: Task) -> None:
    report = judged(task)
    assert not report.named(*ALARMS), str(report)
    assert not report.broken


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("task", CLEAN, ids=lambda task: task.name)
def test_a_clean_task_raises_no_alarm_for_any_seed(task: Task, seed: int) -> None:
    report = judged(task, seed=seed)
    assert not report.named(*ALARMS), str(report)


def test_every_check_has_a_trap() -> None:
    assert {trap.check for trap in TRAPS} == ALL


def test_traps_have_names_of_their_own() -> None:
    assert len({trap.name for trap in TRAPS}) == len(TRAPS) >= 24
