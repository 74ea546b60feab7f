"""Tests of the desk: the rewards of a few episodes, and that the preflight's checks find no fault.

pytest test_environment.py        # in the environment of `make venv`; seconds, no cluster, no model
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import environment as desk  # noqa: E402
from generate import rows  # noqa: E402

from headway_sandbox.testing import Call, Sandboxes, Seen, ToolResult, check_environment, each, episode  # noqa: E402

DESK = Sandboxes("environment:RefundDesk", folders=[HERE], packages=False)
TRAIN = rows("train", 0)[:64]
CASE = TRAIN[0]


def calls(case_id: str) -> list[Call]:
    """The tool calls that the procedure prescribes."""
    made = desk.expected_calls(case_id)
    return [Call(name, {"item" if name == "get_stock" else "case_id": key}) for name, key in made]


def written(answer: dict[str, str]) -> str:
    """An answer in the required form."""
    return f"<final_output>{json.dumps(answer)}</final_output>"


def test_the_prescribed_episode_earns_everything() -> None:
    answer = written(desk.expected_answer(CASE["case_id"]))
    played = episode(DESK, CASE, calls(CASE["case_id"]), answer)
    assert (played.error, played.reward, played.score) == (None, 1.0, 1.0)


def test_an_answer_without_looking_is_not_a_success() -> None:
    played = episode(DESK, CASE, [], written(desk.expected_answer(CASE["case_id"])))
    assert played.score == 0.0
    assert played.reward == pytest.approx(5 / 12)


def clerk(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Stands for the model: it follows the procedure, and in half of the episodes gets one field wrong."""
    yield from each(calls(seen.row["case_id"]))
    answer = desk.expected_answer(seen.row["case_id"])
    if seen.random.random() < 0.5:
        field = seen.random.choice(["amount", "method", "approval"])
        known = {"amount": desk.AMOUNT, "method": desk.METHOD, "approval": desk.APPROVAL}[field]
        answer[field] = seen.random.choice([value for value in known.values() if value != answer[field]])
    return written(answer)


def test_the_preflight_finds_nothing() -> None:
    check_environment(DESK, TRAIN, clerk, validation=rows("validation", 0), test=rows("test", 0))
