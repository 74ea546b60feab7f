"""A refund desk that follows a standard operating procedure: four turns, three tools, one strict answer.

The desk's records are pure functions of their keys, so an episode is the same wherever it runs. This module
uses only the standard library, because a fresh pod imports it for every episode.
"""

from __future__ import annotations

import json
from hashlib import blake2b

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from headway_sandbox.environment import Transcript

ADJECTIVES = (
    "amber", "bold", "brisk", "calm", "clever", "coral", "crisp", "dapper", "dusty", "eager", "fabled",
    "fair", "fleet", "gentle", "glad", "golden", "grand", "hazel", "humble", "ivory", "jolly", "keen",
    "kind", "lively", "lucky", "mellow", "merry", "misty", "noble", "pale", "plucky", "proud", "quiet",
    "rapid", "royal", "rustic", "silent", "sunny", "tidy", "witty",
)  # fmt: skip
ANIMALS = (
    "badger", "beaver", "bison", "camel", "cobra", "crane", "dingo", "eagle", "falcon", "ferret",
    "finch", "gecko", "gibbon", "heron", "hyena", "ibex", "jackal", "koala", "lemur", "lion", "llama",
    "lynx", "marten", "moose", "newt", "ocelot", "otter", "owl", "panda", "parrot", "puffin", "quail",
    "rabbit", "raven", "salmon", "shrew", "stork", "tapir", "walrus", "zebra",
)  # fmt: skip
TIERS = ("gold", "staff", "silver", "bronze")
REASONS = ("damaged", "late", "wrong", "regret")
ITEMS = ("lamp", "kettle", "radio", "mirror", "drill", "tent", "globe", "piano")
CREDITS = ("good", "poor")
STOCKS = ("full", "empty")
USAGES = ("new", "light", "worn", "heavy")

LOOKUP = {"gold": "get_credit", "staff": "get_credit", "silver": "get_stock", "bronze": "get_stock"}
DECISION = {"good": "refund", "poor": "exchange", "full": "replace", "empty": "voucher"}
AMOUNT = {"new": "all", "light": "most", "worn": "half", "heavy": "none"}
METHOD = {"damaged": "courier", "late": "locker", "wrong": "depot", "regret": "post"}
FIELDS = ("decision", "amount", "method", "approval", "item")
APPROVAL = {"gold": "desk", "staff": "lead", "silver": "auto", "bronze": "clerk"}


def rule(mapping: Mapping[str, str]) -> str:
    """A mapping as text for the procedure."""
    return ", ".join(f"{key}: {value}" for key, value in mapping.items())


PROCEDURE = f"""Refund desk procedure.
1. get_case.
2. Tier gold or staff: get_credit. Tier silver or bronze: get_stock of the item.
3. get_usage.
4. Answer {{"decision", "amount", "method", "approval", "item"}} as JSON in <final_output> tags.
decision by credit or stock ({rule(DECISION)}).
amount by usage ({rule(AMOUNT)}).
method by reason ({rule(METHOD)}).
approval by tier ({rule(APPROVAL)})."""


def case_ids() -> list[str]:
    """The ids of all cases."""
    return [f"{adjective}-{animal}" for adjective in ADJECTIVES for animal in ANIMALS]


def pick(values: Sequence[str], *key: str) -> str:
    """A value chosen by `key`, the same on every machine."""
    digest = blake2b("/".join(key).encode(), digest_size=4).digest()
    return values[int.from_bytes(digest, "big") % len(values)]


def case_record(case_id: str) -> dict[str, str]:
    """The answer of the tool get_case."""
    return {
        "tier": pick(TIERS, "tier", case_id),
        "reason": pick(REASONS, "reason", case_id),
        "item": pick(ITEMS, "item", case_id),
    }


