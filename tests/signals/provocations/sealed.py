"""Runs of the split `sealed` that provoke symptoms, many for signals that were made more patient before.

Each change is clearly too much, and happens at a given step. No symptom here emerges by itself.
"""

from __future__ import annotations

from typing import Final

from tests.signals.circumstances import World
from tests.signals.provocations.kit import from_step, job, rate, room, run

from headway_api.signals import SignalName as S

HUNDRED: Final = {"reward": {"range": [0, 100]}}
STALE: Final = World(lags=(0, 1, 2))

RUNS: Final = (
    run(
        "turns-three-old", "sealed",
        "maxTurns becomes less than the procedure takes, and batches are old",
        *from_step(11, "maxTurns is 3", S.TURNS_EXHAUSTED, S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        spec=job(rate(1e-3), maxStepsOffPolicy=3), world=STALE, seed=801, step=11, then=room(32, 3),
    ),
    run(
        "spike-hundred-old", "sealed",
        "the reward comes on another scale, a hundred times as large, and batches are old",
        *from_step(11, "rewards are a hundred times as large", S.GRADIENT_SPIKING),
        spec=job(HUNDRED, rate(1e-3), advantage={"normalize": "none"}, maxStepsOffPolicy=3), world=STALE,
        seed=802, step=11, judge="in_hundreds",
    ),
    run(
        "heat-sealed", "sealed",
        "the servers sample at 1.6 times the temperature that the learner knows of, with cispo",
        *from_step(10, "the servers are hotter", S.POLICY_MISMATCH, S.ENTROPY_RISING),
        spec=job(rate(1e-3), loss="cispo"), seed=803, step=10, heat=1.6,
    ),
    run(
        "garbled-half", "sealed",
        "the servers lose the closing tag of half of the calls, with cispo",
        *from_step(10, "calls cannot be read", S.TOOL_CALLS_MALFORMED),
        spec=job(rate(1e-3), loss="cispo"), seed=804, step=10, garbled=0.5,
    ),
    run(
        "lost-tenth-again", "sealed",
        "a tenth of the episodes lose their sandbox for good, and batches are small",
        *from_step(10, "sandboxes are lost", S.PERMANENT_FAILURES),
        spec=job(rate(1e-3), batchSize=4, groupSize=6), seed=805, step=10, lost=0.1,
    ),
    run(
        "late-quarter-again", "sealed",
        "a quarter of the episodes do not end in time, with cispo",
        *from_step(11, "episodes are late", S.EPISODES_TIMED_OUT),
        spec=job(rate(1e-3), loss="cispo"), seed=806, step=11, late=0.25,
    ),
    run(
        "tokens-ten-old", "sealed",
        "maxTokens becomes less than an answer takes, and batches are old",
        *from_step(11, "maxTokens is 10", S.TURNS_TRUNCATED, S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        spec=job(rate(1e-3), maxStepsOffPolicy=3), world=STALE, seed=807, step=11, then=room(10, 6),
    ),
    run(
        "collapse-parser-again", "sealed",
        "the reward's parser finds no answer any more, with cispo",
        *from_step(10, "the reward is 0 throughout", S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        spec=job(rate(1e-3), loss="cispo"), seed=808, step=10, judge="nothing",
    ),
)  # fmt: skip
