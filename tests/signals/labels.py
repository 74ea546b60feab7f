"""Symptoms that a clean run shows. Rules over raw metrics alone; `describe.unclean` says which are clean.

No threshold of a signal is known here, except for those that the practice guide gives.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import Final

from tests.signals.rules import NORMAL
from tests.signals.series import Series

from headway_api.signals import SignalName

RISE: Final = 0.1
"""How far the held-out reward rises where something is learnt, as a share of its range."""
SLOW: Final = 25
"""Steps that the guide gives a change at least."""
BEST: Final = 0.95
"""Share of the reward's range from which a batch counts as solved."""
NOISE: Final = 10
"""Multiple of its normal by which entropy is provoked to rise (provocations/)."""
WINDOW: Final = 10
"""Steps from a symptom's first one in which it must show, that one besides."""
LEFT: Final = 0.5
"""Share of the reward that a policy which falls apart keeps at most: as `symptoms.RULES` has a collapse."""
PLATEAU: Final = 5
"""Steps before a fall, whose mean is what it falls from."""
MALFORMED: Final = "episodes/malformed_tool_call_rate"
NORM: Final = "training/grad_norm"
JUMP: Final = 10
"""Multiple of its normal from which a norm has jumped: an order of magnitude."""
CLIP: Final = 1.0
"""spec.optimizer.gradientClip of every clean run. What is below it reaches the weights as it is."""
MALFORMED_GROWS: Final = (2.0, 0.1)
"""Twice the normal, and a tenth of the episodes."""
RATES: Final = {
    SignalName.PERMANENT_FAILURES: ("episodes/outcome_InfraError_rate", 0.01),
    SignalName.TURNS_TRUNCATED: ("episodes/max_tokens_rate", 0.05),
    SignalName.CONTEXT_FULL: ("episodes/context_limit_rate", 0.05),
    SignalName.EPISODES_TIMED_OUT: ("episodes/time_limit_rate", 0.05),
    SignalName.TURNS_EXHAUSTED: ("episodes/turn_limit_rate", 0.10),
}
"""The guide's limits."""


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
"""What a policy that falls apart shows in its update and in what it does, around the steps of its fall."""


def shows(series: Series, signal: SignalName, step: int) -> bool:
    """Whether a clean run shows a symptom: at some step, or since its policy falls apart around this one."""
    near = any(abs(step - at) <= WINDOW for at in falls(series))
    return signal in present(series) or (signal in OF_A_FALL and near)


def shown_by(series: Series) -> set[SignalName]:
    """The symptoms that a clean run shows at some step, also those of a policy that falls apart."""
    return present(series) | (OF_A_FALL if falls(series) else set())


def present(series: Series) -> set[SignalName]:
    """The symptoms that a clean run shows: a signal that says so is right."""
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
    """Whether no group of three batches in a row has an advantage, and they are not solved on average.

    A batch of a few dozen episodes is above `BEST` now and then by luck: that one solves nothing.
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
    """Whether nothing is learnt within the steps that the guide gives, and the task is not solved already."""
    low, high = series.known.reward_range
    held_out = [value for step, value in series.curve("val/reward/mean") if step <= SLOW]
    risen = max(held_out) - held_out[0] >= RISE * (high - low)
    return not risen and held_out[0] < low + BEST * (high - low)


def becomes_noise(series: Series) -> bool:
    """Whether the entropy is at `NOISE` times its normal for three steps, and the reward falls with it.

    A run that falls and recovers has been ill (`describe.FALL`). Validations see that of every fifth step
    alone. The normal is the median of the first steps, as in `rules.grows`; the fall is from the five steps
    before.
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
    """Whether its policy falls apart somewhere."""
    return bool(falls(series))


def falls(series: Series) -> set[int]:
    """The steps at which the training reward falls by half for three, from a plateau of half its range.

    Validations come every few steps and do not see a policy that is back before the next one. While it falls,
    and while it returns, it is far from the one that sampled a batch that is some steps old.
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
    """Whether the share of malformed calls is somewhere what a provocation must bring about.

    That is `MALFORMED_GROWS` on the mean of `WINDOW` steps and one. The rule is older than the runs that it
    judges.
    """
    begins = range(NORMAL + 1, len(series.steps) - WINDOW)
    return any(grows(MALFORMED, *MALFORMED_GROWS, series, begin) for begin in begins)


def jumps(series: Series) -> bool:
    """Whether the gradient's norm is `JUMP` times its normal for two steps in a row, and above the clip.

    The normal is the median of the `NORMAL` steps before. One such step is what clipping is for.
    """
    norms = series.curve(NORM)
    for at in range(NORMAL, len(norms) - 1):
        normal = median(value for _, value in norms[at - NORMAL : at])
        (step, one), (after, other) = norms[at : at + 2]
        if after == step + 1 and min(one, other) >= JUMP * normal and min(one, other) > CLIP:
            return True
    return False


def normal_of(series: Series, name: str, begin: int) -> float | None:
    """What is normal in the run: the mean of its first steps."""
    values = [value for step, value in series.curve(name) if step < min(begin, NORMAL + 1)]
    return fmean(values) if values else None


def mean_from(series: Series, name: str, begin: int) -> float:
    """The mean of the steps in which the symptom must show."""
    return fmean(value for step, value in series.curve(name) if begin <= step <= begin + WINDOW)


def grows(name: str, factor: float, least: float, series: Series, begin: int) -> bool:
    """So many times the normal, and at least so much."""
    return mean_from(series, name, begin) >= max(factor * (normal_of(series, name, begin) or 0.0), least)


def _is_over(series: Series, metric: str, limit: float) -> bool:
    """Whether a rate is over its limit: in all episodes together, or twice over it for five steps."""
    values = [value for _, value in series.curve(metric)]
    bursts = [fmean(values[at : at + 5]) for at in range(len(values) - 4)]
    return bool(values) and (fmean(values) > limit or max(bursts, default=0.0) > 2 * limit)
