"""Judges of reward, external score and validation: whether the model learns the intended behaviour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from headway_analysis.signals.definition import Level, Reading
from headway_analysis.signals.evidence import Shift, above, below, counted, level, shift
from headway_analysis.signals.history import History

REWARD: Final = "rollout/reward/mean"
REWARD_SPREAD: Final = "rollout/reward/std"
SCORE: Final = "rollout/external_score/mean"
VALID: Final = "analysis/batch_valid_ratio"
UNIFORM: Final = "analysis/zero_adv_groups"
GROUPS: Final = "training/num_groups"
VALIDATED: Final = "val/reward/mean"
VALIDATED_SPREAD: Final = "val/reward/std"
VALIDATED_ROWS: Final = "val/reward/num_prompts"
TASK_REWARD: Final = "rollout/task_reward/"
EXPLAINED: Final = "rollout/reward_explained/"

WINDOW: Final = 5
"""Steps whose mean or median is the level of a metric."""
BACK: Final = 10
"""The present level is compared with the level of this many steps ago."""
NORMAL: Final = 1.96

LAST: Final = 3
"""Steps whose median is the present level, for signals that would be costly if they came late."""
COLLAPSED: Final = 0.25
RECOVERED: Final = 0.5
LEAST_HEIGHT: Final = 0.1
NONE_FOR: Final = 3
SAME_FOR: Final = 5
FLAT_FOR: Final = 25
SOLVED_WITHIN: Final = 0.1
RISEN: Final = 0.1
MAX_UNIFORM: Final = 0.6
FEW_UNIFORM: Final = 0.5
GENERALIZATION_GAP: Final = 0.15
"""How much more the training reward may rise than the held-out reward, as a share of the reward's range."""
SCORE_GAP: Final = 0.15
"""How much more the reward may rise than the external score, as a share of the reward's range."""
STRONG_EVIDENCE_FACTOR: Final = 2.0
"""If a number exceeds its threshold by this factor, fewer readings or steps are enough."""
DIVERGED: Final = 0.3
TASK_BEFORE: Final = 20
ONE_SIDED: Final = 0.95
MANY_SIDED: Final = 0.9
GROWN: Final = 0.2


def solved(history: History) -> bool:
    """Whether the reward is near the best that the job allows, within `SOLVED_WITHIN` of its range."""
    now = level(history.recent(REWARD, WINDOW), 1)
    return now is not None and now >= history.job.reward_high - SOLVED_WITHIN * history.job.reward_span


def rise(history: History, name: str, back: int = BACK) -> Shift | None:
    """How far the mean of a metric in the last `WINDOW` steps is above its mean in the `WINDOW` steps that
    ended `back` steps ago."""
    return shift(history.recent(name, WINDOW, until=history.now - back), history.recent(name, WINDOW))


def stalls(history: History) -> bool:
    """Whether the reward is not near its best, and does not surely rise."""
    moved = rise(history, REWARD)
    return not solved(history) and (moved is None or not moved.rises)


def reward_collapsed(history: History) -> Reading | None:
    """The reward now, as a share of its highest plateau. Both are measured from the lowest reward."""
    values = [value for _, value in history.dated(REWARD, -1, history.now)]
    if len(values) < 2 * WINDOW or history.latest(REWARD) is None:
        return None
    before, now = values[:-LAST], median(values[-LAST:])
    plateau = max(median(before[at : at + WINDOW]) for at in range(len(before) - WINDOW + 1))
    low = min(history.job.reward_low, now)
    if plateau - low < LEAST_HEIGHT * history.job.reward_span:
        return Reading(Level.CLEAR, 1.0, COLLAPSED, "the reward has not been high yet")
    left = (now - low) / (plateau - low)
    observed = f"the reward is {now:.3g}, and was {plateau:.3g}: {left:.0%} of that is left"
    return Reading(below(left, COLLAPSED, RECOVERED), left, COLLAPSED, observed)


def nothing_to_train(history: History) -> Reading | None:
    """How many of the last steps in a row had no group with an advantage."""
    shares = history.recent(VALID, NONE_FOR)
    if history.latest(VALID) is None:
        return None
    run = next((at for at, share in enumerate(reversed(shares)) if share > 0), len(shares))
    if not run:
        return Reading(Level.CLEAR, 0.0, NONE_FOR, "groups have advantages")
    if solved(history):
        observed = f"no group had an advantage for {run} steps, because nearly every reward is the best one"
        return Reading(Level.CLEAR, run, NONE_FOR, observed)
    observed = f"no group had an advantage in the last {run} steps"
    return Reading(Level.OVER if run >= NONE_FOR else Level.BETWEEN, run, NONE_FOR, observed)


