"""How much of the reward within groups a single number explains."""

from __future__ import annotations

import numpy as np
import pytest
from episodes import sealed

from headway_analysis.measures.explained import explained_variance
from headway_api.records import GroupRecord, Purpose

RNG = np.random.default_rng(3)


def group(rewards: list[float | None], **metrics: list[float]) -> GroupRecord:
    episodes = [
        sealed("t0-0", index, reward=reward).model_copy(
            update={"metrics": {name: values[index] for name, values in metrics.items()}}
        )
        for index, reward in enumerate(rewards)
    ]
    return GroupRecord(group_id="t0-0", purpose=Purpose.TRAIN, row=0, epoch=0, step=0, episodes=episodes)


def test_a_number_that_is_the_reward_explains_all_of_it() -> None:
    rewards = RNG.random(8).tolist()
    found = explained_variance([group(rewards, same=rewards, opposite=[-2 * r for r in rewards])])
    assert found == pytest.approx({"same": 1.0, "opposite": 1.0})


def test_parts_of_a_sum_share_the_explanation() -> None:
    format_, answer = RNG.integers(0, 2, 400), RNG.integers(0, 2, 400)
    found = explained_variance(
        [group((format_ + answer).tolist(), format=format_.tolist(), answer=answer.tolist())]
    )
    assert found == pytest.approx({"format": 0.5, "answer": 0.5}, abs=0.08)


def test_differences_between_groups_explain_nothing() -> None:
    easy, hard = [0.9, 1.0, 0.9, 1.0], [0.0, 0.1, 0.0, 0.1]
    noise = [0.0, 0.0, 1.0, 1.0]
    found = explained_variance(
        [group(easy, level=[1.0] * 4, noise=noise), group(hard, level=[0.0] * 4, noise=noise)]
    )
    assert set(found) == {"noise"}
    assert found["noise"] == pytest.approx(0.0, abs=1e-9)


def test_a_number_that_never_differs_is_left_out() -> None:
    assert explained_variance([group([1.0, 1.0, 1.0], number=[0.0, 1.0, 2.0])]) == {}
    assert explained_variance([group([1.0, 0.0], number=[1.0, 0.0])]) == {}
    assert explained_variance([group([None, None, None], number=[0.0, 1.0, 2.0])]) == {}
    assert explained_variance([]) == {}
