"""How the losses of tokens become one number: the sum, with a weight for the tokens of each training row.

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
    """What a reduction may know about a training row."""

    group_id: str
    episode: int
    """Index of its episode in the group."""
    action_tokens: int


ReductionFunction = Callable[[Sequence[RowShape], int], list[float]]
"""(training rows of an optimizer step, planned length) -> the weight of each action token of each of them.

The planned length is the most tokens that the job plans to sample in an episode.
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
    """Every action token of the optimizer step counts the same (DAPO, arXiv 2503.14476)."""
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
    """Every token weighs 1 / (episodes * planned length) (Dr. GRPO, arXiv 2503.20783).

    Neither the lengths of the batch nor those of the group change it.

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
