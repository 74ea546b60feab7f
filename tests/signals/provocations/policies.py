"""Symptoms of the policy and its gradient, and of differences between servers and learner."""

from __future__ import annotations

from typing import Final

from tests.signals.circumstances import World
from tests.signals.provocations.kit import ENTROPY, at, from_start, from_step, job, multiplied, rate, run

from headway_api.signals import SignalName as S

RUNS: Final = (
    run(
        "entropy-cold", "chosen_on",
        "the temperature falls to 0.4; a fifth of the reward is luck, so that groups still differ",
        *from_step(10, "the temperature is 0.4", S.ENTROPY_FALLING),
        world=World("noisy"), step=10, then=at(0.4),
    ),
    run(
        "entropy-cold-again", "held_out",
        "the temperature falls to 0.5; a fifth of the reward is luck",
        *from_step(9, "the temperature is 0.5", S.ENTROPY_FALLING),
        spec=job(rate(1e-3)), world=World("noisy"), seed=61, step=9, then=at(0.5),
    ),
    run(
        "entropy-bonus", "chosen_on",
        "a bonus for entropy that outweighs the reward",
        multiplied(S.ENTROPY_RISING, ENTROPY, 10),
        step=10, then=job(entropy={"coefficient": 1.0}),
    ),
    run(
        "entropy-bonus-again", "held_out",
        "a bonus for entropy that outweighs the reward, with cispo",
        multiplied(S.ENTROPY_RISING, ENTROPY, 10),
        spec=job(loss="cispo"), seed=162, step=9, then=job(loss="cispo", entropy={"coefficient": 0.5}),
    ),
    run(
        "spike-scale", "chosen_on",
        "the reward comes on another scale, twenty times as large, and advantages are not normalized",
        *from_step(12, "rewards are twenty times as large", S.GRADIENT_SPIKING),
        spec=job({"reward": {"range": [0, 20]}}, advantage={"normalize": "none"}),
        step=12, judge="in_twenties",
    ),
    run(
        "spike-scale-again", "held_out",
        "the same with rloo",
        *from_step(10, "rewards are twenty times as large", S.GRADIENT_SPIKING),
        spec=job({"reward": {"range": [0, 20]}}, advantage={"method": "rloo"}), seed=63,
        step=10, judge="in_twenties",
    ),
    run(
        "mismatch-heat", "chosen_on",
        "the servers sample at 1.2 times the temperature that the learner knows of",
        *from_step(12, "the servers are hotter", S.POLICY_MISMATCH),
        step=12, heat=1.2,
    ),
    run(
        "mismatch-noise", "chosen_on",
        "the servers' weights have an error of a quarter",
        *from_step(10, "the servers' weights are inexact", S.POLICY_MISMATCH),
        spec=job(loss="cispo"), seed=64, step=10, weight_noise=0.25,
    ),
    run(
        "mismatch-heat-again", "held_out",
        "the servers sample at 1.25 times the temperature that the learner knows of",
        *from_step(11, "the servers are hotter", S.POLICY_MISMATCH),
        spec=job(rate(1e-3)), seed=65, step=11, heat=1.25,
    ),
    run(
        "tail-words", "chosen_on",
        "the servers' embeddings of a tenth of the words are off by 0.8 of their size",
        *from_step(12, "some words' embeddings are off", S.MISMATCH_TAIL),
        step=12, odd_tokens=0.8,
    ),
    run(
        "tail-words-gspo", "chosen_on",
        "the same by 0.9 of their size, with gspo",
        *from_step(9, "some words' embeddings are off", S.MISMATCH_TAIL),
        spec=job(loss="gspo"), seed=66, step=9, odd_tokens=0.9,
    ),
    run(
        "tail-words-again", "held_out",
        "the same by 0.85 of their size, with importance_sampling",
        *from_step(10, "some words' embeddings are off", S.MISMATCH_TAIL),
        spec=job(rate(1e-3), loss="importance_sampling"), seed=67, step=10, odd_tokens=0.85,
    ),
    run(
        "weights-few", "chosen_on",
        "the servers' embeddings of a tenth of the words are wrong, and nothing bounds the correction",
        *from_step(12, "some words' embeddings are wrong", S.TOO_FEW_EFFECTIVE_SAMPLES, S.MISMATCH_TAIL,
                   S.POLICY_MISMATCH),
        spec=job(correction="decoupled"), step=12, odd_tokens=1.0,
    ),
    run(
        "weights-few-again", "held_out",
        "the same without a correction",
        *from_step(10, "some words' embeddings are wrong", S.TOO_FEW_EFFECTIVE_SAMPLES, S.MISMATCH_TAIL),
        seed=68, step=10, odd_tokens=1.0,
    ),
    run(
        "clipped-gspo", "chosen_on",
        "gspo with the bounds of its paper, four updates a batch and a high learning rate",
        *from_start(S.RATIOS_CLIPPED),
        spec=job(loss="gspo", clip={"low": 0.9997, "high": 1.0004}, updatesPerBatch=4),
    ),
    run(
        "clipped-heat", "chosen_on",
        "the servers sample at 1.5 times the temperature that the learner knows of",
        *from_step(12, "the servers are hotter", S.RATIOS_CLIPPED, S.POLICY_MISMATCH, S.ENTROPY_RISING),
        seed=69, step=12, heat=1.5,
    ),
    run(
        "clipped-gspo-again", "held_out",
        "gspo with narrow bounds on tokens two steps old",
        *from_step(10, "tokens are two steps old and the bounds are a thousandth wide", S.RATIOS_CLIPPED),
        spec=job(loss="gspo", maxStepsOffPolicy=3), seed=70,
        step=10, then=job(loss="gspo", clip={"low": 0.999, "high": 1.001}), lags=(2,),
    ),
    run(
        "masked-noise", "chosen_on",
        "sequence_mask with a narrow cap, and servers whose weights have an error of 0.3",
        *from_step(12, "the servers' weights are inexact", S.TOKENS_MASKED, S.POLICY_MISMATCH),
        spec=job(correction="sequence_mask", correctionCap=1.05), step=12, weight_noise=0.3,
    ),
    run(
        "masked-words", "chosen_on",
        "sequence_mask with a narrow cap, and servers whose embeddings of some words are off",
        *from_step(9, "some words' embeddings are off", S.TOKENS_MASKED, S.MISMATCH_TAIL),
        spec=job(correction="sequence_mask", correctionCap=1.05), seed=71, step=9, odd_tokens=0.8,
    ),
    run(
        "masked-again", "held_out",
        "sequence_mask with a cap of 1.1, and servers that are too hot",
        *from_step(11, "the servers are hotter", S.TOKENS_MASKED),
        spec=job(correction="sequence_mask", correctionCap=1.1), seed=72, step=11, heat=1.5,
    ),
    run(
        "stale-three", "chosen_on",
        "every batch is as old as the spec allows",
        *from_step(12, "every token is three steps old", S.STALENESS_AT_BOUND),
        spec=job(rate(1e-3), maxStepsOffPolicy=3), world=World(lags=(0, 1)), step=12, lags=(3,),
    ),
    run(
        "stale-one", "chosen_on",
        "every batch is as old as the spec allows, which is a step",
        *from_step(8, "every token is a step old", S.STALENESS_AT_BOUND),
        spec=job(rate(1e-3), maxStepsOffPolicy=1), world=World(lags=(0, 0, 1)), seed=73, step=8, lags=(1,),
    ),
    run(
        "stale-two", "held_out",
        "every batch is as old as the spec allows",
        *from_step(10, "every token is two steps old", S.STALENESS_AT_BOUND),
        spec=job(rate(1e-3), maxStepsOffPolicy=2), world=World(lags=(0, 1, 2)), seed=74, step=10, lags=(2,),
    ),
)  # fmt: skip
