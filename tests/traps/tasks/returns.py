"""A clean task that is judged by its tool calls: one call returns a parcel, and the message is not read."""

from __future__ import annotations

from parcels import pick

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from headway_sandbox.environment import Transcript


DEPOTS = ("north", "south", "east", "west")


def rows(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each order number."""
    names = [f"R-{number:04d}" for number in numbers]
    return [{"prompt": f"Send order {name} back.", "order": name} for name in names]


class Returns(Environment):
    """The environment of one order. The state is in memory, made at the reset."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row, self.sent = row, list[tuple[str, str]]()
        text = "Look up the depot of the order and send it there, once. Say when it is done."
        return Observation([system(text), user(row["prompt"])])

    @tool
    def get_depot(self, order: str) -> dict[str, Any]:
        """Depot that an order comes from."""
        if order != self.row["order"]:
            raise ToolError("no such order")
        return {"depot": pick(DEPOTS, "depot", order)}

    @tool
    def send_back(self, order: str, depot: str) -> dict[str, Any]:
        """Send an order to a depot."""
        self.sent.append((order, depot))
        return {"sent": len(self.sent)}

    def reward(self, transcript: Transcript) -> Reward | float:
        return self.score(transcript)

    def score(self, transcript: Transcript) -> float:
        order = self.row["order"]
        return float(self.sent == [(order, pick(DEPOTS, "depot", order))])
