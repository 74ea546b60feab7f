"""Symptoms that a clean run shows, found by rules over raw metrics; `describe.unclean` says which are clean.

These rules know no threshold of a signal, except for those that the practice guide gives.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import Final

from tests.signals.rules import NORMAL
from tests.signals.series import Series

from headway_api.signals import SignalName

RISE: Final = 0.1
"""How far the held-out reward rises if the policy learns, as a share of the reward's range."""
SLOW: Final = 25
"""Steps that a change needs at least, by the practice guide."""
BEST: Final = 0.95
"""Share of the reward's range above which a batch counts as solved."""
NOISE: Final = 10
"""Multiple of its normal value to which provocations raise the entropy (provocations/)."""
WINDOW: Final = 10
"""Steps after a symptom's first step in which the symptom must show."""
LEFT: Final = 0.5
"""Share of its reward that a collapsing policy keeps at most, as in the rule `symptoms.RULES` for
collapses."""
PLATEAU: Final = 5
"""Steps before a fall whose mean is the level that the reward falls from."""
MALFORMED: Final = "episodes/malformed_tool_call_rate"
NORM: Final = "training/grad_norm"
JUMP: Final = 10
"""Multiple of its normal value from which a norm counts as a jump: an order of magnitude."""
CLIP: Final = 1.0
"""spec.optimizer.gradientClip of every clean run. A norm below it is not clipped."""
MALFORMED_GROWS: Final = (2.0, 0.1)
"""The rate of malformed calls must reach twice its normal value, and a tenth of the episodes."""
RATES: Final = {
    SignalName.PERMANENT_FAILURES: ("episodes/outcome_InfraError_rate", 0.01),
    SignalName.TURNS_TRUNCATED: ("episodes/max_tokens_rate", 0.05),
    SignalName.CONTEXT_FULL: ("episodes/context_limit_rate", 0.05),
    SignalName.EPISODES_TIMED_OUT: ("episodes/time_limit_rate", 0.05),
    SignalName.TURNS_EXHAUSTED: ("episodes/turn_limit_rate", 0.10),
}
"""Metric and limit of each rate that the practice guide bounds."""


OF_A_FALL: Final = frozenset(
    {
        SignalName.ENTROPY_RISING,
        SignalName.GRADIENT_SPIKING,
        SignalName.MISMATCH_TAIL,
        SignalName.TOO_FEW_EFFECTIVE_SAMPLES,
        SignalName.RATIOS_CLIPPED,
        SignalName.TOKENS_MASKED,
        SignalName.TURNS_TRUNCATED,
        SignalName.TURNS_EXHAUSTED,
        SignalName.LENGTH_EXPLODING,
        SignalName.TOOL_CALLS_MALFORMED,
        SignalName.TOOL_CALLS_INFLATING,
        SignalName.REPETITION,
    }
)
"""Symptoms in the update and the behaviour of a collapsing policy, around the steps of its fall."""


def shows(series: Series, signal: SignalName, step: int) -> bool:
    """Whether a clean run shows a symptom, at any step or because its policy collapses around this step."""
    near = any(abs(step - at) <= WINDOW for at in falls(series))
    return signal in present(series) or (signal in OF_A_FALL and near)


def shown_by(series: Series) -> set[SignalName]:
    """The symptoms that a clean run shows at any step, with those of a collapsing policy."""
    return present(series) | (OF_A_FALL if falls(series) else set())


def present(series: Series) -> set[SignalName]:
    """The symptoms that a clean run shows. A signal that reports one of them is right."""
    found = {name for name, (metric, limit) in RATES.items() if _is_over(series, metric, limit)}
    if idles(series):
        found.add(SignalName.NOTHING_TO_TRAIN)
    if fmean(value for _, value in series.curve("analysis/batch_valid_ratio")) < 0.5:
        found.add(SignalName.GROUPS_UNIFORM)
    if stays_flat(series):
        found.add(SignalName.REWARD_FLAT)
    if becomes_noise(series):
        found.add(SignalName.ENTROPY_RISING)
    if garbles(series):
        found.add(SignalName.TOOL_CALLS_MALFORMED)
    if jumps(series):
        found.add(SignalName.GRADIENT_SPIKING)
    if falls_apart(series):
        found |= {SignalName.REWARD_COLLAPSED, SignalName.POLICY_MISMATCH}
    return found


def idles(series: Series, first: int = 1, last: int | None = None) -> bool:
    """Whether three batches in a row have no group with an advantage, and are unsolved on average.

    By luck, a batch of a few dozen episodes is sometimes above `BEST`. Such a batch alone does not count as
    solved.
    """
    low, high = series.known.reward_range
    found = [
        (step.metrics["analysis/batch_valid_ratio"], step.metrics["rollout/reward/mean"])
        for step in series.steps[first : None if last is None else last + 1]
    ]
    threes = (found[at : at + 3] for at in range(len(found) - 2))
    return any(
        not any(valid for valid, _ in three) and fmean(r for _, r in three) < low + BEST * (high - low)
        for three in threes
    )


