"""Judges of the policy's update: does a training step still have its intended effect?"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Final

from headway_analysis.signals.definition import Judge, Level, Reading
from headway_analysis.signals.evidence import above, below, level
from headway_analysis.signals.history import History
from headway_analysis.signals.judges.learning import (
    BACK,
    LAST,
    REWARD,
    RISEN,
    STRONG_EVIDENCE_FACTOR,
    WINDOW,
    solved,
    stalls,
)

ENTROPY: Final = "training/entropy"
NORM: Final = "training/grad_norm"
LAG: Final = "staleness/lag_mean"
OLDEST: Final = "staleness/lag_max"
EFFECTIVE: Final = "training/effective_sample_share"

ENTROPY_LOW: Final = 0.15
ENTROPY_LOW_AGAIN: Final = 0.25
ENTROPY_HIGH: Final = 3.0
ENTROPY_MORE: Final = 0.7
ENTROPY_LASTS: Final = 0.35
"""Half of `ENTROPY_MORE`: enough for the median of `BACK` steps."""
ENTROPY_LEAST: Final = 8
"""How many of the last `BACK` steps must have an entropy for their median to count."""
SPIKE: Final = 5.0
SPIKE_OVER: Final = 2.0
FRESH_LAG: Final = 0.25
"""Mean age in steps up to which a batch counts as sampled by the policy that is trained on it."""
MISMATCH: Final = 0.005
MISMATCH_DRIFTED: Final = 0.05
FAR: Final = 0.002
FAR_DRIFTED: Final = 0.05
EFFECTIVE_LEAST: Final = 0.8
EFFECTIVE_AGAIN: Final = 0.9
CLIPPED: Final = 0.05
CLIPPED_ROWS: Final = 0.25
MASKED: Final = 0.1
MASKED_AGAIN: Final = 0.05
STALE: Final = 0.9
FRESH: Final = 0.75
LEAST: Final = 1e-9
"""If a first level is smaller than this, no ratio to it is judged."""
LONGEST: Final = 7
"""An older batch counts as this many steps old, so that a lasting mismatch is still raised soon."""
LONGER: Final = (
    "If the batch is not fresh, the median covers two more steps for each step of its tokens' age. That age "
    f"is the largest of the last {LAST} steps (`{OLDEST}`), and at most {LONGEST}. The median stays at "
    f"{LAST} steps if it exceeds {STRONG_EVIDENCE_FACTOR:g} times the threshold there. It also stays at "
    f"{LAST} if the median of `{EFFECTIVE}` is below {EFFECTIVE_AGAIN:.0%}."
)
"""How many steps the median covers if batches are not fresh, in words."""
IF_FRESH: Final = (
    f"if the batch is fresh (at most {FRESH_LAG:g} steps old on average, and used for one update)"
)
"""When the lower threshold of a mismatch applies, in words."""
NORM_BEFORE: Final = 20
STALE_FOR: Final = 10


def entropy_falling(history: History) -> Reading | None:
    """The entropy now, as a share of the entropy of the first steps."""
    found = _against_first(history, ENTROPY)
    if found is None:
        return None
    now, first, share = found
    observed = f"the entropy is {now:.3g} nats a token, {share:.0%} of the {first:.3g} of the first steps"
    if solved(history):
        return Reading(Level.CLEAR, share, ENTROPY_LOW, f"{observed}, and the reward is near its best")
    return Reading(below(share, ENTROPY_LOW, ENTROPY_LOW_AGAIN), share, ENTROPY_LOW, observed)


def entropy_rising(history: History) -> Reading | None:
    """The entropy now, divided by the entropy of the first steps.

    A reading is over if the reward falls too, or if the entropy has been high for long. A step that trains
    nothing has no entropy, so the last three values within `WINDOW` steps are used.
    """
    first = level(history.first(ENTROPY, WINDOW), WINDOW)
    now = level(history.recent(ENTROPY, WINDOW)[-LAST:], LAST)
    if first is None or now is None or first < LEAST:
        return None
    fallen = _fallen(history)
    long = level(history.recent(ENTROPY, BACK), ENTROPY_LEAST)
    high, lasts = _risen(now, first, ENTROPY_MORE), _risen(long or 0.0, first, ENTROPY_LASTS)
    known = history.latest(ENTROPY) is not None
    if not (known or (high and fallen)):
        return None
    shown, steps = (now, LAST) if high or long is None else (long, BACK)
    share = shown / first
    observed = (
        f"the entropy is {shown:.3g} nats a token (median of {steps} steps), {share:.2g} times the "
        f"{first:.3g} of the first steps"
    )
    if not (high or lasts) or not stalls(history):
        return Reading(Level.CLEAR, share, ENTROPY_HIGH, observed)
    if high and fallen:
        return Reading(Level.OVER, share, ENTROPY_HIGH, f"{observed}, and the reward falls", sure=True)
    return Reading(Level.OVER if lasts else Level.BETWEEN, share, ENTROPY_HIGH, observed)


def _risen(value: float, first: float, more: float) -> bool:
    return value > ENTROPY_HIGH * first and value - first >= more


def _fallen(history: History) -> bool:
    """Whether the mean reward of the last steps is below the earlier mean by `RISEN` of its range or more."""
    before = history.recent(REWARD, WINDOW, until=history.now - LAST)
    now = history.recent(REWARD, LAST)
    return bool(before and now) and fmean(before) - fmean(now) >= RISEN * history.job.reward_span


def gradient_spiking(history: History) -> Reading | None:
    """The gradient's norm now, divided by its median over the steps before."""
    values = [*history.dated(NORM, history.now - NORM_BEFORE - LAST, history.now)]
    now = level([value for step, value in values if step > history.now - LAST], LAST)
    before = level([value for step, value in values if step <= history.now - LAST], WINDOW)
    if now is None or before is None or before < LEAST or history.latest(NORM) is None:
        return None
    times = now / before
    observed = f"the gradient's norm is {now:.3g}, {times:.2g} times the {before:.3g} of the steps before"
    if now <= history.job.gradient_clip:
        return Reading(Level.CLEAR, times, SPIKE, f"{observed}, and is not clipped")
    state = above(times, SPIKE, SPIKE_OVER)
    if state is Level.OVER and now <= _seen_before(history):
        state, observed = Level.BETWEEN, f"{observed}, and was as large twice in them"
    return Reading(state, times, SPIKE, observed)


