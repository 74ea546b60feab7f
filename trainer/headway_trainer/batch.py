"""Turns a batch record into training rows: token ids, the mask of trained tokens, advantages and weights.

The advantage is computed once, here, for each turn of the batch's scored episodes. Every token then has the
advantage of its turn. A group whose advantages are all zero, up to rounding, makes no training rows. A
token's `weight` in the loss of its optimizer step is fixed once its mini-batch is known. So the sum over
tokens does not depend on packing, accumulation or the number of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headway_api.bounds import SCORE
from headway_api.exits import JobError
from headway_api.in_force import InForce
from headway_api.objective import uniform
from headway_api.records import (
    Batch,
    BatchWaits,
    EpisodeRecord,
    GroupRecord,
    TrainingRow,
    TurnSpan,
    VersionSpan,
)
from headway_api.staleness import staleness
from headway_trainer.objective.advantage import Numbers, Scored
from headway_trainer.objective.presets import Objective
from headway_trainer.objective.reduction import RowShape


class MalformedRowError(JobError):
    """A training row that no model call can have produced. Training on it would damage the policy."""

    def __init__(self, group_id: str, what: str) -> None:
        super().__init__("MalformedRow", f"group {group_id}: {what}; this is a fault of the platform")


@dataclass(frozen=True)
class LearnerRow:
    """A training row with advantages and weights, as it goes through the model.

    L is its length, and T the number of its action tokens.
    """

    group_id: str
    tokens: NDArray[np.int64]
    """(L,): context and action tokens."""
    mask: NDArray[np.bool_]
    """(L,): True where the model sampled the token. The first token is never sampled."""
    logprobs: NDArray[np.float32]
    """(L,): the rollout server's log-probabilities, at the sampling temperature; valid where mask is True."""
    advantages: NDArray[np.float32]
    """(L,): valid where mask is True."""
    episode: int
    """Index of the row's episode in its group. An episode whose history forked has several training rows."""
    weight: float = 0.0
    """Factor that multiplies the loss of each action token of this row in its optimizer step."""
    old: NDArray[np.float32] | None = None
    """(T,): log-probability of each action token under the weights before the batch's first optimizer step.
    None if the correction does not need it."""

    @property
    def length(self) -> int:
        """Number of tokens, context included."""
        return len(self.tokens)

    @property
    def action_tokens(self) -> int:
        """Number of tokens that have a loss."""
        return int(self.mask.sum())


@dataclass(frozen=True)
class Staleness:
    """Staleness of a batch's action tokens, in steps."""

    mean: float
    maximum: int


@dataclass(frozen=True)
class GroupRows:
    """One group that has a gradient. `updatesPerBatch` divides such groups into optimizer steps."""

    group_id: str
    rows: tuple[LearnerRow, ...]
    episodes: int
    """Number of episodes that the training rows come from."""


@dataclass(frozen=True)
class TrainingBatch:
    """The part of one `Batch` that all ranks of the learner need: small, picklable, without text."""

    step: int
    epoch: int
    group_ids: tuple[str, ...]
    """Every group of the batch, in its order, with or without a gradient."""
    groups: tuple[GroupRows, ...]
    """The groups that have a gradient."""
    advantages: NDArray[np.float64]
    """(E,): the mean advantage over the turns of each scored episode of the whole batch, zeros included."""
    episodes: int
    """Number of episodes of the batch, those with InfraError included."""
    rows_seen: int
    """Number of training rows of scored episodes, also in groups without a gradient."""
    staleness: Staleness
    in_force: InForce = field(default_factory=InForce)
    """The settings to train the batch with."""
    idle: dict[str, tuple[RowShape, ...]] = field(default_factory=dict)
    """Training rows of the groups that have no gradient, for denominators that count them too."""
    waits: BatchWaits | None = None
    """`Batch.waits`, unchanged."""

    @property
    def train_tokens(self) -> dict[str, int]:
        """Tokens of each group that go through forward and backward; 0 for a group without a gradient."""
        lengths = {group.group_id: sum(row.length for row in group.rows) for group in self.groups}
        return {group_id: lengths.get(group_id, 0) for group_id in self.group_ids}


def training_batch(batch: Batch, objective: Objective) -> TrainingBatch:
    """Training rows and advantages of a batch.

    Raises:
        MalformedRowError: an action token has no context, a training row is empty, or a reward is too large
            to sum.
    """
    groups: list[GroupRows] = []
    idle: dict[str, tuple[RowShape, ...]] = {}
    advantages = objective.advantages([scored_episodes(group) for group in batch.groups])
    for group, found in zip(batch.groups, advantages, strict=True):
        rows = tuple(_rows(group, found))
        if uniform([0.0, *(value for turns in found for value in turns)]):
            idle[group.group_id] = tuple(map(_shape, rows))
        elif rows:
            episodes = sum(any(row.action_tokens for row in episode.rows) for episode in group.scored)
            groups.append(GroupRows(group.group_id, rows, episodes))
    scored = [episode for group in batch.groups for episode in group.scored]
    return TrainingBatch(
        step=batch.step,
        epoch=batch.epoch,
        group_ids=tuple(group.group_id for group in batch.groups),
        groups=tuple(groups),
        advantages=np.array([turns.mean() for found in advantages for turns in found], dtype=np.float64),
        episodes=sum(len(group.episodes) for group in batch.groups),
        rows_seen=sum(len(episode.rows) for episode in scored),
        staleness=staleness_of(
            [span for e in scored for row in e.rows for span in row.versions], batch.step, batch.idle
        ),
        in_force=batch.in_force,
        idle=idle,
        waits=batch.waits,
    )


