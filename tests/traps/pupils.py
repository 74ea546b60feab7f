"""Simulated models: each knows a part of a task's procedure, and copies the format of the prompt's example.

`skill` is the share of fields that a model gets right; each row is somewhat easier or harder. A model that
can learn sometimes succeeds, sometimes forgets the format, and rarely gives no answer.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Generator
from typing import Any

from tests.traps import clean

from headway_sandbox.testing import Call, Malformed, Seen, ToolResult

Turns = Generator[Call, ToolResult, str]
Row = dict[str, Any]
SKILL = 0.8
SLIPS = 0.05
"""Probability that the format is forgotten, and probability that there is no answer."""
SPREAD = 0.15
"""Largest amount by which a row's probability of success differs from the skill."""


def pupil(task: str, skill: float | None = None, habit: str = "") -> Callable[[Seen], Turns]:
    """A simulated model that plays a task."""
    plays = {"parcels": parcels, "triage": triage, "sums": sums, "orders": orders, "returns": returns}[task]

    def model(seen: Seen) -> Turns:
        knows = chance(SKILL if skill is None else skill, dict(seen.row))
        known = (lambda: True) if skill == 1.0 else (lambda: seen.random.random() < knows)
        answer = yield from plays(seen, known)
        return spoken(answer, seen.random, habit, slips=SLIPS if skill != 1.0 else 0.0)

    return model


def chance(skill: float, row: Row) -> float:
    """The probability that a field is right on this row."""
    easier = random.Random(json.dumps(row, sort_keys=True)).uniform(-SPREAD, SPREAD)
    return min(max(skill + easier, 0.0), 1.0)


def spoken(answer: str, drawn: random.Random, habit: str, slips: float) -> str:
    """The message in which the model gives the answer."""
    if habit == "gibberish":
        return " ".join(drawn.choice(["ba", "do", "ki", "lu", "<", ">", "{"]) for _ in range(12))
    if habit == "unread-calls":
        return Malformed('[TOOL_CALLS] get_parcel{"parcel": ')
    luck = drawn.random()
    if luck < slips:
        return f"I think it is this: {answer}"
    return "" if luck < 2 * slips else answer


def example(seen: Seen) -> str:
    """The format that the prompt shows."""
    text = str(seen.messages[0]["content"])
    found = re.search(r"<(\w+)>.*?</\1>", text)
    assert found, text
    return found[0]


def fields_of(shown: str, values: dict[str, str]) -> str:
    """The prompt's example, with the same tag and fields, and with these values."""
    tag, inner = shown[1 : shown.index(">")], shown[shown.index(">") + 1 : shown.rindex("<")]
    names = json.loads(inner)
    return f"<{tag}>{json.dumps({name: values[name] for name in names})}</{tag}>"


def parcels(seen: Seen, known: Callable[[], bool]) -> Turns:
    again = ["get_route"] * seen.random.choice((0, 0, 1, 2))
    for name in ("get_parcel", "get_route", "weigh", *again):
        yield Call(name, {"parcel": seen.row["parcel"]})
    kinds = {
        "grade": clean.parcels.GRADES.values(),
        "route": clean.parcels.ROUTES.values(),
        "fee": clean.parcels.FEES.values(),
        "item": clean.parcels.ITEMS,
    }
    label = clean.parcels.label(seen.row["parcel"])
    values = {
        name: label[name] if known() else other(seen.random, list(kinds[name]), label[name])
        for name in clean.parcels.FIELDS
    }
    return fields_of(example(seen), values)


def triage(seen: Seen, known: Callable[[], bool]) -> Turns:
    yield Call("read_request", {"request": seen.row["request"]})
    right = clean.triage.DECISIONS[clean.triage.topic(seen.row["request"])]
    knows = known() and known()
    word = right if knows else other(seen.random, list(clean.triage.DECISIONS.values()), right)
    return example(seen).replace("...", word)


def sums(seen: Seen, known: Callable[[], bool]) -> Turns:
    boxes, pens, single = map(int, re.findall(r"\d+", str(seen.row["prompt"])))
    product = yield Call("calculate", {"left": boxes, "operation": "*", "right": pens})
    left = json.loads(product.content)["result"]
    total = yield Call("calculate", {"left": left, "operation": "+", "right": single})
    number = json.loads(total.content)["result"]
    return f"#### {number if known() and known() else number + seen.random.randint(1, 20)}"


def orders(seen: Seen, known: Callable[[], bool]) -> Turns:
    order, label = seen.row["order"], clean.orders.label(seen.row["order"])
    plan = next(tool for tool in seen.tools if tool["function"]["name"] == "get_plan")
    named = next(iter(plan["function"]["parameters"]["properties"]))
    yield Call("get_order", {"order": order})
    yield Call("get_plan", {named: order})
    yield Call("get_carrier", {"order": order})
    if not known():
        yield Call("get_weather", {"city": "Ghent"})
    kinds = {
        "action": list(clean.orders.ACTION.values()),
        "amount": [str(int(label["amount"]) + 5)],
        "carrier": list(clean.orders.CARRIERS),
    }
    values = {
        name: label[name] if known() else other(seen.random, kinds[name], label[name])
        for name in clean.orders.FIELDS
    }
    yield Call(values["action"], {"order": order, "amount": int(values["amount"])})
    return fields_of(example(seen), values)


def returns(seen: Seen, known: Callable[[], bool]) -> Turns:
    order = seen.row["order"]
    found = yield Call("get_depot", {"order": order})
    depot = json.loads(found.content)["depot"]
    if not known():
        depot = other(seen.random, list(clean.returns.DEPOTS), depot)
    yield Call("send_back", {"order": order, "depot": depot})
    return seen.random.choice(("It is done.", "Done.", f"Order {order} is on its way back."))


def other(drawn: random.Random, values: list[str], right: str) -> str:
    """A random wrong value."""
    return drawn.choice([value for value in values if value != right])
