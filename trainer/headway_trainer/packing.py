"""Rows become micro-batches of near-equal cost, the same number on every rank.

A micro-batch is a rectangle: its rows are padded on the right to the longest. Attention is causal, so what
is padded on the right changes nothing to its left and needs no mask. Rows of like length lie together, so
little is padded. Ranks with unequal counts would crash or hang the collectives; a rank that runs short
gets an empty micro-batch, which the engine turns into one of zero loss.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Rows = tuple[int, ...]
"""Indices of the rows of one micro-batch; empty for one of zero loss."""


def plan(lengths: Sequence[int], max_tokens: int, ranks: int) -> list[list[Rows]]:
    """Micro-batches of every rank: each row in exactly one.

    Args:
        lengths: tokens of each row.
        max_tokens: padded tokens of one micro-batch; a longer row has one to itself.
        ranks: number of processes.

    Returns:
        For each rank its micro-batches; all ranks have equally many.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    fewest = len(_fill([lengths[row] for row in order], max_tokens))
    count = ranks * -(-fewest // ranks)
    chunks = _balance([lengths[row] for row in order], count, max_tokens)
    batches = [tuple(order[start:end]) for start, end in chunks]
    return _deal(batches, lengths, count, ranks)


def cost(rows: Rows, lengths: Sequence[int]) -> int:
    """Padded tokens."""
    return len(rows) * max((lengths[row] for row in rows), default=0)


def _fill(descending: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Greedy runs `[start, end)` of rows sorted by length, none above `max_tokens` unless it is one row."""
    chunks: list[tuple[int, int]] = []
    start = 0
    while start < len(descending):
        size = max(1, max_tokens // max(1, descending[start]))
        chunks.append((start, min(start + size, len(descending))))
        start = chunks[-1][1]
    return chunks


def _balance(descending: Sequence[int], count: int, max_tokens: int) -> list[tuple[int, int]]:
    """At most `count` runs whose costliest is as cheap as runs can be (binary search over the bound)."""
    low, high = 1, max_tokens
    while low < high:
        middle = (low + high) // 2
        if len(_fill(descending, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return _split(_fill(descending, low), descending, count)


def _split(chunks: list[tuple[int, int]], descending: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Halve the costliest run of several rows until there are `count` runs or nothing left to halve."""
    heap = [(-(end - start) * descending[start], start, end) for start, end in chunks if end - start > 1]
    heapq.heapify(heap)
    singles = [chunk for chunk in chunks if chunk[1] - chunk[0] == 1]
    while heap and len(heap) + len(singles) < count:
        _, start, end = heapq.heappop(heap)
        middle = (start + end) // 2
        for left, right in ((start, middle), (middle, end)):
            if right - left == 1:
                singles.append((left, right))
            else:
                heapq.heappush(heap, (-(right - left) * descending[left], left, right))
    return sorted(singles + [(start, end) for _, start, end in heap])


def _deal(batches: list[Rows], lengths: Sequence[int], count: int, ranks: int) -> list[list[Rows]]:
    """Costliest first, each to the cheapest rank that has room."""
    room = count // ranks
    dealt: list[list[Rows]] = [[] for _ in range(ranks)]
    heap = [(0, rank) for rank in range(ranks)]
    for batch in sorted(batches, key=lambda rows: (-cost(rows, lengths), rows)):
        total, rank = heapq.heappop(heap)
        dealt[rank].append(batch)
        if len(dealt[rank]) < room:
            heapq.heappush(heap, (total + cost(batch, lengths), rank))
    return [rows + [()] * (room - len(rows)) for rows in dealt]
