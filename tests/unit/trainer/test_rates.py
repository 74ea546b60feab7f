"""The learning rate of each optimizer step, against transformers' schedules and formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from headway_api.in_force import InForce
from headway_api.remedies import applied
from headway_api.spec.learner import OptimizerSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_trainer.engine import learning_rate

RATE, WARMUP, STEPS = 4e-5, 5, 40


def optimizer(**schedule: Any) -> OptimizerSpec:
    return OptimizerSpec.model_validate({"learningRate": RATE, "warmupSteps": WARMUP, "schedule": schedule})


def rates(spec: OptimizerSpec, steps: int = STEPS, horizon: int = STEPS) -> list[float]:
    return [learning_rate(spec, update, horizon) for update in range(steps)]


def transformers(make: Any) -> list[float]:
    """transformers' rate of each optimizer step. Its warm-up begins with a rate of 0."""
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    schedule, found = make(adam, num_warmup_steps=WARMUP, num_training_steps=STEPS), []
    for _ in range(STEPS):
        found.append(schedule.get_last_lr()[0])
        adam.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("decay", "make"),
    [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)],
)
def test_rates_after_warm_up_equal_those_of_transformers(decay: str, make: Any) -> None:
    assert rates(optimizer(decay=decay))[WARMUP:] == pytest.approx(transformers(make)[WARMUP:], rel=1e-12)


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_warm_up_is_linear_under_every_schedule(decay: str) -> None:
    found = rates(optimizer(decay=decay))
    assert found[:WARMUP] == pytest.approx([RATE * (n + 1) / WARMUP for n in range(WARMUP)])
    assert max(found) == found[WARMUP] == RATE
    assert all(rate > 0 for rate in found)


def test_a_constant_rate_after_warm_up_is_the_default() -> None:
    assert rates(OptimizerSpec(learning_rate=RATE, warmup_steps=WARMUP)) == [
        RATE * min(1.0, (n + 1) / WARMUP) for n in range(STEPS)
    ]
    assert rates(OptimizerSpec(learning_rate=RATE, warmup_steps=0), 3) == [RATE] * 3


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_schedule_ends_at_its_final_share_and_stays_there(decay: str) -> None:
    found = rates(optimizer(decay=decay, decaySteps=20, finalShare=0.1), 60)
    assert found[20:] == [RATE * 0.1] * 40
    middle = WARMUP + 5  # a third of the way from 5 to 20
    left = 2 / 3 if decay == "linear" else (1 + math.cos(math.pi / 3)) / 2
    assert found[middle] == pytest.approx(RATE * (0.1 + 0.9 * left))
    assert all(after <= before for before, after in zip(found[WARMUP:], found[WARMUP + 1 :], strict=False))


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_horizon_within_warm_up_is_handled(decay: str) -> None:
    found = rates(optimizer(decay=decay), 10, horizon=3)
    assert found[:WARMUP] == pytest.approx([RATE * (n + 1) / WARMUP for n in range(WARMUP)])
    assert found[WARMUP] == RATE
    assert found[WARMUP + 1 :] == [0.0] * 4


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_a_remedys_lower_rate_follows_the_same_schedule(decay: str) -> None:
    spec = RLTrainingJobSpec.model_validate(
        {
            "model": {"base": "s3://b/m"},
            "data": {"train": {"uri": "s3://b/t.jsonl"}},
            "environment": {"image": "i", "entrypoint": "m:C"},
            "evaluation": {"everySteps": 0, "atStart": False},
            "output": {"uri": "s3://b/out"},
            "optimizer": optimizer(decay=decay).as_object(),
        }
    )
    lower = applied(spec, InForce(number=1, learning_rate=RATE / 2)).optimizer
    assert rates(lower) == pytest.approx([rate / 2 for rate in rates(spec.optimizer)])
