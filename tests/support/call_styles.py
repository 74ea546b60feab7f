"""Styles of tool calls, by a family's renderer or the model's own template, with turns written in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from toy_tokenizer import QWEN3_TEMPLATE, gpt_oss_tokenizer, llama_tokenizer, tokenizer

from headway_coordinator.trajectory.harmony import HarmonyRenderer
from headway_coordinator.trajectory.render import Renderer, Template, Typed, choose

JSON = '{"key": "brave-otter"}'


@dataclass(frozen=True)
class Style:
    """A style of writing tool calls, with turns written in it."""

    tokenizer: Callable[[], Any]
    family: str
    kind: type
    call: str
    """A turn that calls look_up."""
    answer: str
    """A turn that says "Gold."."""
    stops: tuple[str, ...]
    malformed: tuple[str, ...]
    """Turns that attempt one call that cannot be carried out."""
    forced: tuple[str, str]
    """How a turn continues whose beginning was forced: a call of any tool, and a call of look_up."""


def qwen() -> Any:
    return tokenizer(Path(mkdtemp()), QWEN3_TEMPLATE)


def other() -> Any:
    return tokenizer(Path(mkdtemp()))


HERMES = {
    "call": f'<tool_call>\n{{"name": "look_up", "arguments": {JSON}}}\n</tool_call><|im_end|>',
    "answer": "Gold.<|im_end|>",
    "stops": ("<|im_end|>",),
    "malformed": (
        "<tool_call>{nonsense}</tool_call><|im_end|>",
        '<tool_call>{"arguments": {}}</tool_call><|im_end|>',
        '<tool_call>\n{"name": "look_up", "argum',
        '<tool_call>["look_up"]</tool_call><|im_end|>',
    ),
    "forced": (
        f'look_up", "arguments": {JSON}}}\n</tool_call><|im_end|>',
        f" {JSON}}}\n</tool_call><|im_end|>",
    ),
}
LLAMA = {
    "call": f'{{"name": "look_up", "parameters": {JSON}}}<|eot_id|>',
    "answer": "Gold.<|eot_id|>",
    "stops": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    "malformed": (
        '{"name": "look_up", "parameters": {"key": "brave-ot',
        '{"name": "look_up", "parameters": {nonsense}}<|eot_id|>',
        '{"name": "look_up", "parameters": "brave-otter"}<|eot_id|>',
        '{"name": "", "parameters": {}}<|eot_id|>',
        '{"name": 7, "parameters": {}}<|eot_id|>',
        '{"type": "function", "name": look_up}<|eot_id|>',
        '<|python_tag|>look_up.call(key="brave-otter")<|eom_id|>',
        # This family allows at most one call a turn.
        f'{{"name": "look_up", "parameters": {JSON}}}; {{"name": "look_up", "parameters": {JSON}}}<|eot_id|>',
        f'{{"name": "look_up", "parameters": {"[" * 5000}}}<|eot_id|>',
        f'{{"name": "look_up", "parameters": {"1" * 5000}}}<|eot_id|>',
    ),
    "forced": (f'look_up", "parameters": {JSON}}}<|eot_id|>', f" {JSON}}}<|eot_id|>"),
}
TO = "<|channel|>commentary to="
GPT_OSS = {
    "call": "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant"
    f"{TO}functions.look_up<|message|>{JSON}<|call|>",
    "answer": "<|channel|>final<|message|>Gold.<|return|>",
    "stops": ("<|return|>", "<|call|>"),
    "malformed": (
        f"{TO}functions.look_up <|constrain|>json<|message|>{{nonsense}}<|call|>",
        f'{TO}functions.look_up <|constrain|>json<|message|>{{"key": "brave-ot',
        f"{TO}functions.look_up <|constrain|>json<|message|>{JSON}",
        f'{TO}functions.look_up <|constrain|>json<|message|>"brave-otter"<|call|>',
        f"{TO}functions. <|constrain|>json<|message|>{JSON}<|call|>",
        f"{TO}look_up <|constrain|>json<|message|>{JSON}<|call|>",
        f"<|channel|>commentary<|message|>{JSON}<|call|>",
        f"{TO}functions.look_up <|constrain|>js",
        " to=functions.look_up<|call|>",
        f"{TO}functions.look_up<|message|>{'[' * 5000}<|call|>",
        f"{TO}functions.look_up<|message|>{'1' * 5000}<|call|>",
    ),
    "forced": (f"look_up <|constrain|>json<|message|>{JSON}<|call|>", f"{JSON}<|call|>"),
}
STYLES: dict[str, Style] = {
    "hermes": Style(qwen, "qwen3", Typed, **HERMES),
    "hermes, own template": Style(other, "qwen3", Template, **HERMES),
    "llama": Style(llama_tokenizer, "llama", Typed, **LLAMA),
    "llama, own template": Style(llama_tokenizer, "", Template, **LLAMA),
    "gpt-oss": Style(gpt_oss_tokenizer, "gpt_oss", HarmonyRenderer, **GPT_OSS),
    "gpt-oss, own template": Style(gpt_oss_tokenizer, "", Template, **GPT_OSS),
}


@cache
def made(name: str) -> tuple[Renderer, Any]:
    style = STYLES[name]
    tok = style.tokenizer()
    return choose(tok, style.family), tok


def ids(name: str, text: str) -> list[int]:
    return list(made(name)[1].encode(text, add_special_tokens=False))
