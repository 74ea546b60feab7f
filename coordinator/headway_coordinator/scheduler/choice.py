"""Which finished groups make the next batch: pure functions, derived in docs/staleness.md.

A group's *slack* is how many more batches may be cut before it must be in one: S + 1 batches after its start,
counting from 0. All choices keep one promise, called *feasible*: among the groups that are left, no more than
j * P have a slack of j or less. Since a batch takes P groups, every one of them can then still be trained in
time, whichever of them finishes when. The choices differ in whom they prefer among the finished:

    in_order     the first positions of the data; waits for them, so that fast prompts are never preferred
    windowed     the oldest, out of the oldest P + (B - P) / 2: one slow group no longer holds up the rest
    ready_first  who finished first: the learner waits least, and fast prompts are trained sooner
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Order = Literal["in_order", "windowed", "ready_first"]


@dataclass(frozen=True)
class Group:
    """An active group as a choice sees it."""

    position: int
    slack: int
    """0: it is in the next batch, or it is too old."""
    ended: int | None
    """When it finished, in the order of finishing; None while it runs."""


Choice = Callable[[Collection[Group], int, int], "list[int] | None"]
"""(active groups, P, S) -> positions of the next batch in ascending order; None while it cannot be cut."""


def in_order(groups: Collection[Group], size: int, max_lag: int) -> list[int] | None:
    """The first `size` positions, once all of them have finished."""
    first = sorted(groups, key=lambda group: group.position)[:size]
    if len(first) < size or any(group.ended is None for group in first):
        return None
    return [group.position for group in first]


def windowed(groups: Collection[Group], size: int, max_lag: int) -> list[int] | None:
    """The oldest finished of the oldest `window(size, max_lag)`, where that is feasible."""
    oldest = sorted(groups, key=lambda group: (group.slack, group.position))
    return _fill(oldest[: window(size, max_lag)], groups, size)


def ready_first(groups: Collection[Group], size: int, max_lag: int) -> list[int] | None:
    """Those that finished first, where that is feasible."""
    return _fill(sorted(groups, key=lambda group: (group.ended is None, group.ended)), groups, size)


CHOICES: Final[dict[Order, Choice]] = {
    "in_order": in_order,
    "windowed": windowed,
    "ready_first": ready_first,
}


def window(size: int, max_lag: int) -> int:
    """How many of the oldest groups `windowed` looks at: half-way between one batch and all slots."""
    return size + max_lag * size // 2


def feasible(chosen: Iterable[int], groups: Collection[Group], size: int) -> bool:
    """Whether the groups left by a batch can all be trained in time."""
    taken = set(chosen)
    left = [group for group in groups if group.position not in taken]
    return all(sum(g.slack <= j for g in left) <= j * size for j in {g.slack for g in left})


def _fill(preferred: Sequence[Group], groups: Collection[Group], size: int) -> list[int] | None:
    """Take finished groups in the order given, each only if what is owed still fits beside it."""
    owed = {j: max(0, sum(g.slack <= j for g in groups) - j * size) for j in {g.slack for g in groups}}
    taken: list[int] = []
    for group in preferred:
        if len(taken) == size:
            break
        if group.ended is None:
            continue
        after = {j: count - (group.slack <= j) for j, count in owed.items()}
        # Owed at j is owed at every later j too: the largest is what the places left must hold.
        if max(after.values(), default=0) <= size - len(taken) - 1:
            owed = after
            taken.append(group.position)
    return sorted(taken) if len(taken) == size else None
