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
"""The metric that holds a step's reward."""
WINDOW: Final = 10
"""Steps whose mean reward shows how a job does: the end of a watch, when the change has taken effect."""
AROUND: Final = 5
"""Steps before and after a validated step whose rewards show how its policy did."""


def up_to(rewards: Mapping[int, float], step: int, limit: int = WINDOW, after: int = -1) -> list[float]:
    """The rewards of the last steps up to `step`, above `after`, oldest first."""
    steps = [each for each in sorted(rewards) if after < each <= step]
    return [rewards[each] for each in steps[-limit:]]


def measured(context: RemedyContext, step: int | None = None, *, after: int = -1) -> Measured:
    """How the job does at `step` (the newest), by steps and validations above `after` alone."""
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
    """The newest validation up to `step`, of those above `after`."""
    found = [each for each in validations if after < each.step <= step]
    return max(found, key=lambda each: each.step, default=None)


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's interval of a mean, of 95 %."""
    if len(values) < 2:
        return None, None
    half = float(stdtrit(len(values) - 1, 1 - TAIL)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def held_out(now: Validated, before: Validated) -> Shift | None:
    """How far one validation is ahead of another, row by row, with Student's interval of 95 %; None with
    fewer than `ENOUGH` rows in common."""
    rows = [row for row, tries in now.rows.items() if tries and before.rows.get(row)]
    moved = [fmean(now.rows[row]) - fmean(before.rows[row]) for row in rows]
    low, high = _interval(moved)
    if low is None or high is None or len(rows) < ENOUGH:
        return None
    return Shift(fmean(moved), low, high)


def trained_since(context: RemedyContext, step: int) -> Shift | None:
    """How far the reward of the last steps is above that around `step`. Steps before the job last went back
    do not count as last steps."""
    rewards = context.rewards
    around = [rewards[each] for each in rewards if step - AROUND < each <= step + AROUND]
    recent = up_to(rewards, context.step, AROUND, after=max(step + AROUND, context.went_back))
    return shift(around, recent)


def steps_back(context: RemedyContext) -> list[int]:
    """Validated steps that surely were better than the job is now, the best first.

    A validation was better if its rows surely scored higher than those of the newest one. A step was better
    if episodes around it surely earned more than they do now. What was seen before the job last went back
    does not show how the job is now.
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
