"""Computes advantages: one number for each turn of each scored episode of a batch.

No mean and no standard deviation includes an `InfraError` episode. Some groups have only one episode, or
rewards that are all equal up to rounding. Every method that subtracts the group's mean and does not whiten
gives them advantage exactly 0. Otherwise a standard deviation near 0 would magnify rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from headway_api.objective import uniform
from headway_trainer.objective.checks import InvalidResultError, fits, require
from headway_trainer.objective.registry import Table

Normalize = Literal["std", "none"]
Numbers = NDArray[np.float64]
STD_EPSILON: Final = 1e-6
WHITENING_EPSILON: Final = 1e-8


@dataclass(frozen=True)
class Scored:
    """The inputs of an advantage function about one episode."""

    reward: float
    turn_tokens: tuple[int, ...]
    """Action tokens of each turn, in the order of the turns; (0,) for an episode without any."""
    turn_rewards: tuple[float, ...] | None = None
    """The reward of each turn; their sum is `reward`. None if the whole reward belongs to the last turn."""

    @property
    def action_tokens(self) -> int:
        """Action tokens of all turns."""
        return sum(self.turn_tokens)

    def returns(self, gamma: float) -> Numbers:
        """Return of each turn: its reward plus the rewards of later turns, discounted by `gamma` per turn."""
        rewards = self.turn_rewards or (0.0,) * (len(self.turn_tokens) - 1) + (self.reward,)
        running, found = 0.0, np.zeros(len(self.turn_tokens))
        for turn in reversed(range(len(found))):
            running = rewards[turn] + gamma * running
            found[turn] = running
        return found


@dataclass(frozen=True)
class AdvantageSettings:
    """`spec.algorithm.advantage`."""

    normalize: Normalize = "std"
    gamma: float = 1.0


Group = Sequence[Scored]
AdvantageFunction = Callable[[Sequence[Group], AdvantageSettings], list[list[Numbers]]]
"""Groups of a batch -> the advantage of each turn for each group and episode, in float64."""
EpisodeFunction = Callable[[Numbers, Numbers, AdvantageSettings], Numbers]
"""Rewards of a group's episodes and their numbers of action tokens -> advantage of each episode."""

ADVANTAGES: Final[Table[AdvantageFunction]] = Table("spec.algorithm.advantage.method")


def advantage(name: str) -> Callable[[AdvantageFunction], AdvantageFunction]:
    """Register, as an advantage method, a function that takes a whole batch."""

    def register(function: AdvantageFunction) -> AdvantageFunction:
        ADVANTAGES.add(name, function)
        return function

    return register


def episode_advantage(name: str) -> Callable[[EpisodeFunction], EpisodeFunction]:
    """Register, as an advantage method, a function that takes one group's rewards.

    Every turn of an episode then has the same advantage.
    """

    def register(function: EpisodeFunction) -> EpisodeFunction:
        ADVANTAGES.add(name, of_each_group(function))
        return function

    return register


def of_each_group(function: EpisodeFunction) -> AdvantageFunction:
    """An advantage method that applies `function`, which takes one group, to every group of a batch."""

    def of_batch(groups: Sequence[Group], settings: AdvantageSettings) -> list[list[Numbers]]:
        return [_at_each_turn(group, function(*_columns(group), settings)) for group in groups]

    return of_batch


def _at_each_turn(group: Group, values: Numbers) -> list[Numbers]:
    require(len(values), len(group), "episodes of a group")
    return [np.full(len(e.turn_tokens), value) for e, value in zip(group, values, strict=True)]


def fit_advantages(found: Any, groups: Sequence[Group]) -> list[list[Numbers]]:
    """Check that `found` has a number within float32's range for each turn of each episode of each group.

    Raises:
        InvalidResultError: it has not.
    """
    require(len(found), len(groups), "groups of a batch")
    return [_fit(values, group) for values, group in zip(found, groups, strict=True)]


def _fit(found: Any, group: Group) -> list[Numbers]:
    require(len(found), len(group), "episodes of a group")
    taken = [np.atleast_1d(np.asarray(values, dtype=np.float64)) for values in found]
    for values, episode in zip(taken, group, strict=True):
        require(values.size, len(episode.turn_tokens), "turns of an episode")
        if values.ndim != 1:
            raise InvalidResultError(
                f"returned an array of shape {list(values.shape)} for an episode, not [{values.size}]: one "
                "number per turn"
            )
        if not fits(values):
            rewards = [other.reward for other in group]
            raise InvalidResultError(
                f"returned {values.tolist()} for an episode of a group with rewards {rewards}"
            )
    return taken


def _columns(group: Group) -> tuple[Numbers, Numbers]:
    rewards = np.array([episode.reward for episode in group], dtype=np.float64)
    return rewards, np.array([episode.action_tokens for episode in group], dtype=np.float64)


def centred(values: Numbers) -> Numbers:
    """Values minus their mean; exactly 0 if all are equal up to rounding."""
    return np.zeros_like(values) if uniform(values) else values - values.mean()


def _standardized(values: Numbers, by: Numbers, settings: AdvantageSettings) -> Numbers:
    """`values` divided by the unbiased standard deviation of `by`, if `settings.normalize` is `std`."""
    if settings.normalize == "none" or uniform(by):
        return values
    return values / (by.std(ddof=1) + STD_EPSILON)


