"""Reads what `reward` and `score` return, strictly. Pure.

    0.5                              a number
    [0.0, 0.5]                       one number a turn; the reward is their sum. [x] is the whole reward x
    (0.5, {"tier": 1.0})             a reward of either kind, and metrics by name
    Reward(0.5, {"tier": 1.0})       the same, spelled out

Anything else is refused, with a message that says what was returned and what to return. No value is iterated,
or converted to a number, before its size is known.
"""

from __future__ import annotations

import math

from headway_sandbox import bounds
from headway_sandbox.bounds import InvalidReturnError, shortened
from headway_sandbox.environment import Reward

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TURN_REWARDS_TOLERANCE = 1e-6
"""Largest difference between the sum of the turn rewards and the reward; equal to
`headway_api.sandbox_api.TURN_REWARDS_TOLERANCE`."""
SHAPES = "a number, one number a turn, (number, {name: number}) or Reward(...)"
QUOTED = 60
"""Maximum characters of a returned text that a message repeats."""


class UnusableReturnError(Exception):
    """The returned numbers cannot be used, and a retry would not help."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


def reward_of(returned: object, turns: int) -> Reward:
    """What `reward` returned, as plain floats.

    Args:
        turns: number of turns that reached the agent.

    Raises:
        InvalidReturnError: the value does not have the shape of a reward.
        UnusableReturnError: there are too many numbers, or some are too large or not finite.
    """
    value, fields, each = parts_of(returned)
    metrics = metrics_of(fields)
    if isinstance(value, list | tuple):
        if len(value) > bounds.MESSAGES:
            raise UnusableReturnError("RewardOutOfBounds", too_many(len(value)))
        given = [number(one, f"turn {place}: ", SHAPES) for place, one in enumerate(value)]
        whole = len(given) == 1 and turns != 1
        value, each = sum(given), None if whole else given
    total = number(value, "", SHAPES)
    of_turns = None if each is None else turns_of(each)
    check(total, "reward")
    for name, metric in metrics.items():
        check(metric, f"metric {shortened(name, bounds.NAME)}", bounds.MAGNITUDE)
    # An agent without a turn gets its reward as a whole: there is no turn to assign it to.
    if not turns:
        of_turns = None
    if of_turns is not None and (wrong := wrong_turns(of_turns, turns, total)):
        raise UnusableReturnError("TurnRewardsWrong", wrong)
    return Reward(total, metrics, of_turns)


def rewards_of(returned: object, turns: list[int]) -> list[Reward]:
    """What `group_reward` returned; raises like `reward_of`. `turns`: number of turns of each episode."""
    if not isinstance(returned, list | tuple):
        raise InvalidReturnError(
            f"a {type(returned).__name__}; return a list of rewards, one for each transcript"
        )
    if len(returned) != len(turns):
        raise InvalidReturnError(f"{len(returned)} rewards for {len(turns)} transcripts; return one for each")
    return [reward_of(one, of) for one, of in zip(returned, turns, strict=True)]


def score_of(returned: object) -> float:
    """What `score` returned; raises like `reward_of`."""
    found = number(returned, "", "a number")
    check(found, "score")
    return found


def parts_of(returned: object) -> tuple[Any, Any, Any]:
    """Value, metrics by name, and turn rewards, not checked yet."""
    if isinstance(returned, Reward):
        return returned.value, returned.metrics, returned.turns
    if isinstance(returned, tuple) and len(returned) == 2 and hasattr(returned[1], "items"):
        return returned[0], returned[1], None
    return returned, {}, None


def metrics_of(fields: Mapping[Any, object]) -> dict[str, float]:
    """Metrics by name, at most as many and with names at most as long as a coordinator reads."""
    if len(fields) > bounds.METRICS:
        message = f"there are {len(fields)} metrics; give {bounds.METRICS} at most"
        raise UnusableReturnError("RewardOutOfBounds", message)
    found: dict[str, float] = {}
    for key, value in fields.items():
        name = str(key)
        if len(name) > bounds.NAME:
            message = f"the metric {shortened(name, 50)} has a name of {len(name)} characters"
            raise UnusableReturnError("RewardOutOfBounds", f"{message}; give {bounds.NAME} at most")
        found[bounds.text(name)] = number(value, f"metric {name}: ", "a number for it")
    return found


def turns_of(given: Any) -> list[float]:
    """The numbers of `Reward.turns`."""
    if len(given) > bounds.MESSAGES:
        raise UnusableReturnError("RewardOutOfBounds", too_many(len(given)))
    return [number(one, f"turn {place}: ", "a number for each turn") for place, one in enumerate(given)]


def too_many(count: int) -> str:
    """The message about more rewards than an episode has turns."""
    return f"there are {count} turn rewards; give one for each turn"


def number(value: Any, where: str, instead: str) -> float:
    """The float of a number of any class. Text is refused, even if it reads like a number.

    Raises:
        InvalidReturnError: the value is not a number.
        UnusableReturnError: it is an integer that is too large for a float.
    """
    if value is None:
        raise InvalidReturnError(f"{where}nothing (None); return {instead}")
    if isinstance(value, str | bytes | bytearray):
        raise InvalidReturnError(f"{where}the text {value[:QUOTED]!r}; return {instead}")
    try:
        return float(value)
    except OverflowError:
        message = f"{where}an integer of more than 308 digits; return {instead}"
        raise UnusableReturnError("RewardOutOfBounds", message) from None
    except (TypeError, ValueError):
        raise InvalidReturnError(f"{where}a {type(value).__name__}; return {instead}") from None


def check(found: float, name: str, limit: float = bounds.SCORE) -> None:
    """Raise UnusableReturnError if a number is not finite, or beyond `limit`."""
    if not math.isfinite(found):
        raise UnusableReturnError("RewardNotFinite", f"{name} is {found}; return a finite number")
    if not bounds.within(found, limit):
        raise UnusableReturnError("RewardOutOfBounds", f"{name} is {found:g}; beyond {limit:g}")


def wrong_turns(rewards: list[float], turns: int, reward: float) -> str:
    """What is wrong with the turn rewards; empty if nothing is."""
    if len(rewards) != turns:
        return f"there are {len(rewards)} turn rewards for {turns} turns; give one for each, or none"
    if not all(map(math.isfinite, rewards)):
        return f"the turn rewards {rewards} are not all finite"
    if abs(sum(rewards) - reward) > TURN_REWARDS_TOLERANCE:
        return f"the turn rewards add up to {sum(rewards):g}, and the reward is {reward:g}"
    if not all(bounds.within(each, bounds.SCORE) for each in rewards):
        return f"one of the turn rewards is beyond {bounds.SCORE:g}"
    return ""
