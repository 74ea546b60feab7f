"""Runs for signals that few other runs provoke, or that were redefined. All are in the split `fresh`.

EpisodesTimedOut and GradientSpiking have provocations clearly above what the signals call too much: 5 % of
the episodes, and spec.optimizer.gradientClip.
"""

from __future__ import annotations

from typing import Final

from tests.signals.circumstances import World
from tests.signals.provocations.kit import (
    ENTROPY,
    TASKS,
    at,
    diverged,
    from_step,
    job,
    multiplied,
    rate,
    run,
)

from headway_api.signals import SignalName as S

HUNDRED: Final = {"reward": {"range": [0, 100]}}

RUNS: Final = (
    run(
        "late-eighth", "fresh", "an eighth of the episodes do not end in time",
        *from_step(10, "episodes are late", S.EPISODES_TIMED_OUT),
        seed=301, step=10, late=0.125,
    ),
    run(
        "late-sixth", "fresh", "a sixth of the episodes do not end in time, with cispo",
        *from_step(12, "episodes are late", S.EPISODES_TIMED_OUT),
        spec=job(rate(1e-3), loss="cispo"), seed=302, step=12, late=0.167,
    ),
    run(
        "late-fifth", "fresh", "a fifth of the episodes do not end in time, in small groups",
        *from_step(9, "episodes are late", S.EPISODES_TIMED_OUT),
        spec=job(rate(1e-3), batchSize=6, groupSize=6), seed=303, step=9, late=0.2,
    ),
    run(
        "spike-hundred", "fresh",
        "the reward comes on another scale, a hundred times as large, and advantages are not normalized",
        *from_step(11, "rewards are a hundred times as large", S.GRADIENT_SPIKING),
        spec=job(HUNDRED, advantage={"normalize": "none"}), seed=304, step=11, judge="in_hundreds",
    ),
    run(
        "spike-hundred-rloo", "fresh", "the same with rloo",
        *from_step(12, "rewards are a hundred times as large", S.GRADIENT_SPIKING),
        spec=job(HUNDRED, rate(1e-3), advantage={"method": "rloo"}), seed=305, step=12, judge="in_hundreds",
    ),
    run(
        "spike-hundred-opo", "fresh", "the same with opo and cispo",
        *from_step(10, "rewards are a hundred times as large", S.GRADIENT_SPIKING),
        spec=job(HUNDRED, rate(1e-3), loss="cispo", advantage={"method": "opo"}), seed=306,
        step=10, judge="in_hundreds",
    ),
    run(
        "hasty-again", "fresh", "the reward charges for calls: the model answers before it knows",
        diverged(S.SCORE_DIVERGED),
        spec=job(rate(4e-3), at(1.1)), world=World("hasty"), seed=307, steps=36,
    ),
    run(
        "impatient-cispo", "fresh", "the reward charges for every call and asks for no answer, with cispo",
        diverged(S.SCORE_DIVERGED),
        spec=job(rate(3e-3), at(1.2), loss="cispo"), world=World("impatient"), seed=308, steps=36,
    ),
    run(
        "one-field-again", "fresh", "the reward becomes one field's alone, with cispo",
        *from_step(11, "one number is all of the reward", S.REWARD_ONE_SIDED),
        spec=job(at(1.1), loss="cispo"), seed=309, step=11, judge="amount_alone",
    ),
    run(
        "one-count-again", "fresh", "the reward becomes a count of calls, and episodes are sampled hot",
        *from_step(10, "one number is all of the reward", S.REWARD_ONE_SIDED),
        spec=job(rate(1e-3), at(1.2)), seed=310, step=10, judge="impatient",
    ),
    run(
        "entropy-bonus-fresh", "fresh", "a bonus for entropy that outweighs the reward",
        multiplied(S.ENTROPY_RISING, ENTROPY, 10),
        spec=job(rate(1e-3)), seed=311, step=10, then=job(rate(1e-3), entropy={"coefficient": 1.0}),
    ),
    run(
        "clipped-heat-again", "fresh",
        "the servers sample at 1.6 times the temperature that the learner knows of",
        *from_step(11, "the servers are hotter", S.POLICY_MISMATCH, S.ENTROPY_RISING),
        seed=312, step=11, heat=1.6,
    ),
    run(
        "entropy-cold-fresh", "fresh", "the temperature falls to 0.4; a fifth of the reward is luck",
        *from_step(11, "the temperature is 0.4", S.ENTROPY_FALLING),
        spec=job(rate(1e-3)), world=World("noisy"), seed=313, step=11, then=at(0.4),
    ),
    run(
        "task-down-fresh", "fresh", "a tool that one of two tasks needs does not answer any more, with cispo",
        *from_step(11, "the tool of the task stock is down", S.TASKS_DIVERGING),
        spec=job(TASKS, loss="cispo"), seed=314, step=11, down="get_stock",
    ),
)  # fmt: skip
