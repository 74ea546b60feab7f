"""A clean task with many tools and a state: an order is looked up, settled by one action, and reported.

The state is in memory and made at the reset, so two episodes share nothing.
"""

from __future__ import annotations

from parcels import parse, pick

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from headway_sandbox.environment import Transcript


STATUS = ("paid", "shipped", "delivered")
PLANS = ("plus", "basic")
CARRIERS = ("falcon", "osprey", "heron")
ACTION = {"paid": "cancel_order", "shipped": "recall_order", "delivered": "refund_order"}
FIELDS = ("action", "amount", "carrier")


def record(order: str) -> dict[str, Any]:
    """The facts of an order."""
    return {
        "status": pick(STATUS, "status", order),
        "price": 20 + 5 * (sum(map(ord, order)) * 13 % 17),
        "plan": pick(PLANS, "plan", order),
        "carrier": pick(CARRIERS, "carrier", order),
    }


def label(order: str) -> dict[str, str]:
    """How the order must be settled."""
    known = record(order)
    amount = known["price"] if known["plan"] == "plus" else known["price"] - 5
    return {"action": ACTION[known["status"]], "amount": str(amount), "carrier": known["carrier"]}


def rows(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each order number."""
    names = [f"O-{number:04d}" for number in numbers]
    return [{"prompt": f"Settle order {name}.", "order": name, "label": label(name)} for name in names]


class Orders(Environment):
    """The environment of one order."""

    EXAMPLE = '<settled>{"action": "...", "amount": "...", "carrier": "..."}</settled>'

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row, self.done = row, []
        rules = ", ".join(f"{status}: {action}" for status, action in ACTION.items())
        text = f"""Settle the order by one action, chosen by its status ({rules}).
The amount is the price; 5 less on the basic plan. Report the carrier too.
When it is done, answer with nothing but {self.EXAMPLE}"""
        return Observation([system(text), user(row["prompt"])])

    def known(self, order: str) -> dict[str, Any]:
        if order != self.row["order"]:
            raise ToolError("no such order")
        return record(order)

    @tool
    def get_order(self, order: str) -> dict[str, Any]:
        """Status and price of an order."""
        known = self.known(order)
        return {"status": known["status"], "price": known["price"], "settled": bool(self.done)}

    @tool
    def get_plan(self, order: str) -> dict[str, Any]:
        """Plan of the customer."""
        return {"plan": self.known(order)["plan"]}

    @tool
    def get_carrier(self, order: str) -> dict[str, Any]:
        """Carrier of an order."""
        return {"carrier": self.known(order)["carrier"]}

    @tool
    def get_weather(self, city: str) -> dict[str, Any]:
        """Weather, which no order depends on."""
        return {"weather": pick(("rain", "sun", "snow"), city)}

    def settle(self, action: str, order: str, amount: int) -> dict[str, bool]:
        self.known(order)
        if self.done:
            raise ToolError("the order is settled already")
        self.done.append([action, order, amount])
        return {"settled": True}

    @tool
    def cancel_order(self, order: str, amount: int) -> dict[str, Any]:
        """Cancel an order that is paid."""
        return self.settle("cancel_order", order, amount)

    @tool
    def recall_order(self, order: str, amount: int) -> dict[str, Any]:
        """Recall an order that is shipped."""
        return self.settle("recall_order", order, amount)

    @tool
    def refund_order(self, order: str, amount: int) -> dict[str, Any]:
        """Refund an order that is delivered."""
        return self.settle("refund_order", order, amount)

    def judged(self, transcript: Transcript) -> tuple[int, bool]:
        """How many fields are right (-1 without an answer), and whether the order was settled as expected."""
        answer, expected = parse(transcript.answer, "settled", FIELDS), self.row["label"]
        right = sum(answer[name] == expected[name] for name in FIELDS) if answer else -1
        done = self.done == [[expected["action"], self.row["order"], int(expected["amount"])]]
        return right, done

    def reward(self, transcript: Transcript) -> Reward:
        right, done = self.judged(transcript)
        share = max(right, 0) / len(FIELDS)
        value = 0.1 * (right >= 0) + 0.3 * share + 0.6 * (share == 1.0 and done)
        return Reward(value, {"completion": float(right >= 0), "settled": float(done)})

    def score(self, transcript: Transcript) -> float:
        right, done = self.judged(transcript)
        return float(right == len(FIELDS) and done)


def contract() -> dict[str, Any]:
    """The tools as production describes them: the answer of MCP's tools/list."""
    order = {"order": {"type": "string"}}
    amount = order | {"amount": {"type": "integer"}}
    shapes = dict.fromkeys(("get_order", "get_plan", "get_carrier"), order)
    shapes |= {"get_weather": {"city": {"type": "string"}}}
    shapes |= dict.fromkeys(ACTION.values(), amount)
    return {
        "tools": [
            {
                "name": name,
                "inputSchema": {"type": "object", "properties": properties, "required": sorted(properties)},
            }
            for name, properties in shapes.items()
        ]
    }
