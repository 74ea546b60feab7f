"""Reduces the losses of tokens to a weighted sum, with one weight for all tokens of a training row.

The weights depend on the whole optimizer step, over every micro-batch and every rank. So packing,
accumulation and the number of ranks do not change the gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from headway_trainer.objective.registry import Table


@dataclass(frozen=True)
class RowShape:
    """The inputs of a reduction about one training row."""

    group_id: str
    episode: int
    """Index of the row's episode in its group."""
    action_tokens: int


ReductionFunction = Callable[[Sequence[RowShape], int], list[float]]
"""(training rows of an optimizer step, planned length) -> for each row, the weight of its action tokens.

The planned length is the maximum number of tokens that the job plans to sample in an episode.
"""

REDUCTIONS: Final[Table[ReductionFunction]] = Table("spec.algorithm.reduction")


def reduction(name: str) -> Callable[[ReductionFunction], ReductionFunction]:
    """Register a reduction."""

    def register(function: ReductionFunction) -> ReductionFunction:
        REDUCTIONS.add(name, function)
        return function

    return register


@reduction("token_mean")
def token_mean(rows: Sequence[RowShape], episode_tokens: int) -> list[float]:
    """Every action token of the optimizer step has the same weight (DAPO, arXiv 2503.14476)."""
    tokens = sum(row.action_tokens for row in rows)
    return [1 / tokens] * len(rows)


@reduction("sequence_mean")
def sequence_mean(rows: Sequence[RowShape], episode_tokens: int) -> list[float]:
    """Every episode has the same weight, which the tokens of all its training rows share equally (GRPO)."""
    return _shared(rows, _episode)


@reduction("prompt_mean")
def prompt_mean(rows: Sequence[RowShape], episode_tokens: int) -> list[float]:
    """Every prompt has the same weight, which the tokens of its episodes share equally (arXiv 2510.13786)."""
    return _shared(rows, lambda row: row.group_id)


@reduction("constant")
def constant(rows: Sequence[RowShape], episode_tokens: int) -> list[float]:
    """Every token has the weight 1 / (episodes * planned length) (Dr. GRPO, arXiv 2503.20783).

    The weight does not depend on the lengths of the sampled episodes.

    Raises:
        ValueError: the planned length is not known.
    """
    if episode_tokens < 1:
        raise ValueError("the reduction constant needs the planned length of an episode")
    return [1 / (len(set(map(_episode, rows))) * episode_tokens)] * len(rows)


def _episode(row: RowShape) -> Hashable:
    return row.group_id, row.episode


def _shared(rows: Sequence[RowShape], owner: Callable[[RowShape], Hashable]) -> list[float]:
    tokens: Counter[Hashable] = Counter()
    for row in rows:
        tokens[owner(row)] += row.action_tokens
    return [1 / (len(tokens) * tokens[owner(row)]) for row in rows]
