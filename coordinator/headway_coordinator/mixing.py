"""The order of training rows if their tasks have weights.

An epoch has as many positions as there are rows. Each task gets its weight's share of them. A task's rows
have their own order. An epoch continues that order where the last epoch ended. After the last row it repeats.
Like `dataset.Order`, this is a pure function of (seed, position).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from headway_coordinator.dataset import Order, Slot, permutation


@dataclass(frozen=True, eq=False)
class Mixture:
    """position -> (epoch, row): each task's rows appear in proportion to its weight."""

    tasks: tuple[tuple[int, ...], ...]
    """Rows of each task with a weight above 0."""
    places: tuple[int, ...]
    """For each of `tasks`: how many positions of an epoch it has."""
    seed: int
    shuffle: bool = True

    def slot(self, position: int) -> Slot:
        """The slot at `position`."""
        epoch, offset = divmod(position, sum(self.places))
        return Slot(position=position, epoch=epoch, row=_rows(self, epoch)[offset])


def order_of(
    rows: int, tasks: Sequence[str] | None, weights: Mapping[str, float], seed: int, shuffle: bool
) -> Order | Mixture:
    """The order of a job's training rows.

    Args:
        tasks: the task of each row; None if no column names tasks.
        weights: by task. A task without one has the weight 1. The weight 0 leaves its rows out. Without any
            weights every row comes once an epoch.
    """
    if not weights or tasks is None:
        return Order(rows=rows, seed=seed, shuffle=shuffle)
    members: dict[str, list[int]] = {}
    for row, task in enumerate(tasks):
        if weights.get(task, 1.0) > 0:
            members.setdefault(task, []).append(row)
    shares = places(rows, [weights.get(task, 1.0) for task in members])
    return Mixture(tuple(map(tuple, members.values())), tuple(shares), seed, shuffle)


def places(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` places in proportion to weights above 0, by largest remainders; each gets at least one.

    Raises:
        ValueError: there are more weights than places.
    """
    if total < len(weights):
        raise ValueError(f"{total} places for {len(weights)} tasks")
    wanted = [total * weight / sum(weights) for weight in weights]
    found = [max(1, int(share)) for share in wanted]
    every = range(len(found))
    while sum(found) < total:
        found[min(every, key=lambda task: found[task] - wanted[task])] += 1
    while sum(found) > total:
        more = [task for task in every if found[task] > 1]
        found[max(more, key=lambda task: found[task] - wanted[task])] -= 1
    return found


@lru_cache(maxsize=4)
def _rows(mixture: Mixture, epoch: int) -> tuple[int, ...]:
    """The row at each position of an epoch."""
    coming = [_coming(mixture, task, epoch) for task in range(len(mixture.tasks))]
    return tuple(next(coming[task]) for task in _turns(mixture, epoch))


def _coming(mixture: Mixture, task: int, epoch: int) -> Iterator[int]:
    """The rows of a task, from its first place in an epoch on."""
    rows = mixture.tasks[task]
    first, place = divmod(epoch * mixture.places[task], len(rows))
    for cycle in itertools.count(first):
        order: Sequence[int] = range(len(rows))
        if mixture.shuffle:
            order = permutation(len(rows), f"{mixture.seed}/task-{task}", cycle)
        yield from (rows[i] for i in order[place:])
        place = 0


def _turns(mixture: Mixture, epoch: int) -> list[int]:
    """The task at each position of an epoch: evenly spread, or shuffled."""
    turns = [(turn + 0.5) / count for count in mixture.places for turn in range(count)]
    tasks = [task for task, count in enumerate(mixture.places) for _ in range(count)]
    ordered = [tasks[i] for i in sorted(range(len(tasks)), key=lambda i: (turns[i], tasks[i]))]
    if mixture.shuffle:
        random.Random(f"headway/{mixture.seed}/mixture/{epoch}").shuffle(ordered)
    return ordered
