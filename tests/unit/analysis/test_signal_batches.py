"""GroupsUniform with few groups in a batch, and PolicyMismatch and MismatchTail with old batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from headway_analysis.signals.definition import Level, Reading
from headway_analysis.signals.history import History, Job, Series
from headway_analysis.signals.judges import learning, stability
from headway_analysis.signals.watch import Watch
from headway_api.signals import SignalName

JOB = Job(reward_low=0.0, reward_high=1.0, max_steps_off_policy=8)
MISMATCH = "training/mismatch_kl"
FAR = "training/mismatch_far_share"
LITTLE, MUCH = 0.001, 0.1


def history(metrics: Mapping[str, Sequence[float | None]]) -> History:
    """A history with steps from 1 on, each with its value of each metric."""
    steps = Series()
    for at, row in enumerate(zip(*metrics.values(), strict=True), 1):
        steps.put(at, {name: value for name, value in zip(metrics, row, strict=True) if value is not None})
    return History(JOB, steps, Series(), len(steps.steps))


def uniform(alike: Sequence[float], groups: float) -> Reading:
    """The reading for batches of `groups` groups, `alike` of them uniform, with a constant reward."""
    reading = learning.groups_uniform(
        history(
            {
                learning.UNIFORM: alike,
                learning.GROUPS: [groups] * len(alike),
                learning.REWARD: [0.5] * len(alike),
            }
        )
    )
    assert reading is not None
    return reading


@pytest.mark.parametrize(
    ("alike", "groups", "level"),
    [
        ([2, 2, 1, 2, 2], 3, Level.BETWEEN),
        ([2, 2, 2, 3, 2], 3, Level.BETWEEN),
        ([3, 3, 2, 3, 2], 3, Level.OVER),
        ([39, 39, 38, 39, 39], 64, Level.OVER),
        ([38, 38, 38, 38, 38], 64, Level.BETWEEN),
        ([32, 32, 32, 32, 32], 64, Level.CLEAR),
        ([1, 2, 1, 2, 1], 3, Level.CLEAR),
    ],
    ids=["nine-of-15", "eleven-of-15", "13-of-15", "61%-of-320", "59%-of-320", "half", "seven-of-15"],
)
def test_few_groups_are_uniform_if_surely_more_than_half_are(
    alike: Sequence[float], groups: float, level: Level
) -> None:
    assert uniform(alike, groups).level is level


def test_uniform_groups_may_be_significant_only_over_ten_steps() -> None:
    five = [2.0, 2.0, 2.0, 3.0, 2.0]
    assert uniform(five, 3.0).level is Level.BETWEEN
    reading = uniform([3.0, 3.0, 2.0, 2.0, 2.0, *five], 3.0)
    assert (reading.level, reading.observed) == (
        Level.OVER,
        "77% of the 30 groups of 10 steps score alike (52% to 93%), and the reward stalls",
    )


def test_groups_that_differ_again_are_no_longer_uniform() -> None:
    """Over ten steps surely more than half of the groups are uniform, but not surely in the last five."""
    assert uniform([3, 3, 3, 3, 3, 2, 1, 2, 1, 2], 3).level is Level.BETWEEN


def test_a_share_of_groups_is_exact_however_it_is_written() -> None:
    """With five digits, thirds used to make nine of fifteen more than 60 %."""
    assert uniform([2, 2, 1, 2, 2], 3).value == 0.6


def test_a_share_of_uniform_groups_is_at_most_1() -> None:
    assert uniform([9, 9, 9, 9, 9], 3).value == 1.0


@pytest.mark.parametrize("groups", [None, 0.0])
def test_a_share_of_no_groups_is_not_known(groups: float | None) -> None:
    metrics = {learning.UNIFORM: [0.0] * 5, learning.GROUPS: [groups] * 5}
    assert learning.groups_uniform(history(metrics)) is None


def mismatch(
    values: Sequence[float | None], oldest: float, effective: float = 0.99, lag: float | None = None
) -> Reading | None:
    """PolicyMismatch's reading for batches with this oldest token. The average token is half as old."""
    count = len(values)
    return stability.policy_mismatch(
        history(
            {
                MISMATCH: values,
                stability.LAG: [oldest / 2 if lag is None else lag] * count,
                stability.OLDEST: [oldest] * count,
                stability.EFFECTIVE: [effective] * count,
            }
        )
    )


@pytest.mark.parametrize("oldest", [1, 2, 3, 5, 7])
def test_a_jump_shows_in_as_many_batches_as_they_are_old(oldest: int) -> None:
    """A jump is a single event, and not a lasting mismatch."""
    for since in range(1, 12):
        values = [LITTLE] * 20 + [MUCH] * oldest + [LITTLE] * 20
        reading = mismatch(values[: 20 + since], oldest)
        assert reading is not None
        assert reading.level is Level.CLEAR, since


@pytest.mark.parametrize("oldest", [0, 1, 2, 3, 5, 7, 30])
def test_a_mismatch_that_lasts_is_raised_within_ten_steps(oldest: int) -> None:
    watch = Watch(JOB)
    metrics = {
        stability.LAG: max(oldest / 2, 0.5),
        stability.OLDEST: float(oldest),
        stability.EFFECTIVE: 0.99,
    }
    found = []
    for step in range(1, 60):
        watch.step(step, metrics | {MISMATCH: MUCH if step >= 40 else LITTLE})
        states = {verdict.signal.name: verdict.standing.state for verdict in watch.verdicts()}
        found += [step] * (states[SignalName.POLICY_MISMATCH] == "Raised")
    assert 43 <= found[0] <= 50


def test_uneven_importance_weights_are_not_waited_for() -> None:
    values = [LITTLE] * 20 + [MUCH] * 2
    for effective, level in ((0.95, Level.CLEAR), (0.85, Level.OVER)):
        reading = mismatch(values, 3, effective)
        assert reading is not None
        assert reading.level is level


def test_old_policies_that_are_far_apart_are_not_waited_for() -> None:
    """The reward of a batch that is four steps old does not show the current policy yet."""
    twice = stability.MISMATCH_DRIFTED * learning.STRONG_EVIDENCE_FACTOR
    for shown, level in ((twice, Level.CLEAR), (1.01 * twice, Level.OVER)):
        reading = mismatch([LITTLE] * 20 + [shown] * 2, 4)
        assert reading is not None
        assert reading.level is level


def test_the_first_steps_of_a_job_with_old_batches_say_nothing() -> None:
    assert mismatch([MUCH] * 6, 3) is None
    reading = mismatch([MUCH] * 7, 3)
    assert reading is not None
    assert reading.level is Level.OVER


def test_steps_that_trained_nothing_do_not_silence_old_batches() -> None:
    reading = mismatch([MUCH, None, MUCH, MUCH, MUCH, None, MUCH, MUCH, MUCH], 3)
    assert reading is not None
    assert reading.level is Level.OVER


def test_fresh_batches_are_judged_by_three_steps() -> None:
    for oldest in (0, 3):
        reading = mismatch([LITTLE] * 20 + [0.01] * 2, oldest, lag=0.2)
        assert reading is not None
        assert (reading.level, reading.threshold) == (Level.OVER, stability.MISMATCH)


def test_three_bad_steps_do_not_raise_a_tail_of_old_batches() -> None:
    count, oldest = 23, 3.0
    shown = [0.0] * 20 + [0.08] * 3
    reading = stability.mismatch_tail(
        history({FAR: shown, stability.LAG: [1.5] * count, stability.OLDEST: [oldest] * count})
    )
    assert reading is not None
    assert reading.level is Level.CLEAR
