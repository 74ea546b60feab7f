"""Packs rows into micro-batches of nearly equal cost, the same number on every rank.

In a packed micro-batch the rows follow one another, without padding. Models that do not support packing get
rectangles: rows padded on the right to the longest. Attention is causal, so padding does not change the
tokens to its left. Rows of similar length share a rectangle, and at most `WASTE` of it is padding.

Unequal counts would crash or hang the collectives. So a rank with too few micro-batches gets empty ones,
whose loss is 0. The n-th micro-batches of all ranks run at the same time and wait for one another. So the
plan gives them nearly equal costs, and the ranks nearly equal totals.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Rows = tuple[int, ...]
"""Indices of the rows of one micro-batch, longest first; empty for an empty micro-batch."""
WASTE: Final = 0.05
"""Largest share of a rectangle's tokens that may be padding."""


@dataclass(frozen=True)
class Layout:
    """Whether micro-batches are packed or padded, and the cost of a row in the model."""

    packed: bool = False
    """True if rows are packed into one sequence, False if they are padded to a rectangle."""
    quadratic: float = 0.0
    """A row of n tokens costs n + quadratic * n^2, in units of one token's linear layers."""

    def of_row(self, length: int) -> float:
        """Cost of one row."""
        return length + self.quadratic * length * length

    def tokens(self, rows: Rows, lengths: Sequence[int]) -> int:
        """Tokens that a micro-batch sends through the model, padding included."""
        if self.packed:
            return sum(lengths[row] for row in rows)
        return len(rows) * max((lengths[row] for row in rows), default=0)

    def cost(self, rows: Rows, lengths: Sequence[int]) -> float:
        """Cost of a micro-batch, padding included."""
        if self.packed:
            return sum(self.of_row(lengths[row]) for row in rows)
        return len(rows) * self.of_row(max((lengths[row] for row in rows), default=0))


def plan(lengths: Sequence[int], max_tokens: int, ranks: int, layout: Layout = Layout()) -> list[list[Rows]]:
    """Plan the micro-batches of every rank. Each row is in exactly one micro-batch.

    Args:
        lengths: tokens of each row.
        max_tokens: maximum tokens of one micro-batch, padding included. A longer row gets its own
            micro-batch.
        ranks: number of processes.
        layout: packed or padded, and the cost of a row.
    Returns:
        The micro-batches of each rank; all ranks have the same number.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    if not order:
        return [[] for _ in range(ranks)]
    make = _packed if layout.packed else _rectangles
    batches = make([lengths[row] for row in order], max_tokens, ranks, layout)
    return _deal([tuple(order[place] for place in batch) for batch in batches], lengths, ranks, layout)


def _packed(descending: Sequence[int], max_tokens: int, ranks: int, layout: Layout) -> list[Rows]:
    """Pack into as few micro-batches as greedy filling allows; their number is a multiple of `ranks`.

    It is at most about twice the smallest possible number.
    """
    own = sum(length >= max_tokens for length in descending)
    shared = sum(descending[own:])
    rounds = -(-(own + -(-shared // max_tokens)) // ranks)
    while (filled := _spread(descending, max_tokens, rounds * ranks, layout)) is None:
        rounds += 1
    return filled


def _spread(descending: Sequence[int], max_tokens: int, count: int, layout: Layout) -> list[Rows] | None:
    """Put each row, longest first, into the cheapest micro-batch with room; None if a row fits nowhere."""
    batches: list[list[int]] = [[] for _ in range(count)]
    tokens = [0] * count
    heap = [(0.0, batch) for batch in range(count)]
    for place, length in enumerate(descending):
        full = []
        while heap and tokens[heap[0][1]] and tokens[heap[0][1]] + length > max_tokens:
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        total, batch = heapq.heappop(heap)
        batches[batch].append(place)
        tokens[batch] += length
        for entry in (*full, (total + layout.of_row(length), batch)):
            heapq.heappush(heap, entry)
    return [tuple(batch) for batch in batches]


def _rectangles(descending: Sequence[int], max_tokens: int, ranks: int, layout: Layout) -> list[Rows]:
    """Group rows into rectangles with the smallest possible maximum of tokens.

    There are at most as many rectangles as `max_tokens` requires, rounded up to a multiple of `ranks`.
    """
    count = ranks * -(-len(_fill(descending, max_tokens)) // ranks)
    low, high = 1, max_tokens
    while low < high:
        middle = (low + high) // 2
        if len(_fill(descending, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    chunks = _split(_fill(descending, low), descending, count, layout)
    return [tuple(range(start, end)) for start, end in chunks]


def _fill(descending: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Fill runs `[start, end)` of rows greedily, within `max_tokens` and `WASTE`. A run has at least one row.

    The rows are sorted by length.
    """
    chunks: list[tuple[int, int]] = []
    start = 0
    while start < len(descending):
        width, used, end = descending[start], 0, start
        while end < len(descending):
            area, used = (end + 1 - start) * width, used + descending[end]
            if end > start and (area > max_tokens or area - used > WASTE * area):
                break
            end += 1
        chunks.append((start, end))
        start = end
    return chunks


def _split(
    chunks: list[tuple[int, int]], descending: Sequence[int], count: int, layout: Layout
) -> list[tuple[int, int]]:
    """Split the costliest run in half until there are `count` runs, or every run has one row."""

    def entry(start: int, end: int) -> tuple[float, int, int]:
        return -(end - start) * layout.of_row(descending[start]), start, end

    heap = [entry(start, end) for start, end in chunks if end - start > 1]
    heapq.heapify(heap)
    singles = [chunk for chunk in chunks if chunk[1] - chunk[0] == 1]
    while heap and len(heap) + len(singles) < count:
        _, start, end = heapq.heappop(heap)
        middle = (start + end) // 2
        for left, right in ((start, middle), (middle, end)):
            if right - left == 1:
                singles.append((left, right))
            else:
                heapq.heappush(heap, entry(left, right))
    return sorted(singles + [(start, end) for _, start, end in heap])


def _deal(batches: list[Rows], lengths: Sequence[int], ranks: int, layout: Layout) -> list[list[Rows]]:
    """Assign micro-batches to ranks in rounds of `ranks`, costliest first.

    In each round the rank with the lowest total cost gets the costliest micro-batch.
    """
    ranked = sorted(batches, key=lambda rows: (-layout.cost(rows, lengths), rows))
    dealt: list[list[Rows]] = [[] for _ in range(ranks)]
    totals = [0.0] * ranks
    for first in range(0, len(ranked), ranks):
        poorest = sorted(range(ranks), key=lambda rank: (totals[rank], rank))
        batch_of = dict(zip(poorest, ranked[first : first + ranks], strict=False))
        for rank in range(ranks):
            rows = batch_of.get(rank, ())
            dealt[rank].append(rows)
            totals[rank] += layout.cost(rows, lengths)
    return dealt
