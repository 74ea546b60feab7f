"""Whether a budget has room for a group of a training job."""

from __future__ import annotations

from headway_api.records import Purpose
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.shown import too_small
from headway_coordinator.budget.worst import Bill, Limits


def fits(budget: Budget, spec: RLTrainingJobSpec, limits: Limits) -> str:
    """Check that a training group fits the budget in the worst case. Returns the check's message.

    Raises:
        JobError: `BudgetTooSmall`, with the smallest budget that fits.
    """
    sampling, size = spec.rollout.sampling, spec.algorithm.group_size
    maximum = limits.sampled(sampling.max_tokens, spec.rollout.episode_token_limit)
    shortfalls = budget.least(limits, Bill(Purpose.TRAIN), size, maximum)
    if shortfalls:
        raise too_small(shortfalls, f"a group of {size} episodes")
    return f"a group of {size} episodes fits every limit"
