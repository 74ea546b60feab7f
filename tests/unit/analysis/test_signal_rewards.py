"""When ValidationDiverged, ScoreDiverged and RewardOneSided are raised, on metrics made for these tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from headway_analysis.signals.definition import Level
from headway_analysis.signals.history import History, Job, Series
from headway_analysis.signals.judges import learning
from headway_analysis.signals.watch import Watch
from headway_api.signals import SignalName

JOB = Job(reward_low=0.0, reward_high=1.0, max_steps_off_policy=0)
WOBBLE = (0.0, 0.01, -0.01, 0.005, -0.005)


def history(**metrics: Sequence[float | None]) -> History:
    """A history with steps from 1 on, each with its value of each metric, and a little noise."""
    steps = Series()
    for at in range(len(next(iter(metrics.values())))):
        known = {name: values[at] for name, values in metrics.items()}
        steps.put(
            at + 1, {name: value + WOBBLE[at % 5] for name, value in known.items() if value is not None}
        )
    return History(JOB, steps, Series(), len(steps.steps))


def diverged(rewards: tuple[float, float], scores: tuple[float, float]) -> Level:
    """The level of ScoreDiverged after ten steps with the first values and ten with the second."""
    metrics = {
        learning.REWARD: [rewards[0]] * 10 + [rewards[1]] * 10,
        learning.SCORE: [scores[0]] * 10 + [scores[1]] * 10,
    }
    reading = learning.score_diverged(history(**metrics))
    assert reading is not None
    return reading.level


@pytest.mark.parametrize(
    ("rewards", "scores", "level"),
    [
        ((0.5, 0.8), (0.5, 0.5), Level.OVER),
        ((0.5, 0.8), (0.5, 0.3), Level.OVER),
        ((0.8, 0.8), (0.5, 0.3), Level.OVER),
        ((0.86, 0.8), (0.55, 0.2), Level.CLEAR),
        ((0.5, 0.8), (0.3, 0.4), Level.CLEAR),
        ((0.5, 0.55), (0.5, 0.5), Level.CLEAR),
    ],
    ids=["rises-without", "rises-against", "holds-while-it-falls", "both-fall", "both-rise", "a-little"],
)
def test_reward_and_score_diverge_if_only_the_reward_rises(
    rewards: tuple[float, float], scores: tuple[float, float], level: Level
) -> None:
    assert diverged(rewards, scores) is level


def test_a_larger_gap_by_chance_hides_no_sure_gap() -> None:
    """Since the first ten steps the two diverged by 0.4, perhaps by chance.

    Since the last five, by 0.3 surely.
    """
    metrics = {
        learning.REWARD: [1.0, 0.0] * 5 + [0.5] * 10 + [0.8] * 10,
        learning.SCORE: [0.2, 1.0] * 5 + [0.5] * 20,
    }
    reading = learning.score_diverged(history(**metrics))
    assert reading is not None
    assert (reading.level, round(reading.value, 2)) == (Level.OVER, 0.3)


EARLY = ((0.3, 0.31, 0.3, 0.31, 0.3), (0.0, 1.0, 0.0, 1.0, 0.2))
"""Rewards of the first steps: steady ones, and some whose mean is uncertain."""


def validated(early: Sequence[float], held_out: Mapping[int, float], rows: float = 64.0) -> str:
    """First letter of ValidationDiverged's state after each validation.

    The reward is 0.6, and 0.85 from step 16 on.
    """
    watch, found = Watch(JOB), ""
    for step in range(1, 46):
        reward = early[step - 1] if step <= 5 else (0.6 if step < 16 else 0.85) + 0.002 * (step % 3)
        watch.step(step, {learning.REWARD: reward})
        if step in held_out:
            metrics = {learning.VALIDATED_SPREAD: 0.3, learning.VALIDATED_ROWS: rows}
            watch.validation(step, {learning.VALIDATED: held_out[step], **metrics})
            verdicts = {verdict.signal.name: verdict for verdict in watch.verdicts()}
            found += verdicts[SignalName.VALIDATION_DIVERGED].standing.state[0]
    return found


@pytest.mark.parametrize("early", EARLY, ids=["steady", "noisy"])
def test_noisy_first_steps_hide_no_diverging_validation(early: Sequence[float]) -> None:
    """After noisy steps, the gap since step 5 is larger but not sure.

    The gap since step 15 is, at 25 and 35.
    """
    assert validated(early, {5: 0.6, 15: 0.35, 25: 0.32, 35: 0.32})[-1] == "R"


@pytest.mark.parametrize(
    ("second", "third", "expected"),
    [(0.6, 0.6, "UUSR"), (0.6, 0.85, "UUSC"), (0.3, 0.85, "UURC")],
    ids=["twice", "once", "once-by-far"],
)
def test_one_validation_raises_a_gap_that_is_sure_by_far_alone(
    second: float, third: float, expected: str
) -> None:
    found = validated(EARLY[0], {10: 0.6, 14: 0.6, 25: second, 35: third}, rows=256.0)
    assert found == expected


def one_sided(top: tuple[float, float], rival: tuple[float, float | None]) -> Level:
    """The level of RewardOneSided for two numbers' shares in the first ten steps, and in ten more."""
    metrics = {
        learning.REWARD: [0.5] * 20,
        f"{learning.EXPLAINED}top": [top[0]] * 10 + [top[1]] * 10,
        f"{learning.EXPLAINED}rival": [rival[0]] * 10 + [rival[1]] * 10,
        f"{learning.EXPLAINED}third": [0.02] * 20,
    }
    reading = learning.reward_one_sided(history(**metrics))
    assert reading is not None
    return reading.level


@pytest.mark.parametrize(
    ("top", "rival", "level"),
    [
        ((0.1, 0.98), (0.7, 0.1), Level.OVER),
        ((0.7, 0.98), (0.4, 0.1), Level.OVER),
        ((0.7, 0.98), (0.4, 0.3), Level.CLEAR),
        ((0.7, 0.98), (0.4, None), Level.CLEAR),
        ((0.9, 0.98), (0.4, 0.1), Level.CLEAR),
        ((0.1, 0.88), (0.7, 0.1), Level.CLEAR),
    ],
    ids=["another", "the-first-alone", "rival-holds", "rival-is-learnt", "always-was", "not-all"],
)
def test_a_number_takes_over_at_the_expense_of_another(
    top: tuple[float, float], rival: tuple[float, float | None], level: Level
) -> None:
    assert one_sided(top, rival) is level
