"""Makes training rows from the message graph: one row for each leaf. Each sampled token is trained once.

A linear episode of T turns has one leaf, so it is one row. That is (T+1)/2 times fewer tokens than one row
for each turn. Branches of a fork share a prefix. The sampled tokens of the prefix are trained in the oldest
branch, and are context in the others.

tinker-cookbook's merge makes the same rows, in the same order, if an episode never returns to an earlier
branch. If it does, that merge makes a row for each visit, and here the earlier branch's row continues.
"""

from __future__ import annotations

from collections.abc import Collection

from headway_api.records import TrainingRow, TurnSpan, VersionSpan
from headway_coordinator.trajectory.graph import Graph, Node


def linearize(graph: Graph, unseen: Collection[int] = ()) -> list[TrainingRow]:
    """The training rows of an episode, oldest leaf first. A branch without new trained tokens makes no row.

    Sampled nodes in `unseen` are not trained: the agent never saw them, or a schema constrained them.
    """
    rows: list[TrainingRow] = []
    turns, trained = graph.turns(), set(unseen)
    for leaf in graph.leaves():
        path = graph.path(leaf)
        fresh = {i for i in path if graph.nodes[i].sampled} - trained
        if fresh:
            rows.append(_row([(graph.nodes[i], turns[i] if i in fresh else None) for i in path]))
        trained |= fresh
    return rows


def _row(parts: list[tuple[Node, int | None]]) -> TrainingRow:
    """Concatenate nodes up to the last trained one, because later tokens do not change the gradient.

    Each node comes with its turn's number if it is trained in this row, and otherwise with None.
    """
    while parts[-1][1] is None:
        parts.pop()
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    versions: list[VersionSpan] = []
    turns: list[TurnSpan] = []
    for node, turn in parts:
        train = turn is not None
        if turn is not None:
            versions += [_shift(span, len(tokens)) for span in node.versions]
            turns.append(TurnSpan(start=len(tokens), end=len(tokens) + len(node.tokens), turn=turn))
        tokens += node.tokens
        mask += [int(train)] * len(node.tokens)
        logprobs += node.logprobs if train else [0.0] * len(node.tokens)
    return TrainingRow(tokens=tokens, mask=mask, logprobs=logprobs, versions=_merge(versions), turns=turns)


def _shift(span: VersionSpan, by: int) -> VersionSpan:
    return VersionSpan(start=span.start + by, end=span.end + by, version=span.version)


def _merge(spans: list[VersionSpan]) -> list[VersionSpan]:
    merged: list[VersionSpan] = []
    for span in spans:
        if merged and merged[-1].end == span.start and merged[-1].version == span.version:
            span = VersionSpan(start=merged.pop().start, end=span.end, version=span.version)
        merged.append(span)
    return merged