def expected_calls(case_id: str) -> list[tuple[str, str]]:
    """The calls that the procedure prescribes, as pairs of tool and key."""
    record = case_record(case_id)
    lookup = LOOKUP[record["tier"]]
    key = case_id if lookup == "get_credit" else record["item"]
    return [("get_case", case_id), (lookup, key), ("get_usage", case_id)]


def expected_answer(case_id: str) -> dict[str, str]:
    """The answer that the procedure prescribes."""
    record = case_record(case_id)
    if LOOKUP[record["tier"]] == "get_credit":
        standing = pick(CREDITS, "credit", case_id)
    else:
        standing = pick(STOCKS, "stock", record["item"])
    return {
        "decision": DECISION[standing],
        "amount": AMOUNT[pick(USAGES, "usage", case_id)],
        "method": METHOD[record["reason"]],
        "approval": APPROVAL[record["tier"]],
        "item": record["item"],
    }


def parse_answer(text: str) -> dict[str, str] | None:
    """The answer's fields; None unless the text is one tag pair around one object with exactly `FIELDS`.

    The parser accepts nothing around the tags, no other tag, and no field twice. Under training, a model soon
    writes everything that a lenient parser accepts.
    """
    start, end = "<final_output>", "</final_output>"
    if not (text.startswith(start) and text.endswith(end)):
        return None
    try:
        pairs = json.loads(text[len(start) : -len(end)], object_pairs_hook=list)
    except ValueError:
        return None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        return None
    if sorted(key for key, _ in pairs) != sorted(FIELDS) or not all(isinstance(v, str) for _, v in pairs):
        return None
    return dict(pairs)


class RefundDesk(Environment):
    """One case of the refund desk."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        if config:
            raise ValueError(f"spec.environment.config: remove {sorted(config)}, the desk has no settings")

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.case_id = str(row["case_id"])
        return Observation([system(PROCEDURE), user(row["prompt"])])

    @tool
    def get_case(self, case_id: str) -> dict[str, str]:
        """Tier, reason and item."""
        self._must_exist(case_id)
        return case_record(case_id)

    @tool
    def get_credit(self, case_id: str) -> dict[str, str]:
        """Credit standing."""
        self._must_exist(case_id)
        return {"credit": pick(CREDITS, "credit", case_id)}

    @tool
    def get_stock(self, item: str) -> dict[str, str]:
        """Stock of an item."""
        if item not in ITEMS:
            raise ToolError("no such item")
        return {"stock": pick(STOCKS, "stock", item)}

    @tool
    def get_usage(self, case_id: str) -> dict[str, str]:
        """How used it is."""
        self._must_exist(case_id)
        return {"usage": pick(USAGES, "usage", case_id)}

    def _must_exist(self, case_id: str) -> None:
        if case_id not in case_ids():
            raise ToolError("no such case")

    def _followed(self, transcript: Transcript) -> bool:
        calls = [(call.name, *call.arguments.values()) for call in transcript.calls]
        return calls == expected_calls(self.case_id)

    def reward(self, transcript: Transcript) -> Reward:
        """Half of the share of correct parts (the fields and the procedure), plus 0.5 if all are correct.

        With the share alone, training is slow: most parts are correct from the start, so rewards in a group
        differ little. With the second half alone, a group without a success gives no signal.
        """
        answer = parse_answer(transcript.answer)
        expected = expected_answer(self.case_id)
        right = sum(answer[name] == expected[name] for name in FIELDS) if answer is not None else 0
        followed = self._followed(transcript)
        share = (right + followed) / (len(FIELDS) + 1) if answer is not None else 0.0
        metrics = {
            "well_formed": float(answer is not None),
            "fields": right / len(FIELDS),
            "procedure": float(followed),
        }
        return Reward((share + float(share == 1.0)) / 2, metrics)

    def score(self, transcript: Transcript) -> float:
        """1 if the answer is exactly right and the tool calls followed the procedure, else 0."""
        right = parse_answer(transcript.answer) == expected_answer(self.case_id)
        return float(right and self._followed(transcript))
