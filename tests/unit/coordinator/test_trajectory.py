"""The message graph and the rows it becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api.records import PolicyVersion, TrainingRow, TurnSpan, VersionSpan
from headway_coordinator.trajectory.graph import Graph, covers
from headway_coordinator.trajectory.linearize import linearize

TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def spans(length: int, step: int = 0) -> list[VersionSpan]:
    return [VersionSpan(start=0, end=length, version=PolicyVersion(incarnation=0, step=step))]


def sample(graph: Graph, prompt: list[int], tokens: list[int], step: int = 0) -> list[int]:
    """Add one turn to the graph. Returns the prompt and the sampled tokens."""
    node = graph.place(prompt)
    assert graph.tokens(node) == prompt
    graph.add_sampled(
        node,
        tokens,
        [-float(len(graph.nodes)) - i / 10 for i in range(len(tokens))],
        spans(len(tokens), step),
    )
    return prompt + tokens


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=8))
def test_a_linear_episode_of_any_number_of_turns_is_one_row(turns: list[tuple[list[int], list[int]]]) -> None:
    graph, history = Graph(), []
    mask: list[int] = []
    for number, (given_tokens, sampled) in enumerate(turns):
        history = sample(graph, history + given_tokens, sampled, step=number)
        mask += [0] * len(given_tokens) + [1] * len(sampled)
    [row] = linearize(graph)
    assert row.tokens == history
    assert row.mask == mask
    assert covers_the_mask(row.mask, row.versions)
    assert [span.turn for span in row.turns] == list(range(len(turns)))
    assert all((logprob < 0) == bool(m) for logprob, m in zip(row.logprobs, row.mask, strict=True))


def covers_the_mask(mask: list[int], spans: Sequence[VersionSpan | TurnSpan]) -> bool:
    covered = [0] * len(mask)
    for span in spans:
        for i in range(span.start, span.end):
            covered[i] += 1
    return covered == mask


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12), TOKENS, TOKENS), min_size=1, max_size=8))
def test_each_sampled_token_trains_once_despite_any_drift(
    calls: list[tuple[int, int, list[int], list[int]]],
) -> None:
    graph, seen = Graph(), [[9]]
    drawn: Counter[float] = Counter()
    for which, cut, new, sampled in calls:
        history = seen[which % len(seen)]
        prompt = history[: len(history) - cut] + new if cut < len(history) else [9, *new]
        before = len(graph.nodes)
        seen.append(sample(graph, prompt, sampled))
        drawn.update(graph.nodes[-1].logprobs)
        assert len(graph.nodes) - before <= 2
    rows = linearize(graph)
    trained = Counter(
        logprob for row in rows for logprob, mask in zip(row.logprobs, row.mask, strict=True) if mask
    )
    assert trained == drawn
    assert all(covers_the_mask(row.mask, row.versions) for row in rows)
    assert all(covers_the_mask(row.mask, row.turns) for row in rows)
    assert sorted(span.turn for row in rows for span in row.turns) == list(range(len(calls)))
    logprobs = {turn: graph.nodes[node].logprobs for node, turn in graph.turns().items()}
    for row in rows:
        for span in row.turns:
            assert tuple(row.logprobs[span.start : span.end]) == logprobs[span.turn]
    assert all(row.mask[-1] == 1 for row in rows)
    assert {tuple(row.tokens) for row in rows} <= {tuple(sequence) for sequence in seen}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), TOKENS, TOKENS), min_size=1, max_size=8))
def test_a_graph_without_forks_finds_what_a_search_finds(
    calls: list[tuple[int, int, list[int], list[int]]],
) -> None:
    quick, searched, history = Graph(), Graph(), [9]
    searched._line = None
    for drifts, cut, new, sampled in calls:
        prompt = history[: len(history) - cut * (not drifts)] + new
        assert quick.last_sampled(prompt) == searched.last_sampled(prompt)
        assert quick.forks_at(prompt) == searched.forks_at(prompt)
        history = sample(searched, prompt, sampled)
        assert sample(quick, prompt, sampled) == history
        assert quick.nodes == searched.nodes
        for index in (None, *range(len(quick.nodes))):
            assert quick.tokens(index) == searched.tokens(index)


def test_a_drifted_history_forks_and_shares_what_still_agrees() -> None:
    graph = Graph()
    first = sample(graph, [1, 2], [3, 4])
    sample(graph, [*first, 5], [6])
    sample(graph, [*first, 7], [8])
    sample(graph, [1, 2, 3], [9])
    rows = linearize(graph)
    assert [row.tokens for row in rows] == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], [1, 2, 3, 9]]
    assert [row.mask for row in rows] == [[0, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 1], [0, 0, 0, 1]]
    assert [[span.turn for span in row.turns] for row in rows] == [[0, 1], [2], [3]]


def test_the_right_one_of_turns_with_equal_starts_is_continued() -> None:
    graph = Graph()
    sample(graph, [1], [2])  # cut off by length, then requested again
    again = sample(graph, [1], [2, 3])
    sample(graph, [*again, 4], [5])
    assert [row.mask for row in linearize(graph)] == [[0, 1], [0, 1, 1, 0, 1]]
    graph = Graph()
    sample(graph, [1], [2])
    again = sample(graph, [1], [2])  # the same answer twice: the agent has the newer one
    sample(graph, [*again, 4], [5])
    assert [row.logprobs[1] for row in linearize(graph)] == [-1.0, -2.0]
    assert [row.action_tokens for row in linearize(graph)] == [1, 2]


def test_agent_that_returns_to_a_conversation_continues_its_row() -> None:
    graph = Graph()
    first, second = sample(graph, [1, 2], [3]), sample(graph, [1, 4], [5])
    sample(graph, [*first, 6], [7])
    sample(graph, [*second, 8], [9])
    assert [row.tokens for row in linearize(graph)] == [[1, 2, 3, 6, 7], [1, 4, 5, 8, 9]]
    assert [row.mask for row in linearize(graph)] == [[0, 0, 1, 0, 1]] * 2


def test_an_episode_without_a_turn_has_no_rows() -> None:
    assert linearize(Graph()) == []


def test_log_probabilities_or_versions_of_wrong_length_fail() -> None:
    graph = Graph()
    node = graph.place([1])
    with pytest.raises(ValueError, match="log-probabilities"):
        graph.add_sampled(node, [2, 3], [-1.0], spans(2))
    with pytest.raises(ValueError, match="do not cover"):
        graph.add_sampled(node, [2, 3], [-1.0, -1.0], spans(1))


def test_spans_cover_only_without_gap_or_overlap() -> None:
    version = PolicyVersion(incarnation=0, step=0)
    a, b = VersionSpan(start=0, end=2, version=version), VersionSpan(start=2, end=3, version=version)
    assert covers([a, b], 3)
    assert not covers([b, a], 3)
    assert not covers([a], 3)
    assert not covers([], 0)


@pytest.mark.parametrize("ends", [[], [(1, 2, 0)], [(1, 3, 0), (3, 4, 1)], [(2, 3, 1), (1, 2, 0)]])
def test_turns_that_do_not_cover_what_is_trained_are_refused(ends: list[tuple[int, int, int]]) -> None:
    turns = [TurnSpan(start=start, end=end, turn=turn) for start, end, turn in ends]
    given = {"tokens": [1, 2, 3, 4], "mask": [0, 1, 1, 0], "logprobs": [0.0] * 4, "versions": spans(1)}
    if not turns:
        assert TrainingRow(**given, turns=turns).turns == []
        return
    with pytest.raises(ValueError, match="turns must cover exactly"):
        TrainingRow(**given, turns=turns)
