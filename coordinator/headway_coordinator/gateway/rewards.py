"""Checks the rewards and metrics that an agent reports: type, number and range. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headway_api import bounds
from headway_api.bounds import shortened
from headway_coordinator.gateway.refusals import bad


def rewards_in(values: object, turns: int, within: tuple[float, float]) -> list[float]:
    """The agent's rewards, once they pass all checks.

    Args:
        values: what the agent sent: a list of one number, or of one number for each turn.
        turns: number of turns that reached the agent.
        within: the range, both ends included, of each number and of their sum.

    Raises:
        GatewayError: says what is wrong with the rewards.
    """
    low, high = within
    if not isinstance(values, list) or not values:
        raise bad("Rewards", "must be a list of one number, or of one number a turn")
    if len(values) not in (1, turns):
        raise bad(
            "Rewards",
            f"{len(values)} values for {turns} turns; send one for the episode, or one for each turn",
            "reward_cardinality",
        )
    for index, value in enumerate(values):
        at = f"Rewards[{index}]"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad(at, f"{_shown(value)} is not a number", "reward_not_a_number")
        _finite(at, value, bounds.SCORE)
        if not low <= value <= high:
            raise bad(at, f"{value} is outside spec.reward.range [{low:g}, {high:g}]", "reward_out_of_range")
    if not low <= sum(values) <= high:
        raise bad(
            "Rewards",
            f"their sum {sum(values):g} is outside spec.reward.range [{low:g}, {high:g}]; the sum is the "
            "episode's reward",
            "reward_out_of_range",
        )
    return [float(value) for value in values]


def metrics_in(metrics: object) -> dict[str, float]:
    """The agent's metrics by name, once they pass all checks.

    Raises:
        GatewayError: says what is wrong with the metrics.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise bad("Metrics", "must be an object of numbers")
    if len(metrics) > bounds.METRICS:
        raise bad("Metrics", f"{len(metrics)} numbers; send {bounds.METRICS} at most")
    found: dict[str, float] = {}
    for name, value in metrics.items():
        at = f"Metrics.{shortened(str(name), bounds.NAME)}"
        if len(str(name)) > bounds.NAME:
            raise bad(at, f"its name has more than {bounds.NAME} characters")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad(at, f"{_shown(value)} is not a number")
        _finite(at, value, bounds.MAGNITUDE)
        found[str(name)] = float(value)
    return found


def _finite(param: str, value: float, limit: float) -> None:
    """Refuse a number that is not finite, or whose magnitude is above `limit`."""
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an integer with hundreds of digits
        finite = False
    if not finite:
        raise bad(
            param,
            f"{_shown(value)} is not finite; send a finite number, or complete the rollout as failed",
            "reward_not_finite",
        )
    if not bounds.within(value, limit):
        raise bad(
            param,
            f"{_shown(value)} is beyond {limit:g}; send it in a larger unit, or leave it out",
            "reward_out_of_range",
        )


def _shown(value: object) -> str:
    """A value in the form for an error message. It is shortened: an integer may have thousands of digits."""
    return shortened(repr(value), 60)
