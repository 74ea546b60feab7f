"""Which finished groups make the next batch: pure functions, derived in docs/staleness.md.

A batch has P groups, S is the staleness bound, and B = (S + 1) * P groups may be active. A group must be in
one of the S + 1 batches after its start. Its *slack* is how many other batches may be cut before that one.
All choices keep one promise, called *feasible*: of the groups that are left, at most j * P have a slack up to
j. Then every group can still be trained in time, whatever the order in which groups finish. The choices
differ in which finished groups they prefer:

    in_order     the first positions of the data; waits for them, so that fast prompts are never preferred
    windowed     the oldest, out of the oldest P + (B - P) / 2: one slow group does not block the rest
    ready_first  those that finished first: the learner waits least, and fast prompts are trained sooner
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Order = Literal["in_order", "windowed", "ready_first"]


@dataclass(frozen=True)
class Group:
    """An active group, as input of a choice."""

    position: int
    slack: int
    """How many batches may be cut before the one that must have the group. With 0 it is the next one."""
    ended: int | None
    """The group's number in the order of finishing; None while it runs."""


Choice = Callable[[Collection[Group], int, int], "list[int] | None"]
"""(active groups, P, S) -> positions of the next batch in ascending order; None if it cannot be cut yet."""


def in_order(groups: Collection[Group], size: int, max_staleness: int) -> list[int] | None:
    """The first `size` positions, once all of them have finished."""
    first = sorted(groups, key=lambda group: group.position)[:size]
    if len(first) < size or any(group.ended is None for group in first):
        return None
    return [group.position for group in first]


def windowed(groups: Collection[Group], size: int, max_staleness: int) -> list[int] | None:
    """The oldest finished groups among the oldest `window(size, max_staleness)`, as far as is feasible."""
    oldest = sorted(groups, key=lambda group: (group.slack, group.position))
    return _fill(oldest[: window(size, max_staleness)], groups, size)


def ready_first(groups: Collection[Group], size: int, max_staleness: int) -> list[int] | None:
    """The groups that finished first, as far as that is feasible."""
    return _fill(sorted(groups, key=lambda group: (group.ended is None, group.ended)), groups, size)


CHOICES: Final[dict[Order, Choice]] = {
    "in_order": in_order,
    "windowed": windowed,
    "ready_first": ready_first,
}


def window(size: int, max_staleness: int) -> int:
    """How many of the oldest groups `windowed` considers: half-way between one batch and all slots."""
    return size + max_staleness * size // 2


def feasible(chosen: Iterable[int], groups: Collection[Group], size: int) -> bool:
    """Whether the groups left by a batch can all be trained in time."""
    taken = set(chosen)
    left = [group for group in groups if group.position not in taken]
    return all(sum(g.slack <= j for g in left) <= j * size for j in {g.slack for g in left})


def _fill(preferred: Sequence[Group], groups: Collection[Group], size: int) -> list[int] | None:
    """Take finished groups in the given order, each only if the batch stays feasible."""
    # owed[j]: how many groups with a slack up to j must be in this batch.
    owed = {j: max(0, sum(g.slack <= j for g in groups) - j * size) for j in {g.slack for g in groups}}
    taken: list[int] = []
    for group in preferred:
        if len(taken) == size:
            break
        if group.ended is None:
            continue
        after = {j: count - (group.slack <= j) for j, count in owed.items()}
        # A group with a slack up to j counts for every later j too, so the largest number must fit.
        if max(after.values(), default=0) <= size - len(taken) - 1:
            owed = after
            taken.append(group.position)
    return sorted(taken) if len(taken) == size else None
