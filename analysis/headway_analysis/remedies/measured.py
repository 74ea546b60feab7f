"""Measures how well a job does: its reward over some steps, and held-out rows, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Final

from scipy.special import stdtrit

from headway_analysis.remedies.context import RemedyContext, Validated
from headway_analysis.signals.evidence import TAIL, Shift, shift
from headway_analysis.statistics.differences import ENOUGH
from headway_api.decisions import Measured

REWARD: Final = "rollout/reward/mean"
"""The metric with a step's mean reward."""
WINDOW: Final = 10
"""Steps whose mean reward shows how well a job does. In a watch, these are the last ones, when the change has
taken effect."""
AROUND: Final = 5
"""Steps before and after a validated step whose rewards show how well its policy did."""


def up_to(rewards: Mapping[int, float], step: int, limit: int = WINDOW, after: int = -1) -> list[float]:
    """The rewards of the last `limit` steps up to `step` that are later than `after`, oldest first."""
    steps = [each for each in sorted(rewards) if after < each <= step]
    return [rewards[each] for each in steps[-limit:]]


def measured(context: RemedyContext, step: int | None = None, *, after: int = -1) -> Measured:
    """How well the job does at `step` (by default the newest). Only steps later than `after` count."""
    at = context.step if step is None else step
    values = up_to(context.rewards, at, after=after)
    newest = latest(context.validations, at, after=after)
    low, high = _interval(values)
    return Measured(
        reward=fmean(values) if values else None,
        low=low,
        high=high,
        steps=len(values),
        validated=None if newest is None else newest.step,
        score=None if newest is None else newest.score,
    )


def latest(validations: Sequence[Validated], step: int, after: int = -1) -> Validated | None:
    """The newest validation up to `step` that is later than `after`; None if there is none."""
    found = [each for each in validations if after < each.step <= step]
    return max(found, key=lambda each: each.step, default=None)


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's 95 % interval of a mean; None and None for fewer than two values."""
    if len(values) < 2:
        return None, None
    half = float(stdtrit(len(values) - 1, 1 - TAIL)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def held_out(now: Validated, before: Validated) -> Shift | None:
    """How much higher the validation `now` scores than `before`, paired by row, with Student's 95 % interval.

    None if both have fewer than `ENOUGH` rows in common.
    """
    rows = [row for row, tries in now.rows.items() if tries and before.rows.get(row)]
    moved = [fmean(now.rows[row]) - fmean(before.rows[row]) for row in rows]
    low, high = _interval(moved)
    if low is None or high is None or len(rows) < ENOUGH:
        return None
    return Shift(fmean(moved), low, high)


def trained_since(context: RemedyContext, step: int) -> Shift | None:
    """How much higher the reward of the last steps is than the reward around `step`. The last steps all come
    after the job last went back to older weights."""
    rewards = context.rewards
    around = [rewards[each] for each in rewards if step - AROUND < each <= step + AROUND]
    recent = up_to(rewards, context.step, AROUND, after=max(step + AROUND, context.went_back))
    return shift(around, recent)


def steps_back(context: RemedyContext) -> list[int]:
    """Validated steps that surely were better than the job is now, the best first.

    A step was better if its held-out rows surely scored higher than those of the newest validation. It was
    also better if rewards around it were surely higher than rewards are now. Results from before the job last
    went back to older weights do not count as "now".
    """
    newest = latest(context.validations, context.step, after=context.went_back - 1)
    return [each.step for each in context.validations if _was_better(context, each, newest)]


def _was_better(context: RemedyContext, then: Validated, newest: Validated | None) -> bool:
    moved = trained_since(context, then.step)
    if moved is not None and moved.falls:
        return True
    if newest is None or newest.step <= then.step:
        return False
    ahead = held_out(newest, then)
    return ahead is not None and ahead.falls
