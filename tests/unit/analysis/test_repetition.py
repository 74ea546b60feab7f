"""How much of a turn repeats its own earlier tokens."""

from __future__ import annotations

import pytest
from episodes import sealed

from headway_analysis.measures.repetition import LENGTH, repetition
from headway_api.records import EpisodeRecord, TrainingRow, TurnSpan


def episode(*turns: list[int]) -> EpisodeRecord:
    """An episode that samples these tokens. Each turn follows three given tokens."""
    tokens: list[int] = []
    mask: list[int] = []
    spans = []
    for number, turn in enumerate(turns):
        tokens += [9, 9, 9, *turn]
        mask += [0] * 3 + [1] * len(turn)
        spans.append(TurnSpan(start=len(tokens) - len(turn), end=len(tokens), turn=number))
    row = TrainingRow(tokens=tokens, mask=mask, logprobs=[0.0] * len(tokens), versions=[], turns=spans)
    return sealed("t0-0").model_copy(update={"rows": [row]})


@pytest.mark.parametrize(
    ("turn", "share"),
    [
        ([*range(100)], 0.0),
        ([7] * 100, 1 - 1 / (100 - LENGTH + 1)),
        ([*range(20), *range(20)], (20 - LENGTH + 1) / (40 - LENGTH + 1)),
        ([7] * LENGTH, 0.0),
        ([7], 0.0),
    ],
    ids=["nothing twice", "one token", "all of it twice", "one phrase", "too short"],
)
def test_the_share_of_phrases_that_came_before(turn: list[int], share: float) -> None:
    assert repetition(episode(turn)) == pytest.approx([share])


def test_a_repeat_of_another_turn_does_not_count() -> None:
    assert repetition(episode([*range(30)], [*range(30)])) == [0.0, 0.0]


def test_a_row_without_turns_counts_as_one() -> None:
    whole = episode([*range(20), *range(20)])
    row = whole.rows[0].model_copy(update={"turns": []})
    assert repetition(whole.model_copy(update={"rows": [row]})) == repetition(whole)


def test_an_episode_without_tokens_repeats_nothing() -> None:
    assert repetition(sealed("t0-0", turns=0)) == []
