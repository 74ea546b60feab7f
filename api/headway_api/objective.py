"""Expands `spec.algorithm`: every choice and bound of the objective written out.

One pure function serves the learner, which runs the result, and the coordinator, which shows it in
`.status.algorithm`. So the two cannot disagree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headway_api.spec.algorithm import (
    ADVANTAGES,
    CAPPED,
    CAPS,
    CORRECTIONS,
    DEFAULT_CAP,
    DEFAULT_FLOOR,
    DISCOUNTING,
    FLOORED,
    NORMALIZING,
    AlgorithmSpec,
)
from headway_api.spec.training import RLTrainingJobSpec

SEQUENCE_LOSSES: Final = {"gspo": "ppo"}
"""Names of losses, and the surrogate that each computes with the ratio of whole sequences."""
LENGTHLESS: Final = ("token_mean", "sequence_mean", "prompt_mean")
"""Reductions that do not use a planned length."""
SAME: Final = 1e-9
"""Largest difference of rewards that count as equal: a share of the largest magnitude, or of 1 if that is
larger."""
SAME_SINGLE: Final = 2.0**-20
"""`SAME` for rewards that are float32 numbers: eight times float32's rounding. An environment that sums in
float32 gets other sums in another order."""


@dataclass(frozen=True)
class Preset:
    """The chosen function on each axis of the objective, and its numbers. None: the function does not use
    this number."""

    loss: str
    """Name of the loss in the spec."""
    advantage: str
    normalize: str | None
    gamma: float | None
    ratio: str
    surrogate: str
    clip_low: float | None
    """Lower bound of the ratio itself; 0 is no bound."""
    clip_high: float | None
    clip_dual: float | None
    correction: str
    correction_cap: float | None
    correction_floor: float | None
    reduction: str
    episode_tokens: int | None
    """Maximum tokens that the job plans to sample in an episode, for the reduction."""
    denominator: str
    """`trained` or `all`: which groups the reduction divides by."""
    kl_coefficient: float
    kl_estimator: str | None
    entropy_coefficient: float
    plugins: tuple[str, ...]


def uniform(values: Iterable[float]) -> bool:
    """Whether all values are equal up to rounding (`SAME`, `SAME_SINGLE`). True for a single value.

    A reward that is a sum depends on the order of its parts: 0.1 + 0.2 is not 0.3. A group with only these
    two rewards has nothing to learn from.
    """
    found = list(values)
    if len(found) < 2:
        return True
    least, maximum = min(found), max(found)
    same = SAME_SINGLE if all(map(_is_single, found)) else SAME
    return bool(maximum - least <= same * max(1.0, abs(least), abs(maximum)))


def _is_single(value: float) -> bool:
    """Whether float32 holds it exactly."""
    try:
        return bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def episode_tokens(spec: RLTrainingJobSpec) -> int:
    """Maximum tokens that a job plans to sample in an episode.

    maxTokens x maxTurns, or maxTokens with an agent of the user's own, whose turns are not limited.
    """
    return spec.rollout.sampling.max_tokens * spec.agent.planned_turns


def expand(algorithm: AlgorithmSpec, episode_tokens: int) -> Preset:
    """The objective with the defaults of the loss; `episode_tokens` is the result of the function of that
    name."""
    clip, advantage = algorithm.effective_clip, algorithm.advantage
    dual = algorithm.clip.dual if algorithm.clip else None
    discounts = advantage.method in DISCOUNTING or advantage.method not in ADVANTAGES
    normalizes = advantage.method in NORMALIZING or advantage.method not in ADVANTAGES
    floored = algorithm.correction in FLOORED or algorithm.correction not in CORRECTIONS
    floor = DEFAULT_FLOOR if algorithm.correction_floor is None else algorithm.correction_floor
    capped = algorithm.correction in CAPPED or algorithm.correction not in CORRECTIONS
    return Preset(
        loss=algorithm.loss,
        advantage=advantage.method,
        normalize=advantage.normalize if normalizes else None,
        gamma=(1.0 if advantage.gamma is None else advantage.gamma) if discounts else None,
        ratio=algorithm.ratio or ("sequence" if algorithm.loss in SEQUENCE_LOSSES else "token"),
        surrogate=SEQUENCE_LOSSES.get(algorithm.loss, algorithm.loss),
        clip_low=clip.low if clip else None,
        clip_high=clip.high if clip else None,
        clip_dual=dual,
        correction=algorithm.correction,
        correction_cap=algorithm.correction_cap or CAPS.get(algorithm.correction, DEFAULT_CAP)
        if capped
        else None,
        correction_floor=floor if floored else None,
        reduction=algorithm.reduction,
        episode_tokens=None if algorithm.reduction in LENGTHLESS else episode_tokens,
        denominator="all" if algorithm.counts_all else "trained",
        kl_coefficient=algorithm.kl.coefficient,
        kl_estimator=algorithm.kl.estimator if algorithm.kl.coefficient else None,
        entropy_coefficient=algorithm.entropy.coefficient,
        plugins=algorithm.plugins,
    )
