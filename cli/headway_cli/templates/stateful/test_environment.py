"""Tests reward and score, and that the preflight's checks find no fault.

pytest        # seconds, no cluster, no model
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from environment import SEATS, oracle
from generate import splits

from headway_sandbox.testing import Call, Sandboxes, Seen, ToolResult, check_environment, episode

DESK = Sandboxes("environment:RoomDesk", folders=[Path(__file__).parent], packages=False)
ROWS = splits()
ROW = {"prompt": "x", "name": "otter", "hour": "noon", "people": 4, "taken": ["den"]}
"""A row whose right room is the loft."""


def book(room: str, hour: str = "noon", name: str = "otter") -> Call:
    return Call("book", {"room": room, "hour": hour, "name": name})


CANCEL = Call("cancel", {"room": "hall", "hour": "noon"})


@pytest.mark.parametrize("calls", [[book("loft")], [book("hall"), CANCEL, book("loft")]])
def test_the_right_final_state_earns_everything(calls: list[Call]) -> None:
    played = episode(DESK, ROW, calls, "Booked.")
    assert (played.error, played.reward, played.score) == (None, 1.0, 1.0)


@pytest.mark.parametrize(
    ("calls", "share"),
    [
        ([book("hall")], 3 / 4),
        ([book("nook")], 2 / 4),
        ([book("loft", name="lynx")], 3 / 4),
        ([book("loft"), book("hall")], 0.0),
        ([book("den")], 0.0),
        ([book("hall"), CANCEL], 0.0),
        ([], 0.0),
    ],
)
def test_another_final_state_earns_its_share_without_success(calls: list[Call], share: float) -> None:
    played = episode(DESK, ROW, calls, "Booked.")
    assert played.reward == pytest.approx(share / 2)
    assert played.score == 0.0


def test_a_room_that_was_booked_is_no_longer_free() -> None:
    listed = Call("list_free", {"hour": "noon"})
    played = episode(DESK, ROW, [listed, book("loft"), listed], "")
    assert [one.content for one in played.results[::2]] == [
        '{"nook": 2, "loft": 6, "hall": 9}',
        '{"nook": 2, "hall": 9}',
    ]


def test_no_request_is_in_two_splits() -> None:
    train, validation = ({row["prompt"] for row in ROWS[split]} for split in ("train", "validation"))
    assert not train & validation


def novice(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Replaces the model: plays like the oracle, and books any room half of the time."""
    if seen.random.random() < 0.5:
        return (yield from oracle(seen))
    hour = seen.row["hour"]
    yield Call("list_free", {"hour": hour})
    yield book(seen.random.choice(list(SEATS)), hour, seen.row["name"])
    return "Booked."


def test_the_preflight_finds_nothing() -> None:
    check_environment(DESK, ROWS["train"], novice, validation=ROWS["validation"])
