"""Rewards that the environment gives to the episodes of a group relative to each other (`group_reward`).

Each group takes one call, in a sandbox of its own. Only groups of training rows get such rewards, including
groups of the preflight. Episodes of held-out rows keep the reward from `reward`: a reward relative to other
tries does not measure a model. A group that cannot be judged is retried in a fresh sandbox, and then
abandoned (`NotJudged`). Its episodes get no other reward, not even 0. The preflight judges a job by the
reward that it trains on. So a preflight group that cannot be judged has no scored episode.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway_api.records import Abandoned, EpisodeRecord, GroupRecord, Judgement, Outcome, Purpose
from headway_api.sandbox_api import (
    FinishReply,
    GroupEpisode,
    GroupReply,
    GroupRequest,
    GroupReward,
    ResetReply,
)
from headway_coordinator import group as groups
from headway_coordinator.bounds import MIN_SCORED
from headway_coordinator.cancel_token import StoppedError
from headway_coordinator.episode import Rules
from headway_coordinator.faults import Cause, InfraError
from headway_coordinator.finish_reply import by_index, check_reward, check_sizes
from headway_coordinator.judges.answering import Judges
from headway_coordinator.recurring import Recurring
from headway_coordinator.sandboxes import ENTRYPOINT, Broker, Witness

MAX_FAILURE_CHARACTERS = 1500
"""The most characters of the last failure that a group's record keeps."""
TOO_FEW = f"group_reward: fewer than {MIN_SCORED} episodes of the group are scored"


@dataclass
class RelativeJudge:
    """Judges the groups of one job."""

    rules: Rules
    broker: Broker
    judges: Judges
    faults: Recurring
    grouped: bool = False
    """Whether the environment rewards whole groups."""

    def learn(self, first: ResetReply) -> None:
        """Learn from a sandbox of the job whether its environment rewards groups."""
        self.grouped |= first.grouped

    def witnessed(self, by: Callable[[str], Witness]) -> groups.GroupJudge:
        """This judge, with a witness that notes questions to judges. `by`: given a lease, its witness."""
        return _Witnessed(self, self.broker.witnessed(by))

    async def judged(
        self, plan: groups.Plan, group: GroupRecord, attempts: range, broker: Broker | None = None
    ) -> GroupRecord:
        """The group with final rewards, as `group.GroupJudge` specifies. `broker` replaces the usual one."""
        scored = group.scored
        if plan.purpose not in (Purpose.TRAIN, Purpose.PREFLIGHT) or not self.grouped:
            return group
        if group.abandoned is not None or len(scored) < MIN_SCORED:
            return lost(group, TOO_FEW) if plan.size >= MIN_SCORED else group
        judgements: list[Judgement] = []
        began, fault = time.monotonic(), InfraError("no attempt was made to judge the group")
        for attempt in attempts:
            lease = f"{leases_of(plan.group_id)}{attempt}"
            try:
                rewards = await self._once(plan, scored, lease, judgements, broker or self.broker)
                return rewarded(group, rewards, judgements, time.monotonic() - began)
            except StoppedError:
                return group.model_copy(update={"judgements": judgements, "abandoned": plan.stop.why})
            except InfraError as found:
                fault = found
                if found.cause is not None:
                    self.faults.note(lease, found.cause)
                self.faults.ended(lease, scored=False)
        message = f"group_reward: {fault}"[:MAX_FAILURE_CHARACTERS]
        why = Abandoned(reason="NotJudged", message=message)
        group = group.model_copy(update={"judgements": judgements, "abandoned": why})
        return lost(group, message, fault.cause)

    async def _once(
        self,
        plan: groups.Plan,
        scored: list[EpisodeRecord],
        lease: str,
        judgements: list[Judgement],
        broker: Broker,
    ) -> list[GroupReward]:
        task, limit = plan.task(0, 0), self.rules.timeout_seconds
        try:
            async with plan.stop.guard():
                await self.judges.ready()
                async with (
                    asyncio.timeout(2 * limit),  # one `limit` for a sandbox, and one for the judgement
                    broker.lease(lease, self.rules.sandbox_seconds, limit) as sandbox,
                ):

                    async def ask(judges: list[str]) -> GroupReply:
                        body = GroupRequest(
                            row=plan.row,
                            seed=task.environment_seed,
                            episodes=[group_episode(episode) for episode in scored],
                            judges=judges,
                        )
                        return await sandbox.group(body)

                    reply = await self.judges.finished(
                        sandbox, ask, judgements.append, spending=plan.spending
                    )
        except TimeoutError as error:
            raise InfraError(f"no judgement of the group within {2 * limit:g} s") from error
        self._check(reply, scored)
        return reply.rewards

    def _check(self, reply: GroupReply, scored: list[EpisodeRecord]) -> None:
        """Check the group's rewards by the rules for every reward.

        Raises:
            InfraError: a reward is missing, out of range or too large.
        """
        if len(reply.rewards) != len(scored):
            message = (
                f"the environment gave {len(reply.rewards)} rewards for {len(scored)} episodes of a group"
            )
            raise InfraError(message, Cause("GroupRewardsWrong", message, ENTRYPOINT))
        for reward, episode in zip(reply.rewards, scored, strict=True):
            one = FinishReply(**reward.model_dump(), score=0.0)
            check_reward(one, self.rules.reward_range, delivered(episode))
            check_sizes(one)


