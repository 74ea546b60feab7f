"""Whether a symptom that a run provokes shows in its raw metrics.

The rules use raw metrics alone. A run whose symptom does not show provokes nothing, and is replaced by a run
with another seed or setting. Whether its signal was raised plays no part in that. A rule never asks for more
than its signal does. So no run is dropped only because the signal needs less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Final

from tests.signals.labels import (
    BEST,
    MALFORMED,
    MALFORMED_GROWS,
    RATES,
    RISE,
    WINDOW,
    grows,
    idles,
    mean_from,
    normal_of,
    stays_flat,
)
from tests.signals.series import Expected, Series

from headway_api.signals import SignalName as S

REWARD: Final = "rollout/reward/mean"
SCORE: Final = "rollout/external_score/mean"
EXPLAINED: Final = "rollout/reward_explained/"
TASK: Final = "rollout/task_reward/"
CLIPPED_BY_GSPO: Final = 0.15
"""Share of tokens that gspo clips in its paper (arXiv 2507.18071)."""
Shown = Callable[[Series, int], bool]
"""Maps a run and its symptom's first step to whether the symptom shows."""


def shows(series: Series, expected: Expected) -> bool:
    """Whether the metrics of a run show the symptom where it is expected to begin."""
    return RULES[expected.signal](series, expected.begin)


def _share(series: Series, value: float) -> float:
    """A reward as a share of the range that the spec gives it."""
    low, high = series.known.reward_range
    return (value - low) / (high - low)


def _unsolved(series: Series, begin: int) -> bool:
    return _share(series, mean_from(series, REWARD, begin)) < BEST


def _clips(series: Series, begin: int) -> bool:
    least = CLIPPED_BY_GSPO if series.known.loss == "gspo" else 0.02
    return grows("training/clip_fraction", 3, least, series, begin)


def _wastes(series: Series, begin: int) -> bool:
    """A tenth of the tokens' weight is lost, and three times the normal loss."""
    name = "training/effective_sample_share"
    lost = 1 - mean_from(series, name, begin)
    before = normal_of(series, name, begin)
    return lost >= max(0.1, 0.0 if before is None else 3 * (1 - before))


def _sharpens(series: Series, begin: int) -> bool:
    """At most a quarter of the normal entropy is left, and the task is not solved."""
    before = normal_of(series, "training/entropy", begin)
    left = mean_from(series, "training/entropy", begin)
    return before is not None and left <= before / 4 and _unsolved(series, begin)


def _collapses(series: Series, begin: int) -> bool:
    """On average, less than half of the best five steps before the symptom is left."""
    rewards = [_share(series, value) for step, value in series.curve(REWARD) if step < begin]
    best = max(fmean(rewards[max(0, end - 5) : end]) for end in range(1, len(rewards) + 1))
    return _share(series, mean_from(series, REWARD, begin)) < best / 2


def _parts(other: str, series: Series, begin: int) -> bool:
    """The reward rises from its first five steps to its best five, and `other` less than half as much."""
    rewards = [_share(series, value) for _, value in series.curve(REWARD)]
    means = [fmean(rewards[at : at + 5]) for at in range(len(rewards) - 4)]
    held = [_share(series, value) for _, value in series.curve(other)]
    ends = max(1, len(held) // 6)
    rise = max(means) - means[0]
    return rise >= RISE and fmean(held[-ends:]) - fmean(held[:ends]) < rise / 2


def _diverges(series: Series, begin: int) -> bool:
    """The tasks' rewards move apart by a fifth of the range, and one of them falls."""
    moves = []
    for name in {name for step in series.steps for name in step.metrics if name.startswith(TASK)}:
        before = normal_of(series, name, begin)
        assert before is not None
        moves.append(_share(series, mean_from(series, name, begin)) - _share(series, before))
    return len(moves) > 1 and max(moves) - min(moves) >= 0.2 and min(moves) < 0


def _one_sided(series: Series, begin: int) -> bool:
    """One number explains nine tenths of the reward, and no number did before."""
    largest = [
        (step.step, max(value for name, value in step.metrics.items() if name.startswith(EXPLAINED)))
        for step in series.steps
        if any(name.startswith(EXPLAINED) for name in step.metrics)
    ]
    before = [value for step, value in largest if step < begin]
    after = [value for step, value in largest if begin <= step <= begin + WINDOW]
    return fmean(before) < 0.9 <= fmean(after)


def _stale(series: Series, begin: int) -> bool:
    lags = [value for step, value in series.curve("staleness/lag_mean") if begin <= step <= begin + WINDOW]
    return min(lags) >= series.known.max_steps_off_policy > 0


def _over(metric: str, limit: float, series: Series, begin: int) -> bool:
    return mean_from(series, metric, begin) > limit


RULES: Final[Mapping[S, Shown]] = {
    **{name: partial(_over, metric, limit) for name, (metric, limit) in RATES.items()},
    S.REWARD_COLLAPSED: _collapses,
    S.NOTHING_TO_TRAIN: lambda series, begin: idles(series, begin, begin + WINDOW),
    S.VALIDATION_DIVERGED: partial(_parts, "val/reward/mean"),
    S.SCORE_DIVERGED: partial(_parts, SCORE),
    S.ENTROPY_FALLING: _sharpens,
    S.ENTROPY_RISING: partial(grows, "training/entropy", 3, 0.0),
    S.GRADIENT_SPIKING: partial(grows, "training/grad_norm", 3, 0.0),
    S.POLICY_MISMATCH: partial(grows, "training/mismatch_kl", 3, 0.001),
    S.MISMATCH_TAIL: partial(grows, "training/mismatch_far_share", 3, 0.001),
    S.TOO_FEW_EFFECTIVE_SAMPLES: _wastes,
    S.RATIOS_CLIPPED: _clips,
    S.TOKENS_MASKED: partial(grows, "training/masked_fraction", 3, 0.02),
    S.REWARD_FLAT: lambda series, begin: stays_flat(series),
    S.GROUPS_UNIFORM: lambda series, begin: (
        mean_from(series, "analysis/batch_valid_ratio", begin) < 0.5 and _unsolved(series, begin)
    ),
    S.LENGTH_EXPLODING: partial(grows, "rollout/tokens/response_mean", 1.5, 0.0),
    S.TOOL_CALLS_MALFORMED: partial(grows, MALFORMED, *MALFORMED_GROWS),
    S.TOOL_CALLS_INFLATING: partial(grows, "rollout/tool_calls/mean", 1.25, 0.0),
    S.REPETITION: partial(grows, "rollout/repetition/mean", 3, 0.05),
    S.TASKS_DIVERGING: _diverges,
    S.REWARD_ONE_SIDED: _one_sided,
    S.STALENESS_AT_BOUND: _stale,
}
"""Signal -> the rule for its symptom. For the guide's limits, the average must be over the limit."""
