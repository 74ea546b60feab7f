"""Checks of the reply with which an environment ends an episode. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headway_api import bounds
from headway_api.records import Turn
from headway_api.sandbox_api import TURN_REWARDS_TOLERANCE, FinishReply
from headway_coordinator.faults import Cause, InfraError
from headway_coordinator.sandboxes import ENTRYPOINT


def by_index(rewards: Sequence[float], turns: Sequence[Turn]) -> list[float]:
    """Rewards of the delivered turns, in their order -> rewards of all turns, by index.

    An undelivered turn earns nothing.
    """
    earned = iter(rewards)
    return [next(earned) if turn.delivered else 0.0 for turn in turns]


def check_reward(reply: FinishReply, within: tuple[float, float], turns: int) -> None:
    """Refuse a judgement that must not reach the learner.

    Raises:
        InfraError: the reward is out of range, or the turn rewards do not match `turns` turns.
    """
    given = reply.turn_rewards
    if given is not None and len(given) != turns:
        message = (
            f"the environment gave {len(given)} turn rewards for {turns} turns; give one for each, or none"
        )
        raise InfraError(message, Cause("TurnRewardsWrong", message, ENTRYPOINT))
    if given is not None and abs(sum(given) - reply.reward) > TURN_REWARDS_TOLERANCE:
        message = "the environment's turn rewards add up to"
        message += f" {sum(given):g}, and its reward is {reply.reward:g}"
        raise InfraError(message, Cause("TurnRewardsWrong", message, ENTRYPOINT))
    low, high = within
    if not low <= reply.reward <= high:
        message = f"the environment's reward is {reply.reward}, outside spec.reward.range [{low:g}, {high:g}]"
        raise InfraError(message, Cause("RewardOutOfRange", message, "spec.reward.range"))


def check_sizes(reply: FinishReply) -> None:
    """Refuse a judgement whose numbers are too large for any metric.

    Raises:
        InfraError: the reward, a turn's reward, the score or a metric is too large.
    """
    sizes = [("reward", reply.reward, bounds.SCORE), ("score", reply.score, bounds.SCORE)]
    sizes += [
        (f"reward of turn {turn}", value, bounds.SCORE) for turn, value in enumerate(reply.turn_rewards or ())
    ]
    sizes += [(f"metric {name}", value, bounds.MAGNITUDE) for name, value in reply.metrics.items()]
    for name, value, limit in sizes:
        if not bounds.within(value, limit):
            message = f"the environment's {name} is {value}, beyond {limit:g}: have the code of "
            message += f"{ENTRYPOINT} return it in a larger unit, or leave it out"
            raise InfraError(message, Cause("RewardOutOfBounds", message, ENTRYPOINT))
