"""Turns from models' own templates and from other engines' tests, each with its right reading.

They come from the package `canitoolcall` (requirements/guests/templates.in). Each has the text and the tools.
It also has the calls in the text, or says that the text has no call that may be carried out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from real_templates import REAL, Real, file, tokenizer

from headway_coordinator.trajectory.calls import Parsed
from headway_coordinator.trajectory.render import Renderer, choose

READ_BY: Final = {
    "deepseek-ai/DeepSeek-V3-0324": "DeepSeek V3",
    "deepseek-ai/DeepSeek-V3.1": "DeepSeek V3.1",
    "deepseek-ai/DeepSeek-V3.2": "DeepSeek V3.2",
    "google/gemma-4-31B-it": "Gemma-4-31B",
    "zai-org/GLM-4.5": "GLM-4.5",
    "zai-org/GLM-4.7": "GLM-4.7-Flash",
    "openai/gpt-oss-20b": "gpt-oss",
    "moonshotai/Kimi-K2-Instruct-0905": "Kimi K2",
    "moonshotai/Kimi-K2.6": "Kimi K2.5",
    "meta-llama/Llama-3.3-70B-Instruct": "Llama 3.3",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "Llama 4",
    "mistralai/Devstral-Small-2507": "Devstral Small 2507",
    "mistralai/Magistral-Small-2509": "Ministral 3 Reasoning",
    "mistralai/Ministral-3-14B-Instruct-2512": "Ministral 3 Reasoning",
    "mistralai/Ministral-3-14B-Reasoning-2512": "Ministral 3 Reasoning",
    "mistralai/Mistral-7B-Instruct-v0.3": "Mistral Nemo",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "Mistral Small 3.2",
    "Qwen/Qwen3-0.6B": "Qwen3",
    "Qwen/Qwen3-4B-Instruct-2507": "Qwen3 Instruct 2507",
    "Qwen/Qwen3-4B-Thinking-2507": "Qwen3",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen3-Coder",
    "Qwen/Qwen3-Coder-Next": "Qwen3-Coder",
    "Qwen/Qwen3.5-9B": "Qwen3.5 of 4B and more",
    "Qwen/Qwen3.8-27B": "Qwen3.8",
}
"""Maps the model of a turn to the template in `REAL` that reads it. Turns of other models are left out."""


@dataclass(frozen=True, eq=False)
class Turn:
    """One turn, and its right reading."""

    name: str
    model: str
    text: str
    prompt: str
    """The end of the text that comes before the turn."""
    tools: list[dict[str, Any]]
    calls: list[tuple[str, dict[str, Any]]] | None
    """The calls in the turn; None if it has none that may be carried out."""
    reasoning: str


@cache
def turns() -> tuple[Turn, ...]:
    """Return every turn of the models in `READ_BY`."""
    return tuple(_turns())


def _turns() -> Iterator[Turn]:
    for path in sorted(file("canitoolcall/_data/fixtures").glob("*/*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["models"][0] in READ_BY:
                yield _turn(record)


def _turn(record: dict[str, Any]) -> Turn:
    expected = record.get("expected")
    calls = None
    if expected is not None:
        calls = [(one["name"], one["arguments"]) for one in expected["tool_calls"]]
    return Turn(
        record["id"],
        record["models"][0],
        record["raw_output"]
        + (_harmony_end(record["raw_output"]) if calls and record["family"] == "gpt-oss" else ""),
        record.get("generation_prompt") or "",
        record["tools"],
        calls,
        ((expected or {}).get("reasoning_content") or "").strip(),
    )


def _harmony_end(text: str) -> str:
    """Return the last token of a Harmony turn, which the package leaves out."""
    return "<|call|>" if "to=" in text.rpartition("<|start|>")[2] else "<|return|>"


@cache
def _reader(name: str) -> tuple[Renderer, Any]:
    real: Real = next(one for one in REAL if one.models == name)
    found = tokenizer(real)
    return choose(found, real.model_type), found


def read(turn: Turn) -> Parsed:
    """Return a turn as the gateway reads it."""
    renderer, found = _reader(READ_BY[turn.model])
    prompt, sampled = (found.encode(text, add_special_tokens=False) for text in (turn.prompt, turn.text))
    return renderer.parse(sampled, prompt, turn.tools)


@cache
def judged(turn: Turn) -> Literal["right", "counted", "wrong"]:
    """Return how the gateway reads a turn: right, or wrong.

    A turn is "counted" if it counts as malformed, and no wrong call is carried out.
    """
    found = read(turn)
    calls = [(one.name, one.arguments) for one in found.calls if one.problem is None]
    expected = turn.calls or []
    if calls == expected and (len(found.calls) == len(calls) or turn.calls is None):
        return "right"
    if len(found.calls) > len(calls) and all(call in expected for call in calls):
        return "counted"
    return "wrong"
