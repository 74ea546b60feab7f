"""Tests reward and score, and that the preflight's checks find no fault.

pytest        # seconds, no cluster, no model
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from environment import DAYS, PLACE, expected, oracle, written
from generate import splits

from headway_sandbox.testing import Call, Sandboxes, Seen, ToolResult, check_environment, episode

DESK = Sandboxes("environment:LendingDesk", folders=[Path(__file__).parent], packages=False)
ROWS = splits()
ROW = ROWS["train"][0]
CALLS = [Call("get_member", {"name": ROW["member"]}), Call("get_book", {"title": ROW["book"]})]


def test_a_right_answer_that_was_looked_up_earns_everything() -> None:
    played = episode(DESK, ROW, CALLS, written(expected(ROW)))
    assert (played.error, played.reward, played.score) == (None, 1.0, 1.0)


def test_an_answer_without_looking_is_not_a_success() -> None:
    played = episode(DESK, ROW, [], written(expected(ROW)))
    assert played.reward == pytest.approx(1 / 3)
    assert played.score == 0.0


def test_words_around_the_answer_earn_nothing() -> None:
    played = episode(DESK, ROW, CALLS, f"Here: {written(expected(ROW))}")
    assert (played.reward, played.score) == (0.0, 0.0)


def test_no_loan_is_in_two_splits() -> None:
    train, validation = ({row["prompt"] for row in ROWS[split]} for split in ("train", "validation"))
    assert not train & validation


def novice(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Replaces the model: plays like the oracle, and gets a field wrong half of the time."""
    answer = yield from oracle(seen)
    if seen.random.random() < 0.5:
        return answer
    right = expected(seen.row)
    field, known = seen.random.choice([("days", DAYS), ("place", PLACE)])
    wrong = [value for value in known.values() if value != right[field]]
    return written({**right, field: seen.random.choice(wrong)})


def test_the_preflight_finds_nothing() -> None:
    check_environment(DESK, ROWS["train"], novice, validation=ROWS["validation"])
