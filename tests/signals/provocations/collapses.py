"""The reward falls to nothing."""

from __future__ import annotations

from typing import Final

from tests.signals.circumstances import World
from tests.signals.provocations.kit import (
    COLLAPSED,
    ENTROPY,
    IDLING,
    from_step,
    job,
    multiplied,
    rate,
    reached,
    run,
    strong,
)

from headway_api.signals import SignalName as S

RUNS: Final = (
    run(
        "collapse-rate", "chosen_on",
        "importance_sampling without clipping: a learning rate of 0.0005 becomes 0.01",
        COLLAPSED, IDLING, reached(S.TURNS_EXHAUSTED, "episodes/turn_limit_rate", 0.5),
        spec=job(strong(128), rate(5e-4), {"optimizer": {"gradientClip": 0}}, loss="importance_sampling"),
        step=12, then=rate(1e-2),
    ),
    run(
        "collapse-cispo", "chosen_on",
        "cispo on tokens three steps old; then ten times the learning rate, and four updates a batch",
        COLLAPSED, IDLING,
        multiplied(S.ENTROPY_RISING, ENTROPY, 3),
        multiplied(S.GRADIENT_SPIKING, "training/grad_norm", 5),
        *from_step(12, "the learning rate is ten times as high, with four updates", S.POLICY_MISMATCH,
                   S.TOO_FEW_EFFECTIVE_SAMPLES),
        spec=job(strong(128), rate(5e-4), loss="cispo", maxStepsOffPolicy=4), world=World(lags=(3,)),
        step=12, then=job(strong(128), rate(5e-3), loss="cispo", updatesPerBatch=4),
    ),
    run(
        "collapse-parser", "chosen_on",
        "the reward's parser finds no answer any more: every episode is worth 0",
        *from_step(13, "the reward is 0 throughout", S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        step=13, judge="nothing",
    ),
    run(
        "collapse-updates", "chosen_on",
        "ppo, three times the learning rate and four updates a batch",
        COLLAPSED, IDLING, multiplied(S.GRADIENT_SPIKING, "training/grad_norm", 10),
        spec=job(), step=10, then=job(rate(6e-3), updatesPerBatch=4),
    ),
    run(
        "collapse-servers", "held_out",
        "the servers' weights have an error of 30 % from a step on",
        COLLAPSED,
        *from_step(11, "the servers' weights are inexact", S.POLICY_MISMATCH, S.TOO_FEW_EFFECTIVE_SAMPLES,
                   S.RATIOS_CLIPPED),
        step=11, seed=31, weight_noise=0.3,
    ),
    run(
        "collapse-ppo", "held_out",
        "ppo, five times the learning rate and four updates a batch",
        COLLAPSED, IDLING, multiplied(S.GRADIENT_SPIKING, "training/grad_norm", 5),
        spec=job(), seed=32, step=12, then=job(rate(1e-2), updatesPerBatch=4),
    ),
    run(
        "collapse-cispo-again", "held_out",
        "cispo on tokens two steps old; then ten times the learning rate, and four updates a batch",
        COLLAPSED, IDLING,
        multiplied(S.ENTROPY_RISING, ENTROPY, 3),
        spec=job(strong(128), rate(5e-4), loss="cispo", maxStepsOffPolicy=3), world=World(lags=(2,)),
        seed=33, step=11, then=job(strong(128), rate(5e-3), loss="cispo", updatesPerBatch=4),
    ),
)  # fmt: skip
