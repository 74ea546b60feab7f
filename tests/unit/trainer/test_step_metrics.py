"""Metrics of a step: every name is declared, and the numbers add up."""

from __future__ import annotations

import math
from dataclasses import replace

import learner_rig as rig
import numpy as np
import pytest

from headway_api import metrics as catalogue
from headway_api.exits import JobError
from headway_api.records import Batch
from headway_api.spec.algorithm import AlgorithmSpec
from headway_trainer.batch import training_batch
from headway_trainer.engine import Update
from headway_trainer.metrics import step_metrics
from headway_trainer.objective.presets import Objective
from headway_trainer.step import NonFiniteLoss, StepResult, refuse_non_finite

TOKENS = {
    "loss": 0.5,
    "ratio": 1.0,
    "clipped": 0.1,
    "kl": 0.01,
    "k3": 0.02,
    "entropy": 2.0,
    "correction": 1.0,
    "masked": 0.0,
    "divergence": 0.3,
    "weight_squared": 1.25,
    "far": 0.05,
    "ratio_max": 3.0,
    "ratio_min": 0.5,
    "gap_max": 1.1,
}


def update(loss: float, tokens: int) -> StepResult:
    return StepResult(Update(1.5, 1e-4), TOKENS | {"loss": loss}, action_tokens=tokens, micro_batches=2)


def non_finite(loss: float = 0.5, norm: float = 1.5) -> StepResult:
    """An update with this loss and gradient norm, of which a test makes one non-finite."""
    return StepResult(Update(norm, 1e-4), TOKENS | {"loss": loss}, action_tokens=4, micro_batches=1)


def batch() -> Batch:
    groups = [rig.group("a", [1.0, 0.0, None]), rig.group("b", [1.0, 1.0])]
    return Batch(step=4, epoch=1, groups=groups)


def test_every_metric_of_a_step_is_declared() -> None:
    parts = "policy_update save_checkpoint prune publish_weights training wait_for_batch step start other"
    seconds = dict.fromkeys(parts.split(), 1.0)
    found = step_metrics(training_batch(batch(), Objective.of(AlgorithmSpec())), [update(0.5, 10)], seconds)
    known = {family.name for family in catalogue.FAMILIES}
    assert set(found) - known == set()


def test_counts_of_a_batch_with_a_filtered_group() -> None:
    made = training_batch(batch(), Objective.of(AlgorithmSpec()))
    found = step_metrics(made, [], {})
    rows = [row for episode in batch().groups[0].scored for row in episode.rows]
    tokens, action = sum(len(row.tokens) for row in rows), sum(row.action_tokens for row in rows)
    assert found["training/num_groups"] == 2
    assert found["training/num_trained_groups"] == 1
    assert found["training/num_trajectories"] == 5
    assert found["training/num_datums"] == 2
    assert found["training/datums_per_trajectory"] == 1
    assert found["training/total_tokens"] == tokens
    assert found["training/trainable_token_positions"] == action
    assert found["training/action_tokens_mean"] == action / 2
    assert found["training/obs_tokens_mean"] == (tokens - action) / 2
    assert (found["rollout/advantage/n_positive"], found["rollout/advantage/n_negative"]) == (1, 1)


def test_updates_are_averaged_by_their_tokens() -> None:
    made = training_batch(batch(), Objective.of(AlgorithmSpec()))
    found = step_metrics(made, [update(1.0, 30), update(0.0, 10)], {})
    assert found["training/loss"] == pytest.approx(0.75)
    assert found["training/updates"] == 2
    assert found["training/micro_batches"] == 4


def test_a_metric_that_is_not_a_number_is_left_out() -> None:
    """If a log-probability is far from the sampler's, the estimate of the divergence overflows."""
    far = StepResult(Update(1.5, 1e-4), TOKENS | {"k3": math.inf}, action_tokens=4, micro_batches=1)
    found = step_metrics(training_batch(batch(), Objective.of(AlgorithmSpec())), [far], {})
    assert "training/mismatch_kl" not in found
    assert found["training/loss"] == 0.5


