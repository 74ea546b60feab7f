"""From the message graph to training rows: one row a leaf, every sampled token trained exactly once.

A linear episode of T turns has one leaf, so it is one row, (T+1)/2 times fewer tokens than a row a turn.
Where the graph forked, the branches share a prefix; its sampled tokens are trained in the oldest branch
and are context in the others.

tinker-cookbook's merge makes the same rows, in the same order, of an episode whose turns never come back to a
conversation they had left; where they do, it makes a row for each visit, and here the row goes on.
"""

from __future__ import annotations

from collections.abc import Collection

from headway_api.records import Row, VersionSpan
from headway_rollout.trajectory.graph import Graph, Node


def linearize(graph: Graph, unseen: Collection[int] = ()) -> list[Row]:
    """Rows of an episode, oldest leaf first. A branch that trains nothing new makes no row.

    What the agent never saw (`unseen`, sampled nodes) had no part in its reward: it is not trained.
    """
    rows: list[Row] = []
    trained: set[int] = set(unseen)
    for leaf in graph.leaves():
        path = graph.path(leaf)
        fresh = {i for i in path if graph.nodes[i].sampled} - trained
        if fresh:
            rows.append(_row([(graph.nodes[i], i in fresh) for i in path]))
        trained |= fresh
    return rows


def _row(parts: list[tuple[Node, bool]]) -> Row:
    """Concatenate nodes up to the last trained one: what follows it has no bearing on the gradient."""
    while not parts[-1][1]:
        parts.pop()
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    versions: list[VersionSpan] = []
    for node, train in parts:
        if train:
            versions += [_shift(span, len(tokens)) for span in node.versions]
        tokens += node.tokens
        mask += [int(train)] * len(node.tokens)
        logprobs += node.logprobs if train else [0.0] * len(node.tokens)
    return Row(tokens=tokens, mask=mask, logprobs=logprobs, versions=_merge(versions))


def _shift(span: VersionSpan, by: int) -> VersionSpan:
    return VersionSpan(start=span.start + by, end=span.end + by, version=span.version)


def _merge(spans: list[VersionSpan]) -> list[VersionSpan]:
    merged: list[VersionSpan] = []
    for span in spans:
        if merged and merged[-1].end == span.start and merged[-1].version == span.version:
            span = VersionSpan(start=merged.pop().start, end=span.end, version=span.version)
        merged.append(span)
    return merged
