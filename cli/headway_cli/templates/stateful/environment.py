"""A room desk whose tools change a state. At the end one booking must be right; the answer's text is ignored.

The state is in memory, and `reset` creates it again, so two episodes share nothing.

The module uses only the standard library, because a fresh sandbox imports it for every episode.
"""

from __future__ import annotations

import json

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import Any

    from headway_sandbox.environment import Transcript
    from headway_sandbox.testing import Call, Seen, ToolResult

SEATS = {"nook": 2, "den": 4, "loft": 6, "hall": 9}
"""Seats of each room, the smallest room first."""
HOURS = ("nine", "noon", "four")
PARTS = ("hour", "name", "seats", "room")
"""The parts of a booking that are judged."""
PROCEDURE = """Room desk.
1. list_free at the hour.
2. book the smallest free room with enough seats.
Say when it is done."""


class RoomDesk(Environment):
    """One request."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row = row
        self.taken = {(room, row["hour"]) for room in row["taken"]}
        self.booked: dict[tuple[str, str], str] = {}
        """The bookings of this episode: the name, by room and hour."""
        return Observation([system(PROCEDURE), user(row["prompt"])])

    def free(self, hour: str) -> dict[str, int]:
        """Seats of the rooms that are free at an hour."""
        if hour not in HOURS:
            raise ToolError(f"hour is one of {', '.join(HOURS)}")
        gone = self.taken | self.booked.keys()
        return {room: seats for room, seats in SEATS.items() if (room, hour) not in gone}

    @tool
    def list_free(self, hour: str) -> dict[str, int]:
        """Free rooms and their seats."""
        return self.free(hour)

    @tool
    def book(self, room: str, hour: str, name: str) -> str:
        """Book a room."""
        if room not in self.free(hour):
            raise ToolError("no such free room")
        self.booked[room, hour] = name
        return "booked"

    @tool
    def cancel(self, room: str, hour: str) -> str:
        """Cancel a booking of yours."""
        if self.booked.pop((room, hour), None) is None:
            raise ToolError("no such booking")
        return "cancelled"

    def right(self) -> dict[str, bool]:
        """Which parts of the final booking are right; none unless there is exactly one booking."""
        if len(self.booked) != 1:
            return dict.fromkeys(PARTS, False)
        ((room, hour), name), row = next(iter(self.booked.items())), self.row
        fitting = [
            each
            for each, seats in SEATS.items()
            if seats >= row["people"] and (each, row["hour"]) not in self.taken
        ]
        return {
            "hour": hour == row["hour"],
            "name": name == row["name"],
            "seats": SEATS[room] >= row["people"],
            "room": room == fitting[0],
        }

    def reward(self, transcript: Transcript) -> Reward:
        """Half for the share of right parts, and half if all are right. Training uses this number."""
        right = self.right()
        share = sum(right.values()) / len(right)
        metrics = {"completion": float(bool(self.booked)), **{key: float(one) for key, one in right.items()}}
        return Reward((share + float(share == 1.0)) / 2, metrics)

    def score(self, transcript: Transcript) -> float:
        """1 if the final state is exactly right, else 0. The score is reported, and not trained on."""
        return float(all(self.right().values()))


def oracle(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Plays a row correctly: books the first free room that is large enough.

    Tests, `headway check` and `headway tiny-model` call it. No sandbox does.
    """
    from headway_sandbox.testing import Call

    row = seen.row
    found = yield Call("list_free", {"hour": row["hour"]})
    room = next(room for room, seats in json.loads(found.content).items() if seats >= row["people"])
    yield Call("book", {"room": room, "hour": row["hour"], "name": row["name"]})
    return "Booked."
