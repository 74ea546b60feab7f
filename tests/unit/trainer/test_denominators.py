"""Which groups a reduction divides by, against the papers that count every group."""

from __future__ import annotations

from typing import Any

import learner_rig as rig
import numpy as np
import pytest

from headway_api.records import Batch, GroupRecord
from headway_api.spec.algorithm import ADVANTAGES, AlgorithmSpec
from headway_trainer.batch import LearnerRow, mini_batches, training_batch
from headway_trainer.objective.presets import Objective

PLANNED = 100


def groups(uniform: int, others: int = 2) -> list[GroupRecord]:
    """Groups of four episodes, in random order: `uniform` groups with equal rewards, and `others` without."""
    kinds = ["uniform"] * uniform + ["other"] * others
    rewards = {"uniform": [1.0] * 4, "other": [1.0, 0.0, 0.0, 0.5]}
    order = np.random.default_rng(0).permutation(len(kinds))
    return [rig.group(f"g{n}", rewards[kinds[index]], seed=n) for n, index in enumerate(order)]


def parts(made: list[GroupRecord], updates: int = 1, **algorithm: Any) -> list[list[LearnerRow]]:
    objective = Objective.of(AlgorithmSpec.model_validate(algorithm), PLANNED)
    return mini_batches(training_batch(Batch(step=1, epoch=0, groups=made), objective), updates, objective)


def push(rows: list[LearnerRow]) -> float:
    """Sum of the tokens' absolute advantages times weights, which is what a denominator scales."""
    return sum(float(np.abs(row.advantages[row.mask]).sum()) * row.weight for row in rows)


def tokens(made: list[GroupRecord]) -> int:
    return sum(row.action_tokens for group in made for episode in group.scored for row in episode.rows)


@pytest.mark.parametrize("uniform", [0, 2, 6])
def test_gpgs_factor_is_applied_once(uniform: int) -> None:
    """arXiv 2504.02546: 1 / sum of all |o_i|, times alpha (r - mean).

    alpha is B / (B - M) for B groups, M of them without a gradient.
    """
    made = groups(uniform)
    [rows] = parts(made, advantage={"method": "gpg"})
    alpha, expected = (uniform + 2) / 2, 0.0
    for group in made:
        rewards = [episode.reward or 0.0 for episode in group.scored]
        for episode, reward in zip(group.scored, rewards, strict=True):
            unavailable = abs(reward - sum(rewards) / len(rewards))
            expected += alpha * unavailable * sum(row.action_tokens for row in episode.rows) / tokens(made)
    assert push(rows) == pytest.approx(expected, rel=1e-6)
    # If the denominator left out groups without a gradient, that would apply the factor a second time.
    [twice] = parts(made, advantage={"method": "gpg"}, denominator="trained")
    heard = tokens([group for group in made if len({e.reward for e in group.scored}) > 1])
    assert push(twice) == pytest.approx(expected * tokens(made) / heard, rel=1e-6)


@pytest.mark.parametrize("uniform", [0, 2, 6])
def test_constant_may_divide_by_all_episodes_of_the_batch(uniform: int) -> None:
    """Dr. GRPO (arXiv 2503.20783): each token's weight is 1 / (episodes of the batch x a constant length)."""
    made = groups(uniform)
    [rows] = parts(made, reduction="constant", denominator="all")
    assert {row.weight for row in rows} == {1 / (4 * len(made) * PLANNED)}
    [rows] = parts(made, reduction="constant")
    assert {row.weight for row in rows} == {1 / (4 * 2 * PLANNED)}


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "prompt_mean", "constant"])
def test_all_equals_trained_if_every_group_is_trained(reduction: str) -> None:
    made = groups(0, others=4)
    [some], [every] = (parts(made, reduction=reduction, denominator=d) for d in ("trained", "all"))
    assert [row.weight for row in some] == [row.weight for row in every]


@pytest.mark.parametrize(
    ("reduction", "share"),
    [("sequence_mean", 2 / 8), ("prompt_mean", 2 / 8), ("constant", 2 / 8), ("token_mean", None)],
)
def test_denominator_all_scales_weights_by_the_trained_share(reduction: str, share: float | None) -> None:
    made = groups(6)
    [some], [every] = (parts(made, reduction=reduction, denominator=d) for d in ("trained", "all"))
    heard = tokens([group for group in made if len({e.reward for e in group.scored}) > 1])
    ratio = heard / tokens(made) if share is None else share
    np.testing.assert_allclose([r.weight for r in every], [r.weight * ratio for r in some], rtol=1e-12)


def test_all_divides_every_group_among_the_steps_of_a_batch() -> None:
    made = groups(6)
    steps = parts(made, updates=4, reduction="constant", denominator="all")
    heard = [group.group_id for group in made if len({e.reward for e in group.scored}) > 1]
    assert [row.group_id for rows in steps for row in rows] == [name for name in heard for _ in range(4)]
    # With two groups a step, each denominator has eight episodes.
    assert {row.weight for rows in steps for row in rows} == {1 / (8 * PLANNED)}


def test_a_batch_without_any_gradient_makes_no_step() -> None:
    assert parts(groups(3, others=0), denominator="all") == []


def test_all_is_the_default_of_gpg_alone() -> None:
    counted = [
        name
        for name in ADVANTAGES
        if AlgorithmSpec.model_validate({"advantage": {"method": name}}).counts_all
    ]
    assert counted == ["gpg"]