def test_the_effective_share_follows_kishs_formula() -> None:
    weights = np.array([1.0, 1.0, 2.0, 0.5])
    gaps = np.log(weights)
    tokens = {
        "kl": -gaps.mean(),
        "k3": (weights - 1 - gaps).mean(),
        "weight_squared": (weights**2).mean(),
    }
    made = training_batch(batch(), Objective.of(AlgorithmSpec()))
    one = StepResult(Update(1.5, 1e-4), TOKENS | tokens, action_tokens=4, micro_batches=1)
    found = step_metrics(made, [one], {})["training/effective_sample_share"]
    assert found == pytest.approx(weights.sum() ** 2 / (4 * (weights**2).sum()))


@pytest.mark.parametrize(
    "tokens",
    [{"weight_squared": 0.0}, {"weight_squared": math.inf, "k3": math.inf}, {"k3": 1e200}],
    ids=["too small", "too large", "too large for its square"],
)
def test_overflowing_weights_have_no_effective_sample_share(tokens: dict[str, float]) -> None:
    made = training_batch(batch(), Objective.of(AlgorithmSpec()))
    one = StepResult(Update(1.5, 1e-4), TOKENS | tokens, action_tokens=4, micro_batches=1)
    assert "training/effective_sample_share" not in step_metrics(made, [one], {})


def test_deepspeeds_norm_of_minus_one_is_a_non_finite_gradient() -> None:
    with pytest.raises(JobError, match="norm of the gradient of step 4") as refused:
        refuse_non_finite([non_finite(norm=-1.0)], 4, own={})
    assert refused.value.termination.reason == "GradientNotFinite"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("part", "reason"), [("loss", "LossNotFinite"), ("norm", "GradientNotFinite")], ids=["loss", "gradient"]
)
def test_a_step_that_may_have_broken_the_weights_is_refused(part: str, reason: str, value: float) -> None:
    with pytest.raises(JobError, match=f"of step 4 is .*{value}") as refused:
        refuse_non_finite([update(0.5, 10), non_finite(**{part: value})], 4, own={})
    termination = refused.value.termination
    assert (termination.reason, termination.field) == (reason, "spec.optimizer.learningRate")
    assert "spec.model.warmStart.job" in termination.message


def test_a_custom_loss_is_suspected_before_the_learning_rate() -> None:
    with pytest.raises(JobError, match="loss 'sapo' and its gradient are finite") as refused:
        refuse_non_finite([non_finite(loss=math.nan)], 4, own={"spec.algorithm.loss": "sapo"})
    assert refused.value.termination.field == "spec.algorithm.plugins"


@pytest.mark.parametrize(
    ("cause", "field", "advice"),
    [
        ("policy", "spec.optimizer.learningRate", "lower the learning rate"),
        ("servers", "spec.rollout.engine", "the rollout servers sent that log-probability"),
        ("batch", "spec.reward", "check that rewards are finite"),
        ("loss", "spec.algorithm.loss", "use a loss that bounds the ratio"),
    ],
)
def test_a_non_finite_loss_names_its_first_token_and_its_cause(cause: str, field: str, advice: str) -> None:
    where = NonFiniteLoss("t0-000003", 2, 17, cause, "log-probability nan, the servers' -1")
    with pytest.raises(JobError) as refused:
        refuse_non_finite([replace(non_finite(loss=math.nan), non_finite=where)], 4, own={})
    termination = refused.value.termination
    assert "group t0-000003, episode 2, action token 17: log-probability nan" in termination.message
    assert advice in termination.message
    assert termination.field == field


def test_a_step_with_finite_values_is_accepted() -> None:
    refuse_non_finite([update(0.5, 10), update(-0.5, 10)], 4, own={})
    refuse_non_finite([], 4, own={})