@dataclass(frozen=True)
class _Witnessed:
    relative: RelativeJudge
    broker: Broker

    async def judged(self, plan: groups.Plan, group: GroupRecord, attempts: range) -> GroupRecord:
        """The group with final rewards, as `group.GroupJudge` specifies."""
        return await self.relative.judged(plan, group, attempts, self.broker)


def leases_of(group_id: str) -> str:
    """The prefix of the names of the leases in which a group is judged."""
    return f"{group_id}-group-"


def lost(group: GroupRecord, message: str, cause: Cause | None = None) -> GroupRecord:
    """Take the scores from the episodes of a preflight group that was not judged.

    A group of another purpose is returned unchanged.
    """
    if group.purpose is not Purpose.PREFLIGHT:
        return group
    reason = None if cause is None else cause.reason
    gone: dict[str, Any] = {"outcome": Outcome.INFRA_ERROR, "error": message, "cause": reason}
    gone |= {"reward": None, "turn_rewards": None, "score": None, "metrics": {}}
    episodes = [
        episode if episode.reward is None else episode.model_copy(update=gone) for episode in group.episodes
    ]
    return group.model_copy(update={"episodes": episodes})


def group_episode(episode: EpisodeRecord) -> GroupEpisode:
    """An episode as the environment sees it."""
    assert episode.reward is not None
    return GroupEpisode(
        messages=episode.messages,
        truncated=episode.outcome is not Outcome.COMPLETED,
        turns=delivered(episode),
        reward=episode.reward,
        metrics=episode.metrics,
    )


def delivered(episode: EpisodeRecord) -> int:
    """The number of turns that reached the agent."""
    return sum(turn.delivered for turn in episode.turns)


def rewarded(
    group: GroupRecord, rewards: list[GroupReward], judgements: list[Judgement], seconds: float
) -> GroupRecord:
    """A group with its final rewards. Each episode gets an equal part of the sandbox's time."""
    left = iter(rewards)
    share = seconds / len(rewards)
    episodes = [
        episode if episode.reward is None else _one(episode, next(left), share) for episode in group.episodes
    ]
    return group.model_copy(update={"episodes": episodes, "judgements": judgements})


def _one(episode: EpisodeRecord, given: GroupReward, seconds: float) -> EpisodeRecord:
    turns = None if given.turn_rewards is None else by_index(given.turn_rewards, episode.turns)
    return episode.model_copy(
        update={
            "reward": given.reward,
            "turn_rewards": turns,
            "metrics": {**episode.metrics, **given.metrics},
            "sandbox_seconds": episode.sandbox_seconds + seconds,
        }
    )
