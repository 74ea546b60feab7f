"""`linearize()` compared with tinker-cookbook's merge, an independent implementation of the same idea.

One difference is intended: tinker compares a turn only with the turn before it. So an agent that comes back
to an earlier conversation gets a row for each visit, for example when two helpers take turns. Here the turn
joins its branch. Both train the same tokens, each in the same context.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guests import guest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway_api.records import PolicyVersion, TrainingRow, VersionSpan
from headway_coordinator.trajectory.graph import Graph
from headway_coordinator.trajectory.linearize import linearize

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "tinker_merge.py"
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

Turns = list[tuple[list[int], list[int], list[float]]]
Merge = Callable[[Turns], list[Any]]

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=4)
"""So few different tokens that histories also agree by chance."""
CALLS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 10), TOKENS | st.just([]), TOKENS), min_size=1, max_size=8
)
"""For each turn: the sequence that it continues (0: the newest), tokens dropped from its end, tokens given,
and tokens sampled."""


@pytest.fixture(scope="module")
def merge() -> Iterator[Merge]:
    """Tinker's rows of an episode. Its program is started once."""
    with subprocess.Popen(
        [guest("tinker"), PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        asked, answered = program.stdin, program.stdout

        def ask(turns: Turns) -> list[Any]:
            asked.write(json.dumps(turns) + "\n")
            asked.flush()
            return list(json.loads(answered.readline()))

        yield ask
        asked.close()


def episode(calls: list[tuple[int, int, list[int], list[int]]]) -> Turns:
    """The turns of an episode.

    Every sampled token has a log-probability of its own, exact in 32 bits.
    """
    sequences, turns, drawn = [[0]], [], 0
    for which, cut, new, sampled in calls:
        history = sequences[-1 - which % len(sequences)]
        prompt = [*history[: max(1, len(history) - cut)], *new]
        logprobs = [-(drawn + i + 1) / 64 for i in range(len(sampled))]
        drawn += len(sampled)
        turns.append((prompt, sampled, logprobs))
        sequences.append(prompt + sampled)
    return turns


def ours(turns: Turns) -> list[TrainingRow]:
    graph = Graph()
    for prompt, sampled, logprobs in turns:
        version = VersionSpan(start=0, end=len(sampled), version=PolicyVersion(incarnation=0, step=0))
        graph.add_sampled(graph.place(prompt), sampled, logprobs, [version])
    return linearize(graph)


def comes_back(turns: Turns) -> bool:
    """Whether a turn continues an earlier sequence that tinker no longer considers.

    With so few tokens a prompt may continue several sequences by chance. Here it continues the longest, and
    the newest of equally long ones.
    """
    sequences: list[list[int]] = []
    left: set[int] = set()
    for prompt, sampled, _ in turns:
        newest = len(sequences) - 1
        fitting = [i for i, sequence in enumerate(sequences) if prompt[: len(sequence)] == sequence]
        best = max(fitting, key=lambda i: (len(sequences[i]), i), default=None)
        if best is not None and best != newest and (best in left or newest in fitting):
            return True
        if best != newest:
            left.add(newest)
        sequences.append(prompt + sampled)
    return False


def plain(rows: list[TrainingRow]) -> list[dict[str, list[Any]]]:
    return [{"tokens": row.tokens, "mask": row.mask, "logprobs": row.logprobs} for row in rows]


def trained(rows: list[dict[str, list[Any]]]) -> Counter[tuple[tuple[int, ...], float]]:
    """The training targets: each sampled token with all tokens before it, and its log-probability."""
    return Counter(
        (tuple(row["tokens"][: i + 1]), row["logprobs"][i])
        for row in rows
        for i, mask in enumerate(row["mask"])
        if mask
    )


@settings(max_examples=150)
@given(turns=st.lists(st.tuples(TOKENS | st.just([]), TOKENS), min_size=1, max_size=8))
def test_a_linear_episode_is_the_same_one_row(merge: Merge, turns: list[tuple[list[int], list[int]]]) -> None:
    made = episode([(0, 0, new, sampled) for new, sampled in turns])
    assert len(merge(made)) == 1
    assert plain(ours(made)) == merge(made)


@settings(max_examples=300)
@given(calls=CALLS)
def test_a_drifting_or_forking_episode_is_the_same_rows(
    merge: Merge, calls: list[tuple[int, int, list[int], list[int]]]
) -> None:
    turns = episode(calls)
    theirs = merge(turns)
    assert trained(plain(ours(turns))) == trained(theirs)
    if not comes_back(turns):
        assert plain(ours(turns)) == theirs


def test_alternating_conversations_are_2_rows_here_4_in_tinker(merge: Merge) -> None:
    turns: Turns = [
        ([0, 1], [2], [-0.5]),
        ([0, 3], [2], [-1.0]),
        ([0, 1, 2, 1], [3], [-1.5]),
        ([0, 3, 2, 3], [1], [-2.0]),
    ]
    assert [row.tokens for row in ours(turns)] == [[0, 1, 2, 1, 3], [0, 3, 2, 3, 1]]
    assert len(merge(turns)) == 4
    assert trained(plain(ours(turns))) == trained(merge(turns))
