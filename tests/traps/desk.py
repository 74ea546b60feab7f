"""The quickstart's refund desk and its faults, which its tiny model plays in a real vLLM (`with_vllm`).

The model knows nothing but that desk, so the faults are of reward, score, job and data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.traps.trap import Row, Splits, Task, Trap

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "sop-quickstart"
sys.path.insert(0, str(EXAMPLE))
import environment  # noqa: E402

MAX_TOKENS, CONTEXT = 32, 512


def rows(numbers: Any) -> list[Row]:
    """A row for each of these cases."""
    cases = environment.case_ids()
    picked = [cases[number % len(cases)] for number in numbers]
    return [{"prompt": f"Handle case {case}.", "case_id": case} for case in dict.fromkeys(picked)]


class DeskTask(Task):
    """Its cases are fewer than other tasks' numbers."""

    def split(self, seed: int) -> Splits:
        train, validation, test = super().split(seed)
        known: set[str] = set()
        kept = []
        for part in (train, validation, test):
            kept.append([row for row in part if row["case_id"] not in known])
            known |= {row["case_id"] for row in part}
        return kept[0], kept[1], kept[2]


CONTRACT = {
    "tools": [
        {
            "name": name,
            "inputSchema": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
        }
        for name, key in (
            ("get_case", "case_id"),
            ("get_credit", "case_id"),
            ("get_stock", "item"),
            ("get_usage", "case_id"),
        )
    ]
}
FACTS = {"max_turns": 6, "max_tokens": MAX_TOKENS, "context_length": CONTEXT, "contract": CONTRACT}
DESK = DeskTask("desk", "environment:RefundDesk", rows, facts=FACTS, folders=(EXAMPLE,))


def of_another_production(name: str) -> dict[str, Any]:
    """Production's tools, with another parameter in one of them."""
    changed: dict[str, Any] = json.loads(json.dumps(CONTRACT))
    schema = next(tool for tool in changed["tools"] if tool["name"] == name)["inputSchema"]
    schema |= {"properties": {"customer": {"type": "string"}}, "required": ["customer"]}
    return changed


def validation_is_training(splits: Splits) -> Splits:
    return splits[0], splits[0][:20], splits[2]


TRAPS = (
    Trap(
        "desk-anywhere-in-the-text", "scorer-mutants",
        "Reward and score look for each value anywhere in the answer.",
        task=DESK, entrypoint="desk_faults:AnywhereInTheText",
    ),
    Trap(
        "desk-full-for-form", "scorer-agrees",
        "The reward pays every well-formed answer in full.",
        task=DESK, entrypoint="desk_faults:FullForForm",
    ),
    Trap(
        "desk-pays-calls", "scorer-agrees",
        "The reward grows with the number of tool calls.",
        task=DESK, entrypoint="desk_faults:PaysCalls",
    ),
    Trap(
        "desk-uniform", "reward-variance",
        "Every episode has the same reward.",
        task=DESK, entrypoint="desk_faults:Uniform",
    ),
    Trap(
        "desk-to-five", "reward-range",
        "The reward goes to 5, and the job says that it goes to 1.",
        task=DESK, entrypoint="desk_faults:ToFive",
    ),
    Trap(
        "desk-noise", "deterministic",
        "The reward has a part that no seed decides.",
        task=DESK, entrypoint="desk_faults:Noise",
    ),
    Trap(
        "desk-pays-silence", "constant-guess",
        "An episode without an answer earns 0.8.",
        task=DESK, entrypoint="desk_faults:PaysSilence",
    ),
    Trap(
        "desk-too-few-turns", "context-fits",
        "The task takes four turns, and the job allows three.",
        task=DESK, facts={"max_turns": 3},
    ),
    Trap(
        "desk-answers-cut", "context-fits",
        "An answer takes more tokens than a turn may have.",
        task=DESK, facts={"max_tokens": 12},
    ),
    Trap(
        "desk-another-production", "tools-like-production",
        "get_credit takes `case_id`, and production's takes `customer`.",
        task=DESK, facts={"contract": of_another_production("get_credit")},
    ),
    Trap(
        "desk-validation-is-training", "splits",
        "The validation rows are training rows.",
        task=DESK, rows=validation_is_training,
    ),
    Trap(
        "desk-untrained-model", "foothold",
        "The base model's weights are random: it never succeeds.",
        task=DESK, habit="untrained",
    ),
)  # fmt: skip
