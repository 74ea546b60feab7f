"""A clean task: a parcel is inspected with three read-only tools, and the answer is four fields in a tag.

The records are pure functions of the parcel's id. The labels are in the rows, as in labelled data.
"""

from __future__ import annotations

import json
from hashlib import blake2b

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from headway_sandbox.environment import Transcript


GRADES = {"intact": "accept", "dented": "review", "open": "return", "wet": "destroy"}
ROUTES = {"north": "rail", "south": "road", "east": "sea", "west": "air"}
FEES = {"light": "low", "medium": "normal", "heavy": "high"}
ITEMS = ("lamp", "kettle", "radio", "mirror", "drill", "tent", "globe", "piano")
FIELDS = ("grade", "route", "fee", "item")
TAG = "final_output"


def pick(values: Iterable[str], *key: str) -> str:
    """One of the values, chosen by `key`, and the same on every machine."""
    digest = blake2b("/".join(key).encode(), digest_size=4).digest()
    return sorted(values)[int.from_bytes(digest, "big") % len(values)]


def record(parcel: str) -> dict[str, str]:
    """The facts of a parcel."""
    return {
        "state": pick(GRADES, "state", parcel),
        "region": pick(ROUTES, "region", parcel),
        "weight": pick(FEES, "weight", parcel),
        "item": pick(ITEMS, "item", parcel),
    }


def label(parcel: str) -> dict[str, str]:
    """The right answer."""
    known = record(parcel)
    return {
        "grade": GRADES[known["state"]],
        "route": ROUTES[known["region"]],
        "fee": FEES[known["weight"]],
        "item": known["item"],
    }


def rows(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each parcel number."""
    names = [f"P-{number:04d}" for number in numbers]
    return [{"prompt": f"Inspect parcel {name}.", "parcel": name, "expected": label(name)} for name in names]


def rule(mapping: Mapping[str, str]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in mapping.items())


def parse(text: str, tag: str = TAG, fields: Sequence[str] = FIELDS) -> dict[str, str] | None:
    """The fields of an answer, or None unless it is one pair of tags around one object with these fields."""
    start, end = f"<{tag}>", f"</{tag}>"
    if not (text.startswith(start) and text.endswith(end)):
        return None
    try:
        pairs = json.loads(text[len(start) : -len(end)], object_pairs_hook=list)
    except ValueError:
        return None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        return None
    if sorted(key for key, _ in pairs) != sorted(fields) or not all(isinstance(v, str) for _, v in pairs):
        return None
    return dict(pairs)


class Parcels(Environment):
    """The environment of one parcel."""

    EXAMPLE = '<final_output>{"grade": "...", "route": "...", "fee": "...", "item": "..."}</final_output>'

    def prompt(self) -> str:
        return f"""Inspect the parcel with the tools, then answer.
grade by state ({rule(GRADES)}).
route by region ({rule(ROUTES)}).
fee by weight ({rule(FEES)}).
item as it was scanned.
Answer with nothing but this: {self.EXAMPLE}"""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row, self.seed = row, seed
        return Observation([system(self.prompt()), user(row["prompt"])])

    def known(self, parcel: str) -> dict[str, str]:
        if parcel != self.row["parcel"]:
            raise ToolError("no such parcel")
        return record(parcel)

    @tool
    def get_parcel(self, parcel: str) -> dict[str, Any]:
        """State and item of a parcel."""
        known = self.known(parcel)
        return {"state": known["state"], "item": known["item"]}

    @tool
    def get_route(self, parcel: str) -> dict[str, Any]:
        """Region that a parcel goes to."""
        return {"region": self.known(parcel)["region"]}

    @tool
    def weigh(self, parcel: str) -> dict[str, Any]:
        """How heavy a parcel is."""
        return {"weight": self.known(parcel)["weight"]}

    def reward(self, transcript: Transcript) -> Reward:
        answer, expected = parse(transcript.answer), self.row["expected"]
        right = sum(answer[name] == expected[name] for name in FIELDS) if answer else 0
        share = right / len(FIELDS)
        value = (0.1 + 0.4 * share + 0.5 * (share == 1.0)) if answer else 0.0
        return Reward(value, {"completion": float(answer is not None), "field_acc": share})

    def score(self, transcript: Transcript) -> float:
        return float(parse(transcript.answer) == self.row["expected"])
