"""Off-policy corrections against the formulas of their papers, in plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from headway_api.spec.algorithm import AlgorithmSpec
from headway_trainer.objective.correction import CORRECTIONS
from headway_trainer.objective.presets import Objective

ROWS = [0, 0, 0, 1, 2, 2]


def drawn(seed: int) -> tuple[list[float], list[float]]:
    """Log-probabilities of six tokens, by the servers, and by the learner before the first step."""
    numbers = np.random.default_rng(seed)
    servers = -numbers.uniform(0.1, 4.0, len(ROWS))
    return servers.tolist(), (servers + numbers.normal(0, 0.8, len(ROWS))).tolist()


def icepop(servers: list[float], learners: list[float], floor: float, cap: float) -> list[float]:
    """M(k) of arXiv 2510.18855, section 3: k = p_train / p_infer where floor <= k <= cap, else 0."""
    ratios = [math.exp(mine) / math.exp(theirs) for mine, theirs in zip(learners, servers, strict=True)]
    return [k if floor <= k <= cap else 0.0 for k in ratios]


def sequence_tis(servers: list[float], learners: list[float], cap: float) -> list[float]:
    """min(prod_t p_train / p_infer, cap) over a sequence. All its tokens have the same weight."""
    products = dict.fromkeys(ROWS, 1.0)
    for row, mine, theirs in zip(ROWS, learners, servers, strict=True):
        products[row] *= math.exp(mine) / math.exp(theirs)
    return [min(products[row], cap) for row in ROWS]


def found(chosen: dict[str, Any], servers: list[float], learners: list[float]) -> Any:
    """The tokens' loss with ppo, its gradient by the new log-probabilities, and the correction's weights."""
    objective = Objective.of(AlgorithmSpec.model_validate(chosen))
    new_T = torch.tensor(learners, dtype=torch.float64) + 0.05
    new_T.requires_grad_()
    loss, seen = objective.token_loss(
        new_T,
        torch.tensor(servers, dtype=torch.float64),
        torch.tensor([1.0, -2.0, 0.5, 1.5, -1.0, 3.0], dtype=torch.float64),
        torch.full((len(ROWS),), 1 / len(ROWS), dtype=torch.float64),
        row_T=torch.tensor(ROWS),
        old_T=torch.tensor(learners, dtype=torch.float64),
    )
    loss.backward()
    return loss.item(), new_T.grad, seen.correction_T


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("floor", "cap"), [(None, None), (0.8, 1.2), (0.0, 3.0)])
def test_icepop_weighs_a_token_within_bounds_and_drops_it_beyond(
    seed: int, floor: float | None, cap: float | None
) -> None:
    servers, learners = drawn(seed)
    bounds = {"correctionFloor": floor, "correctionCap": cap}
    given = {name: value for name, value in bounds.items() if value is not None}
    expected = icepop(servers, learners, 0.5 if floor is None else floor, cap or 5.0)
    loss, gradient, weights = found({"correction": "icepop"} | given, servers, learners)
    np.testing.assert_allclose(weights, expected, rtol=1e-9)
    by_hand(loss, gradient, expected)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("cap", [None, 1.0, 1.3])
def test_sequence_tis_weighs_every_token_by_its_rows_product(seed: int, cap: float | None) -> None:
    servers, learners = drawn(seed)
    expected = sequence_tis(servers, learners, cap or 2.0)
    given = {} if cap is None else {"correctionCap": cap}
    loss, gradient, weights = found({"correction": "sequence_tis"} | given, servers, learners)
    np.testing.assert_allclose(weights, expected, rtol=1e-9)
    by_hand(loss, gradient, expected)


def by_hand(loss: float, gradient: Any, weights: list[float]) -> None:
    """Check PPO at a ratio of e^0.05, which no bound clips, with each token times its weight."""
    ratio, advantages = math.exp(0.05), [1.0, -2.0, 0.5, 1.5, -1.0, 3.0]
    parts = [-w * ratio * a / len(ROWS) for w, a in zip(weights, advantages, strict=True)]
    assert loss == pytest.approx(sum(parts), rel=1e-9)
    np.testing.assert_allclose(gradient, parts, rtol=1e-9)  # the ratio is its own derivative


@pytest.mark.parametrize("name", ["icepop", "sequence_tis"])
def test_equal_policies_have_weight_1(name: str) -> None:
    servers, _ = drawn(0)
    _, _, weights = found({"correction": name}, servers, servers)
    assert weights.tolist() == [1.0] * len(ROWS)
    assert CORRECTIONS[name].recomputes


@pytest.mark.parametrize("name", ["icepop", "sequence_tis"])
def test_a_gap_without_bounds_is_finite(name: str) -> None:
    _, gradient, weights = found({"correction": name}, [-2000.0] * 6, [-0.1] * 6)
    assert torch.isfinite(weights).all()
    assert torch.isfinite(gradient).all()