def scored_episodes(group: GroupRecord) -> list[Scored]:
    """The inputs for a group's advantages, in the order of its scored episodes."""
    return [_scored(group.group_id, episode) for episode in group.scored]


def _scored(group_id: str, episode: EpisodeRecord) -> Scored:
    if episode.reward is None:
        raise MalformedRowError(group_id, "a scored episode has no reward")
    tokens = _turn_tokens(episode)
    rewards = episode.turn_rewards
    if rewards is not None and tokens and max(tokens) >= len(rewards):
        raise MalformedRowError(group_id, f"turn {max(tokens)} has no reward, though turns have rewards")
    for earned in (episode.reward, *(rewards or ())):
        if not abs(earned) <= SCORE:  # squares of huge rewards overflow, which makes the whole batch NaN
            raise MalformedRowError(
                group_id, f"episode {episode.index} has a reward of {earned}, beyond {SCORE:g}"
            )
    return Scored(
        reward=episode.reward,
        turn_tokens=tuple(tokens[turn] for turn in sorted(tokens)) or (0,),
        turn_rewards=_earned(rewards, sorted(tokens)) if rewards and tokens else None,
    )


def _earned(rewards: Sequence[float], turns: Sequence[int]) -> tuple[float, ...]:
    """The reward of each trained turn, plus the rewards of untrained turns between it and the next trained
    one.

    An untrained turn has no token in the rows. Such a turn may not have reached the agent, and then it earned
    nothing. Or a schema forced all its tokens: then it is part of the environment, like a tool's answer.
    """
    ends = [*turns[1:], len(rewards)]
    return tuple(sum(rewards[turn:end]) for turn, end in zip(turns, ends, strict=True))


def _turn_tokens(episode: EpisodeRecord) -> Counter[int]:
    tokens: Counter[int] = Counter()
    for row in episode.rows:
        for span in _spans(row):
            tokens[span.turn] += span.end - span.start
    return tokens


def _spans(row: TrainingRow) -> list[TurnSpan]:
    """The spans of each turn's tokens. If the row has no spans, each run of its mask belongs to turn 0."""
    if row.turns:
        return row.turns
    edges = np.flatnonzero(np.diff([0, *row.mask, 0])).tolist()
    return [TurnSpan(start=a, end=b, turn=0) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def staleness_of(spans: Sequence[VersionSpan], step: int, idle: Sequence[int] = ()) -> Staleness:
    """Steps trained between the version that sampled a token and the version that the batch trains (step -
    1). `idle` lists the steps without groups, which do not count."""
    tokens = np.array([span.end - span.start for span in spans], dtype=np.int64)
    ages = [staleness(span.version.step, step, idle) for span in spans]
    behind = np.array([max(0, age) for age in ages], dtype=np.int64)
    if not tokens.sum():
        return Staleness(mean=0.0, maximum=0)
    return Staleness(mean=float((tokens * behind).sum() / tokens.sum()), maximum=int(behind.max()))


def mini_batches(batch: TrainingBatch, updates: int, objective: Objective) -> list[list[LearnerRow]]:
    """The rows of each optimizer step, with their weights.

    Groups stay whole and in order, in at most `updates` parts of nearly equal size. If the objective's
    denominators count groups without a gradient, these groups are divided among the parts as well.
    """
    trained = {group.group_id: group.rows for group in batch.groups}
    counted = [name for name in batch.group_ids if name in trained or objective.counts_all]
    found = []
    for part in np.array_split(np.arange(len(counted)), max(1, min(updates, len(counted)))):
        names = [counted[index] for index in part]
        rows = [row for name in names for row in trained.get(name, ())]
        if rows:
            found.append(weighted(rows, objective, [s for name in names for s in batch.idle.get(name, ())]))
    return found


def weighted(
    rows: Sequence[LearnerRow], objective: Objective, idle: Sequence[RowShape] = ()
) -> list[LearnerRow]:
    """The rows of one optimizer step, each with the weight of its tokens. `idle` rows count only in
    denominators."""
    weights = objective.weights([*map(_shape, rows), *idle])
    return [replace(row, weight=w) for row, w in zip(rows, weights, strict=False)]


def _shape(row: LearnerRow) -> RowShape:
    return RowShape(row.group_id, row.episode, row.action_tokens)


def _rows(group: GroupRecord, advantages: Sequence[Numbers]) -> list[LearnerRow]:
    rows = []
    for episode, values in zip(group.scored, advantages, strict=True):
        by_turn = dict(zip(sorted(_turn_tokens(episode)), values.tolist(), strict=False))
        rows += [
            _training_row(group.group_id, episode.index, row, by_turn)
            for row in episode.rows
            if row.action_tokens
        ]
    return rows


def _training_row(group_id: str, episode: int, row: TrainingRow, by_turn: Mapping[int, float]) -> LearnerRow:
    if row.mask[0]:
        raise MalformedRowError(group_id, "the first token of a training row is marked as sampled")
    advantages = np.zeros(len(row.tokens), dtype=np.float32)
    for span in _spans(row):
        advantages[span.start : span.end] = by_turn[span.turn]
    return LearnerRow(
        group_id=group_id,
        tokens=np.array(row.tokens, dtype=np.int64),
        mask=np.array(row.mask, dtype=np.bool_),
        logprobs=np.array(row.logprobs, dtype=np.float32),
        advantages=advantages,
        episode=episode,
    )