@episode_advantage("group_based")
def group_based(rewards_G: Numbers, tokens_G: Numbers, settings: AdvantageSettings) -> Numbers:
    """Reward minus the group's mean, divided by the group's standard deviation if `normalize` is `std`.

    `std` is GRPO (arXiv 2402.03300): unbiased deviation, epsilon 1e-6. `none` is Dr. GRPO (arXiv 2503.20783).
    """
    return _standardized(centred(rewards_G), rewards_G, settings)


@advantage("group_based_per_turn")
def group_based_per_turn(groups: Sequence[Group], settings: AdvantageSettings) -> list[list[Numbers]]:
    """`group_based` over the returns-to-go at each turn, among the episodes that reach this turn.

    If no episode of a group has turn rewards, `group_based` applies: every turn gets the episode's advantage.
    The turn at which an episode happens to end says nothing about its quality.
    """
    return [
        _per_turn(group, settings)
        if any(episode.turn_rewards is not None for episode in group)
        else of_each_group(group_based)([group], settings)[0]
        for group in groups
    ]


def _per_turn(group: Group, settings: AdvantageSettings) -> list[Numbers]:
    returns = [episode.returns(settings.gamma) for episode in group]
    found = [np.zeros(len(values)) for values in returns]
    for turn in range(max(map(len, returns))):
        there = [index for index, values in enumerate(returns) if turn < len(values)]
        at_turn = np.array([returns[index][turn] for index in there])
        for index, value in zip(there, _standardized(centred(at_turn), at_turn, settings), strict=True):
            found[index][turn] = value
    return found


@episode_advantage("rloo")
def rloo(rewards_G: Numbers, tokens_G: Numbers, settings: AdvantageSettings) -> Numbers:
    """Reward minus the mean of the other episodes: `centred` rewards times G / (G - 1) (arXiv 2402.14740).

    A lone episode keeps its reward.
    """
    size = len(rewards_G)
    return rewards_G if size < 2 else centred(rewards_G) * (size / (size - 1))


@episode_advantage("opo")
def opo(rewards_G: Numbers, tokens_G: Numbers, settings: AdvantageSettings) -> Numbers:
    """Reward minus the group's mean, weighted by the episodes' action tokens (arXiv 2505.23585)."""
    if uniform(rewards_G) or not tokens_G.any():
        return centred(rewards_G)
    return rewards_G - np.average(rewards_G, weights=tokens_G)


@episode_advantage("grpo_passk")
def grpo_passk(rewards_G: Numbers, tokens_G: Numbers, settings: AdvantageSettings) -> Numbers:
    """The best reward minus the second best, for the best episode; 0 for all others (arXiv 2503.19595)."""
    found = np.zeros_like(rewards_G)
    ranked = np.argsort(rewards_G, kind="stable")
    if not uniform(rewards_G[ranked[-2:]]):
        found[ranked[-1]] = rewards_G[ranked[-1]] - rewards_G[ranked[-2]]
    return _standardized(found, rewards_G, settings)


@advantage("gpg")
def gpg(groups: Sequence[Group], settings: AdvantageSettings) -> list[list[Numbers]]:
    """Reward minus the group's mean, times alpha (arXiv 2504.02546).

    Alpha is the number of the batch's episodes divided by the number of episodes with a gradient. Episodes
    have a gradient if the rewards of their group differ.
    """
    rewards = [_columns(group)[0] for group in groups]
    heard = sum(len(values) for values in rewards if not uniform(values))
    alpha = sum(map(len, rewards)) / max(1, heard)
    return of_each_group(lambda rewards_G, _tokens, _settings: alpha * centred(rewards_G))(groups, settings)


@advantage("monte_carlo")
def monte_carlo(groups: Sequence[Group], settings: AdvantageSettings) -> list[list[Numbers]]:
    """The discounted return-to-go of each turn, without a baseline."""
    return [[episode.returns(settings.gamma) for episode in group] for group in groups]


@advantage("reinforce_pp")
def reinforce_pp(groups: Sequence[Group], settings: AdvantageSettings) -> list[list[Numbers]]:
    """Discounted returns-to-go, whitened over the batch's action tokens (arXiv 2501.03262)."""
    return _whitened(monte_carlo(groups, settings), groups)


@advantage("reinforce_pp_baseline")
def reinforce_pp_baseline(groups: Sequence[Group], settings: AdvantageSettings) -> list[list[Numbers]]:
    """Reward minus the group's mean, whitened over the batch's action tokens (arXiv 2501.03262)."""
    plain = AdvantageSettings(normalize="none")
    return _whitened(of_each_group(group_based)(groups, plain), groups)


def _whitened(values: list[list[Numbers]], groups: Sequence[Group]) -> list[list[Numbers]]:
    """Values rescaled to mean 0 and unbiased variance 1, with each turn counted once per action token."""
    flat = [turns for group in values for turns in group]
    tokens = [np.array(episode.turn_tokens, dtype=np.float64) for group in groups for episode in group]
    if not flat:
        return values
    every, count = np.concatenate(flat), np.concatenate(tokens)
    if uniform(every[count > 0]):
        return [[np.zeros_like(turns) for turns in group] for group in values]
    mean = np.average(every, weights=count)
    with np.errstate(over="ignore", invalid="ignore"):
        variance = (count * (every - mean) ** 2).sum() / (count.sum() - 1)
    if not fits(variance):
        raise InvalidResultError(
            f"cannot whiten returns up to {float(np.abs(every).max()):g}: their variance is not a number"
        )
    scale = 1 / np.sqrt(variance + WHITENING_EPSILON)
    return [[(turns - mean) * scale for turns in group] for group in values]