def reward_flat(history: History) -> Reading | None:
    """How far the reward is above that of the first steps.

    The reading is clear once the training reward or the held-out reward has risen.
    """
    rewards = [*history.dated(REWARD, -1, history.now)]
    values = [value for _, value in rewards]
    if len(values) < SAME_FOR or history.latest(REWARD) is None:
        return None
    if len({*values}) == 1 and not any(history.recent(REWARD_SPREAD, history.now)) and not solved(history):
        return Reading(Level.OVER, 0.0, 0.0, f"every reward of {len(values)} steps is {values[0]:.3g}")
    if len(values) < FLAT_FOR:
        return None
    now = shift(values[:WINDOW], values[-WINDOW:])
    if now is None:
        return None
    held_out = [value for _, value in history.validated(VALIDATED)]
    learns = max(held_out, default=0.0) - (held_out or [0.0])[0] > RISEN * history.job.reward_span
    if solved(history) or learns or _has_risen(history, rewards):
        return Reading(Level.CLEAR, now.value, 0.0, "the reward has risen", now.low, now.high)
    observed = f"after {len(values)} steps the reward is {now.value:+.3g} from that of the first {WINDOW}"
    if held_out:
        observed += f", that of held-out rows {held_out[-1] - held_out[0]:+.3g}"
    return Reading(Level.OVER, now.value, 0.0, observed, now.low, now.high)


def _has_risen(history: History, rewards: Sequence[tuple[int, float]]) -> bool:
    """Whether the mean of any `WINDOW` rewards so far was surely above the mean of the first `WINDOW`."""
    once, values = history.once("the reward rose"), [value for _, value in rewards]
    for at in range(2 * WINDOW, len(rewards) + 1):
        step = rewards[at - 1][0]
        if step > once.until and once.at is None:
            moved = shift(values[:WINDOW], values[at - WINDOW : at])
            once.until, once.at = step, step if moved is not None and moved.rises else None
    return once.by(history.now)


def groups_uniform(history: History) -> Reading | None:
    """Share of groups without an advantage, while the reward stalls.

    A share of few groups is uncertain, so the lower bound of its interval counts too.
    """
    recent = counted(history, UNIFORM, GROUPS, WINDOW)
    if len(history.recent(UNIFORM, WINDOW)) < WINDOW or history.latest(UNIFORM) is None or recent is None:
        return None
    longer = counted(history, UNIFORM, GROUPS, BACK) or recent
    share, steps = (longer, BACK) if longer.low > recent.low else (recent, WINDOW)
    state = above(recent.value, MAX_UNIFORM, FEW_UNIFORM)
    if state is Level.OVER and share.low <= FEW_UNIFORM:
        state = Level.BETWEEN
    observed = (
        f"{share.value:.0%} of the {share.total:.0f} groups of {steps} steps score alike "
        f"({share.low:.0%} to {share.high:.0%})"
    )
    if not stalls(history):
        state, observed = Level.CLEAR, f"{observed}, and the reward rises or is near its best"
    elif state is not Level.CLEAR:
        observed = f"{observed}, and the reward stalls"
    return Reading(state, share.value, MAX_UNIFORM, observed, share.low, share.high)


def score_diverged(history: History) -> Reading | None:
    """How much more the reward has risen than the external score of the same episodes.

    A reward that holds while the score falls counts too.
    """
    half = sum(1 for _ in history.dated(REWARD, -1, history.now)) // 2
    long = max(WINDOW, min(2 * WINDOW, half))
    found = [_score_gap(history, BACK, WINDOW), _score_gap(history, max(BACK, history.now - long), long)]
    return max((each for each in found if each is not None), key=_worst, default=None)


def _worst(reading: Reading) -> tuple[bool, bool, bool, float]:
    """A sort key for the worst reading. The level counts before the number, so that a reading that is over
    comes before a clear one with a larger number."""
    return reading.sure, reading.level is Level.OVER, reading.level is Level.BETWEEN, reading.value


def _score_gap(history: History, back: int, window: int) -> Reading | None:
    scores = dict(history.dated(SCORE, -1, history.now))
    rewards = dict(history.dated(REWARD, -1, history.now))
    at = [step for step in rewards if step in scores]
    then = [step for step in at if history.now - back - window < step <= history.now - back]
    now = [step for step in at if history.now - window < step]
    gap = shift([rewards[s] - scores[s] for s in then], [rewards[s] - scores[s] for s in now])
    reward = shift([rewards[s] for s in then], [rewards[s] for s in now])
    score = shift([scores[s] for s in then], [scores[s] for s in now])
    if gap is None or reward is None or score is None:
        return None
    span = history.job.reward_span
    observed = (
        f"since step {then[-1]} the reward moved by {reward.value:+.3g}, the external score by "
        f"{score.value:+.3g}: {gap.value:+.3g} apart ({gap.low:+.3g} to {gap.high:+.3g})"
    )
    gains, falls = reward.rises and not score.rises, score.falls and reward.value >= 0
    diverged = gap.low > 0 and (gains or falls)
    state = above(gap.value / span, SCORE_GAP, SCORE_GAP / 2) if diverged else Level.CLEAR
    return Reading(state, gap.value, SCORE_GAP * span, observed, gap.low, gap.high)


