"""What ScoreParted and RewardOneSided ask for, on figures made for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway_analysis.signals.definition import Level
from headway_analysis.signals.history import History, Job, Series
from headway_analysis.signals.judges import learning

JOB = Job(reward_low=0.0, reward_high=1.0, max_steps_off_policy=0)
WOBBLE = (0.0, 0.01, -0.01, 0.005, -0.005)


def history(**figures: Sequence[float | None]) -> History:
    """Steps from 1 on, each with its value of each figure; a little noise is laid over."""
    steps = Series()
    for at in range(len(next(iter(figures.values())))):
        known = {name: values[at] for name, values in figures.items()}
        steps.put(
            at + 1, {name: value + WOBBLE[at % 5] for name, value in known.items() if value is not None}
        )
    return History(JOB, steps, Series(), len(steps.steps))


def parted(rewards: tuple[float, float], scores: tuple[float, float]) -> Level:
    """Ten steps of one level, and ten of another."""
    figures = {
        learning.REWARD: [rewards[0]] * 10 + [rewards[1]] * 10,
        learning.SCORE: [scores[0]] * 10 + [scores[1]] * 10,
    }
    reading = learning.score_parted(history(**figures))
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
def test_reward_and_score_part_where_the_reward_gains_alone(
    rewards: tuple[float, float], scores: tuple[float, float], level: Level
) -> None:
    assert parted(rewards, scores) is level


def test_a_larger_gap_that_is_chance_hides_none_that_is_sure() -> None:
    """Since the first ten steps the two parted by 0.4, by chance; since the last five by 0.3, surely."""
    figures = {
        learning.REWARD: [1.0, 0.0] * 5 + [0.5] * 10 + [0.8] * 10,
        learning.SCORE: [0.2, 1.0] * 5 + [0.5] * 20,
    }
    reading = learning.score_parted(history(**figures))
    assert reading is not None
    assert (reading.level, round(reading.value, 2)) == (Level.OVER, 0.3)


def one_sided(top: tuple[float, float], rival: tuple[float, float | None]) -> Level:
    """Shares of two numbers in the first ten steps, and in ten more."""
    figures = {
        learning.REWARD: [0.5] * 20,
        f"{learning.EXPLAINED}top": [top[0]] * 10 + [top[1]] * 10,
        f"{learning.EXPLAINED}rival": [rival[0]] * 10 + [rival[1]] * 10,
        f"{learning.EXPLAINED}third": [0.02] * 20,
    }
    reading = learning.reward_one_sided(history(**figures))
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
