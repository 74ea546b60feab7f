"""Tests reward and score, and that the preflight's checks find no fault.

pytest        # seconds, no cluster, no model
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from environment import FIELDS, oracle, solve, written
from generate import splits

from headway_sandbox.testing import Call, Sandboxes, Seen, ToolResult, check_environment, episode

SUMS = Sandboxes("environment:Sums", folders=[Path(__file__).parent], packages=False)
ROWS = splits()
ROW = {"prompt": "x", "boxes": 7, "each": 6, "broken": 5}


def test_a_right_answer_earns_everything() -> None:
    played = episode(SUMS, ROW, [], written({"packed": 42, "left": 37}))
    assert (played.error, played.reward, played.score) == (None, 1.0, 1.0)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ('<answer>{"packed": 42, "left": 36}</answer>', 1 / 4),
        ('<answer>{"packed": 42.0, "left": 37}</answer>', 0.0),
        ('<answer>{"packed": 42, "left": 37, "left": 37}</answer>', 0.0),
        ('{"packed": 42, "left": 37}', 0.0),
        ("42 and 37", 0.0),
        ("", 0.0),
    ],
)
def test_another_answer_earns_its_share_without_success(answer: str, reward: float) -> None:
    played = episode(SUMS, ROW, [], answer)
    assert played.reward == pytest.approx(reward)
    assert played.score == 0.0


@pytest.mark.parametrize(
    "call", [{"left": 1, "sign": "/", "right": 2}, {"left": 10**9, "sign": "*", "right": 2}]
)
def test_what_the_calculator_refuses_is_shown_and_ends_nothing(call: dict[str, int | str]) -> None:
    played = episode(SUMS, ROW, [Call("calculate", call)], "")
    assert played.error is None
    assert played.results[0].content.startswith("error: ")


def test_no_problem_is_in_two_splits() -> None:
    train, validation = ({row["prompt"] for row in ROWS[split]} for split in ("train", "validation"))
    assert not train & validation


def novice(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Replaces the model: plays like the oracle, and gets a number wrong half of the time."""
    answer = yield from oracle(seen)
    if seen.random.random() < 0.5:
        return answer
    right = solve(seen.row)
    field = seen.random.choice(FIELDS)
    return written({**right, field: right[field] + seen.random.randrange(1, 9)})


def test_the_preflight_finds_nothing() -> None:
    check_environment(SUMS, ROWS["train"], novice, validation=ROWS["validation"])