def stays_flat(series: Series) -> bool:
    """Whether the policy learns nothing within `SLOW` steps, and the task is not solved already."""
    low, high = series.known.reward_range
    held_out = [value for step, value in series.curve("val/reward/mean") if step <= SLOW]
    risen = max(held_out) - held_out[0] >= RISE * (high - low)
    return not risen and held_out[0] < low + BEST * (high - low)


def becomes_noise(series: Series) -> bool:
    """Whether the entropy is at `NOISE` times its normal value for three steps, and the reward falls too.

    A run that falls and recovers is not clean (`describe.FALL`), but validations see only every fifth step.
    The normal value is the median of the first steps, as in `rules.grows`. The fall is relative to the mean
    of the five steps before.
    """
    low, high = series.known.reward_range
    entropy, reward = dict(series.curve("training/entropy")), dict(series.curve("rollout/reward/mean"))
    first = [value for step, value in entropy.items() if step <= NORMAL]
    for step in sorted(reward):
        three = range(step, step + 3)
        if step <= NORMAL or not first or not entropy.keys() >= {*three}:
            continue
        before = fmean(value for at, value in reward.items() if step - 5 <= at < step)
        fall = before - fmean(reward[at] for at in three)
        limit = NOISE * median(first)
        if all(entropy[at] >= limit for at in three) and fall >= RISE * (high - low):
            return True
    return False


def falls_apart(series: Series) -> bool:
    """Whether the policy collapses at any step."""
    return bool(falls(series))


def falls(series: Series) -> set[int]:
    """The steps at which the training reward halves for three steps, from a plateau of half its range.

    Validations come every few steps, and miss a policy that recovers before the next one. During the fall and
    the recovery, the policy is far from the one that sampled a batch a few steps earlier.
    """
    low, high = series.known.reward_range
    shares = [(step, (value - low) / (high - low)) for step, value in series.curve("rollout/reward/mean")]
    found = set[int]()
    for at in range(PLATEAU, len(shares) - 2):
        before = fmean(share for _, share in shares[at - PLATEAU : at])
        if before >= LEFT and fmean(share for _, share in shares[at : at + 3]) <= LEFT * before:
            found |= {step for step, _ in shares[at : at + 3]}
    return found


def garbles(series: Series) -> bool:
    """Whether the share of malformed calls reaches, somewhere, what a provocation must cause.

    That is `MALFORMED_GROWS`, for the mean of `WINDOW` + 1 steps. The rule is older than the runs that it
    judges.
    """
    begins = range(NORMAL + 1, len(series.steps) - WINDOW)
    return any(grows(MALFORMED, *MALFORMED_GROWS, series, begin) for begin in begins)


def jumps(series: Series) -> bool:
    """Whether the gradient norm is `JUMP` times its normal value for two steps in a row, and above the clip.

    The normal value is the median of the `NORMAL` steps before. A single such step does not count, because
    clipping handles it.
    """
    norms = series.curve(NORM)
    for at in range(NORMAL, len(norms) - 1):
        normal = median(value for _, value in norms[at - NORMAL : at])
        (step, one), (after, other) = norms[at : at + 2]
        if after == step + 1 and min(one, other) >= JUMP * normal and min(one, other) > CLIP:
            return True
    return False


def normal_of(series: Series, name: str, begin: int) -> float | None:
    """The normal value in the run: the mean of its first steps."""
    values = [value for step, value in series.curve(name) if step < min(begin, NORMAL + 1)]
    return fmean(values) if values else None


def mean_from(series: Series, name: str, begin: int) -> float:
    """The mean of the steps in which the symptom must show."""
    return fmean(value for step, value in series.curve(name) if begin <= step <= begin + WINDOW)


def grows(name: str, factor: float, least: float, series: Series, begin: int) -> bool:
    """Whether the mean is at least `factor` times the normal value, and at least `least`."""
    return mean_from(series, name, begin) >= max(factor * (normal_of(series, name, begin) or 0.0), least)


def _is_over(series: Series, metric: str, limit: float) -> bool:
    """Whether a rate is over its limit on average, or over twice its limit in five steps in a row."""
    values = [value for _, value in series.curve(metric)]
    bursts = [fmean(values[at : at + 5]) for at in range(len(values) - 4)]
    return bool(values) and (fmean(values) > limit or max(bursts, default=0.0) > 2 * limit)
