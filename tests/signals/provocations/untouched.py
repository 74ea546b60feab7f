"""Runs of the split `untouched` that provoke symptoms, many with batches that are some steps old.

Each change is clearly too much, and happens at a given step. No symptom here emerges by itself.
"""

from __future__ import annotations

from typing import Final

from tests.signals.circumstances import World
from tests.signals.provocations.kit import at, from_start, from_step, job, rate, room, run

from headway_api.signals import SignalName as S

STALE: Final = World(lags=(0, 1, 2))
OLD: Final = World(lags=(1, 2))

RUNS: Final = (
    run(
        "mismatch-heat-old", "untouched",
        "the servers sample at 1.6 times the temperature that the learner knows of, and batches are old",
        *from_step(11, "the servers are hotter", S.POLICY_MISMATCH, S.ENTROPY_RISING),
        spec=job(maxStepsOffPolicy=3), world=STALE, seed=601, step=11, heat=1.6,
    ),
    run(
        "uniform-half-again", "untouched",
        "the reward becomes the same for every episode, and is not 0, with cispo",
        *from_step(10, "every episode is worth 0.5", S.GROUPS_UNIFORM, S.NOTHING_TO_TRAIN),
        spec=job(rate(1e-3), loss="cispo"), seed=602, step=10, judge="half",
    ),
    run(
        "mismatch-noise-old", "untouched",
        "the servers' weights have an error of a quarter, and batches are old, with cispo",
        *from_step(10, "the servers' weights are inexact", S.POLICY_MISMATCH),
        spec=job(rate(5e-4), loss="cispo", maxStepsOffPolicy=2), world=OLD, seed=703,
        step=10, weight_noise=0.25,
    ),
    run(
        "uniform-strict-again", "untouched",
        "all or nothing, small groups, a low temperature and a low learning rate, with cispo",
        *from_start(S.GROUPS_UNIFORM),
        spec=job(rate(1e-5), at(0.5), loss="cispo", batchSize=8, groupSize=4), world=World("strict"),
        seed=604,
    ),
    run(
        "tail-words-old", "untouched",
        "the servers' embeddings of a tenth of the words are wrong, and batches are old",
        *from_step(12, "some words' embeddings are wrong", S.MISMATCH_TAIL, S.TOO_FEW_EFFECTIVE_SAMPLES,
                   S.POLICY_MISMATCH),
        spec=job(maxStepsOffPolicy=3), world=STALE, seed=605, step=12, odd_tokens=1.0,
    ),
    run(
        "collapse-parser-old", "untouched",
        "the reward's parser finds no answer any more, and batches are old",
        *from_step(11, "the reward is 0 throughout", S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        spec=job(rate(1e-3), maxStepsOffPolicy=3), world=STALE, seed=606, step=11, judge="nothing",
    ),
    run(
        "uniform-half-small", "untouched",
        "the reward becomes the same for every episode in batches of three groups",
        *from_step(11, "every episode is worth 0.5", S.GROUPS_UNIFORM, S.NOTHING_TO_TRAIN),
        spec=job(rate(1e-3), batchSize=3, groupSize=8), seed=607, step=11, judge="half",
    ),
    run(
        "lost-tenth", "untouched",
        "a tenth of the episodes lose their sandbox for good",
        *from_step(10, "sandboxes are lost", S.PERMANENT_FAILURES),
        spec=job(rate(1e-3)), seed=608, step=10, lost=0.1,
    ),
    run(
        "masked-noise-old", "untouched",
        "sequence_mask with a narrow cap, inexact servers, and old batches",
        *from_step(12, "the servers' weights are inexact", S.TOKENS_MASKED, S.POLICY_MISMATCH),
        spec=job(correction="sequence_mask", correctionCap=1.05, maxStepsOffPolicy=2),
        world=World(lags=(0, 1)), seed=609, step=12, weight_noise=0.35,
    ),
    run(
        "turns-three-again", "untouched",
        "maxTurns becomes less than the procedure takes, with cispo",
        *from_step(11, "maxTurns is 3", S.TURNS_EXHAUSTED, S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        spec=job(rate(1e-3), loss="cispo"), seed=610, step=11, then=room(32, 3),
    ),
    run(
        "tokens-ten-again", "untouched",
        "maxTokens becomes less than an answer takes",
        *from_step(10, "maxTokens is 10", S.TURNS_TRUNCATED, S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        spec=job(rate(1e-3)), seed=611, step=10, then=room(10, 6),
    ),
    run(
        "garbled-third", "untouched",
        "the servers lose the closing tag of a third of the calls",
        *from_step(11, "calls cannot be read", S.TOOL_CALLS_MALFORMED),
        spec=job(rate(1e-3)), seed=612, step=11, garbled=0.33,
    ),
    run(
        "late-quarter", "untouched",
        "a quarter of the episodes do not end in time, and batches are old",
        *from_step(10, "episodes are late", S.EPISODES_TIMED_OUT),
        spec=job(rate(1e-3), maxStepsOffPolicy=3), world=STALE, seed=613, step=10, late=0.25,
    ),
    run(
        "stale-three-again", "untouched",
        "every batch is as old as the spec allows",
        *from_step(10, "every token is three steps old", S.STALENESS_AT_BOUND),
        spec=job(rate(1e-3), maxStepsOffPolicy=3), world=World(lags=(0, 1)), seed=614, step=10, lags=(3,),
    ),
    run(
        "entropy-cold-untouched", "untouched",
        "the temperature falls to 0.4; a fifth of the reward is luck, with cispo",
        *from_step(10, "the temperature is 0.4", S.ENTROPY_FALLING),
        spec=job(rate(1e-3), loss="cispo"), world=World("noisy"), seed=615, step=10, then=at(0.4),
    ),
    run(
        "flat-strict-again", "untouched",
        "the reward wants a form that the model never writes, with cispo",
        *from_start(S.REWARD_FLAT, S.NOTHING_TO_TRAIN),
        spec=job(loss="cispo"), world=World("strict_and_rare"), seed=616,
    ),
)  # fmt: skip