def _seen_before(history: History) -> float:
    """The second largest norm of the steps before. A norm that was reached twice may be reached again by
    chance."""
    values = sorted(history.recent(NORM, NORM_BEFORE, until=history.now - LAST))
    return values[-2] if len(values) > 1 else math.inf


def policy_mismatch(history: History) -> Reading | None:
    """The KL divergence between the sampling policy and the trained policy."""
    return _apart(history, "training/mismatch_kl", "{:.3g} nats a token", MISMATCH, MISMATCH_DRIFTED)


def mismatch_tail(history: History) -> Reading | None:
    """Share of tokens to which sampling and trained policy give very different probabilities."""
    what = "a share of {:.2%} of the tokens"
    return _apart(history, "training/mismatch_far_share", what, FAR, FAR_DRIFTED)


def _apart(history: History, name: str, what: str, fresh: float, drifted: float) -> Reading | None:
    """The distance between sampling and trained policy.

    Args:
        name: the metric with the distance.
        what: the distance in words, as a format with one number.
        fresh: threshold for batches that the trained policy itself has sampled.
        drifted: threshold for older batches.
    """
    lag = history.latest(LAG)
    if lag is None or history.latest(name) is None:
        return None
    is_fresh = lag <= FRESH_LAG and history.job.updates_per_batch == 1
    threshold = fresh if is_fresh else drifted
    shortly = level(history.recent(name, LAST), LAST)
    far = shortly is not None and shortly > STRONG_EVIDENCE_FACTOR * threshold
    steps = LAST if is_fresh or far or _wastes(history) else LAST + 2 * _age(history)
    now = level(history.recent(name, steps), max(LAST, steps - 2))
    if now is None:
        return None
    of = "the same weights" if is_fresh else f"weights {lag:.2g} steps apart"
    observed = f"sampling and trained policy, of {of}, differ by {what.format(now)} (median of {steps} steps)"
    return Reading(above(now, threshold, threshold / 2), now, threshold, observed)


def _age(history: History) -> int:
    """How many steps old the oldest token of the last batches is, up to `LONGEST`.

    A single jump of the policy shows in every batch that was sampled before the jump. So it shows in about as
    many steps as the oldest token is old.
    """
    ages = [*history.recent(OLDEST, LAST), *history.recent(LAG, LAST)]
    return min(LONGEST, math.ceil(max(0.0, *ages)))


def _wastes(history: History) -> bool:
    """Whether importance weights are so uneven that some tokens of the last batches have little effect."""
    now = level(history.recent(EFFECTIVE, LAST), LAST)
    return now is not None and now < EFFECTIVE_AGAIN


def too_few_effective_samples(history: History) -> Reading | None:
    """Effective sample size, divided by the number of tokens."""
    now = level(history.recent(EFFECTIVE, LAST), LAST)
    if now is None or history.latest(EFFECTIVE) is None:
        return None
    observed = f"importance weights leave {now:.0%} of the batch's tokens effective (median of {LAST} steps)"
    return Reading(below(now, EFFECTIVE_LEAST, EFFECTIVE_AGAIN), now, EFFECTIVE_LEAST, observed)


def ratios_clipped(history: History) -> Reading | None:
    """Share of tokens whose ratio is clipped. If ratios are of whole training rows, many tokens are clipped
    at once, by design."""
    limit = CLIPPED_ROWS if history.job.sequence_ratio else CLIPPED
    return tokens("training/clip_fraction", "have a clipped ratio", limit, limit / 2)(history)


def tokens(name: str, what: str, threshold: float, clear: float) -> Judge:
    """A judge of a share of action tokens. `what` says in the message what is true of these tokens."""

    def judge(history: History) -> Reading | None:
        now = level(history.recent(name, LAST), LAST)
        if now is None or history.latest(name) is None:
            return None
        observed = f"{now:.1%} of the action tokens {what} (median of {LAST} steps)"
        return Reading(above(now, threshold, clear), now, threshold, observed)

    return judge


def staleness_at_bound(history: History) -> Reading | None:
    """Mean age of the tokens, as a share of spec.algorithm.maxStepsOffPolicy."""
    bound = history.job.max_steps_off_policy
    if history.latest(LAG) is None:
        return None
    if bound == 0:
        return Reading(
            Level.CLEAR, 0.0, STALE, "spec.algorithm.maxStepsOffPolicy is 0: no token may be older"
        )
    now = level(history.recent(LAG, STALE_FOR), STALE_FOR)
    if now is None:
        return None
    share = now / bound
    observed = f"tokens are {now:.2g} steps old on average for {STALE_FOR} steps, of at most {bound}"
    return Reading(above(share, STALE, FRESH), share, STALE, observed)


def _against_first(history: History, name: str) -> tuple[float, float, float] | None:
    """A metric's level now, its level in the first steps, and their ratio."""
    first = level(history.first(name, WINDOW), WINDOW)
    now = level(history.recent(name, LAST), LAST)
    if first is None or now is None or first < LEAST or history.latest(name) is None:
        return None
    return now, first, now / first
