"""Tests reward and score, and that the preflight's checks find no fault.

pytest        # seconds, no cluster, no model
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from environment import ACTION, DAY, oracle, written
from generate import splits

from headway_sandbox.testing import Call, Sandboxes, Seen, ToolResult, check_environment, episode

DESK = Sandboxes("environment:ParcelDesk", folders=[Path(__file__).parent], packages=False)
ROWS = splits()
ROW = ROWS["train"][0]
CALLS = [Call(call["tool"], call["arguments"]) for call in ROW["recorded"]]


def test_a_right_answer_that_was_looked_up_earns_everything() -> None:
    played = episode(DESK, ROW, CALLS, written(ROW["expected"]))
    assert (played.error, played.reward, played.score) == (None, 1.0, 1.0)


def test_an_answer_without_looking_is_not_a_success() -> None:
    played = episode(DESK, ROW, [], written(ROW["expected"]))
    assert played.reward == pytest.approx(1 / 3)
    assert played.score == 0.0


def test_words_around_the_answer_earn_nothing() -> None:
    played = episode(DESK, ROW, CALLS, f"Here: {written(ROW['expected'])}")
    assert (played.reward, played.score) == (0.0, 0.0)


def test_a_call_that_was_not_recorded_is_named() -> None:
    played = episode(DESK, ROW, [Call("get_parcel", {"parcel": "none"})], "")
    assert played.results[0].content == "error: nothing is recorded for this call"


def test_no_parcel_is_in_two_splits() -> None:
    train, validation = ({row["parcel"] for row in ROWS[split]} for split in ("train", "validation"))
    assert not train & validation


def novice(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Replaces the model: plays like the oracle, and gets a field wrong half of the time."""
    answer = yield from oracle(seen)
    if seen.random.random() < 0.5:
        return answer
    field, known = seen.random.choice([("action", ACTION), ("day", DAY)])
    wrong = [value for value in known.values() if value != seen.row["expected"][field]]
    return written({**seen.row["expected"], field: seen.random.choice(wrong)})


def test_the_preflight_finds_nothing() -> None:
    check_environment(DESK, ROWS["train"], novice, validation=ROWS["validation"])