def validation_diverged(history: History) -> Reading | None:
    """How much more the training reward has risen than the reward of held-out rows, between validations."""
    known = history.validated(VALIDATED)
    if not known or known[-1][0] != history.now:
        return None
    earlier = [step for step, _ in known if WINDOW <= step <= history.now - BACK]
    found = [_generalization_gap(history, step) for step in {*earlier[:1], *earlier[-2:]}]
    return max((each for each in found if each is not None), key=_worst, default=None)


def _generalization_gap(history: History, then: int) -> Reading | None:
    values, spreads = dict(history.validated(VALIDATED)), dict(history.validated(VALIDATED_SPREAD))
    rows = dict(history.validated(VALIDATED_ROWS))
    now = history.now
    trained = shift(history.recent(REWARD, WINDOW, until=then), history.recent(REWARD, WINDOW))
    if trained is None or not {then, now} <= spreads.keys() & rows.keys() or min(rows[then], rows[now]) <= 0:
        return None
    span = history.job.reward_span
    change = values[now] - values[then]
    error = math.hypot(*(spreads[step] / math.sqrt(rows[step]) for step in (then, now)))
    gap = trained.value - change
    half = math.hypot(trained.high - trained.value, NORMAL * error)
    observed = (
        f"since step {then} the training reward moved by {trained.value:+.3g}, that of held-out rows by "
        f"{change:+.3g}: {gap:+.3g} apart ({gap - half:+.3g} to {gap + half:+.3g})"
    )
    best = values[now] >= history.job.reward_high - SOLVED_WITHIN * span
    held_out_stalls = change - NORMAL * error <= 0
    low, threshold = gap - half, GENERALIZATION_GAP * span
    diverged = trained.rises and not best and held_out_stalls and low > threshold / 2
    state = above(gap / span, GENERALIZATION_GAP, GENERALIZATION_GAP / 2) if diverged else Level.CLEAR
    sure = state is Level.OVER and low > STRONG_EVIDENCE_FACTOR * GENERALIZATION_GAP * span
    return Reading(state, gap, threshold, observed, low, gap + half, sure=sure)


def tasks_diverging(history: History) -> Reading | None:
    """How far apart two tasks' rewards have moved, if one of them surely fell and the other rose."""
    names = history.names(TASK_REWARD, WINDOW)
    if len(names) < 2:
        return None
    moved = {name: move for name in names if (move := _moved(history, name)) is not None}
    if len(moved) < 2:
        return None
    best, worst = (
        max(moved, key=lambda name: moved[name].value),
        min(moved, key=lambda name: moved[name].value),
    )
    apart = moved[best].value - moved[worst].value
    observed = (
        f"in {WINDOW} steps {best.removeprefix(TASK_REWARD)}'s reward moved by {moved[best].value:+.3g}, "
        f"{worst.removeprefix(TASK_REWARD)}'s by {moved[worst].value:+.3g}"
    )
    span = history.job.reward_span
    diverge = moved[worst].falls and moved[best].value > 0
    state = above(apart / span, DIVERGED, DIVERGED / 2) if diverge else Level.CLEAR
    return Reading(state, apart, DIVERGED * span, observed)


def _moved(history: History, name: str) -> Shift | None:
    """How far the last `WINDOW` steps of a metric are above the `TASK_BEFORE` steps before, on average."""
    earlier = history.recent(name, TASK_BEFORE, until=history.now - WINDOW)
    return shift(earlier, history.recent(name, WINDOW)) if len(earlier) >= WINDOW else None


def reward_one_sided(history: History) -> Reading | None:
    """The largest share of the reward's variance within groups that one reported number explains.

    The reading can be over only if this share has grown and another number's share has fallen.
    """
    names = history.names(EXPLAINED, WINDOW)
    shares = {
        name: found for name in names if (found := level(history.recent(name, WINDOW), WINDOW)) is not None
    }
    if len(shares) < 2:
        return None
    early = _early(history)
    top = max(shares, key=lambda name: shares[name])
    share, name = shares[top], top.removeprefix(EXPLAINED)
    observed = f"{name} explains {share:.0%} of how a group's rewards differ"
    rival = max(sorted(early.keys() - {top}), key=lambda name: early[name], default=None)
    left = None if rival is None else level(history.recent(rival, WINDOW), 2)
    if rival is None or left is None:
        return Reading(Level.CLEAR, share, ONE_SIDED, f"{observed}, and no other number that did differs now")
    before = max(early.values())
    observed += (
        f", and {before:.0%} was the most in the first steps; {rival.removeprefix(EXPLAINED)} explained "
        f"{early[rival]:.0%} then, and {left:.0%} now"
    )
    taken = share - before >= GROWN and early[rival] - left >= GROWN
    return Reading(above(share, ONE_SIDED, MANY_SIDED) if taken else Level.CLEAR, share, ONE_SIDED, observed)


def _early(history: History) -> dict[str, float]:
    """The share of the reward's variance that each number explained in the first `WINDOW` steps."""
    first = [step for step, _ in history.dated(REWARD, -1, history.now)][:WINDOW]
    last = first[-1] if first else -1
    values = {
        name: [value for _, value in history.dated(name, -1, last)]
        for name in history.names(EXPLAINED, history.now + 1)
    }
    return {name: median(found) for name, found in values.items() if found}
