"""Messages to token ids, and sampled ids back to a message.

Two ways, one contract. A *typed* renderer (PyPI `renderers`) knows a model family's template by heart; it is
taken only where it says what the model's own chat template says for a set of probe
conversations. Otherwise the model's chat template itself is rendered, and extended by the text it adds.

`extend` never re-tokenizes what the model sampled: the ids it returns begin with exactly the ids given, or
it returns None, and the caller renders afresh and forks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from headway_api.exits import JobError
from headway_rollout.trajectory.calls import Message, Parsed, Tool, read

FAMILIES: dict[str, tuple[str, ...]] = {
    "qwen2": ("qwen3",),
    "qwen3": ("qwen3",),
    "qwen3_moe": ("qwen3",),
    "qwen3_5": ("qwen3.5", "qwen3.6"),
    "qwen3_5_moe": ("qwen3.5", "qwen3.6"),
    "llama": ("llama-3",),
    "glm4_moe": ("glm-4.5",),
    "gpt_oss": ("gpt-oss",),
    "deepseek_v3": ("deepseek-v3", "deepseek-r1", "kimi-k2"),
    "minimax_m2": ("minimax-m2",),
}
"""`model_type` -> renderers that may fit it; the first that agrees with its chat template is taken."""

HERMES = "qwen3"
"""The renderer, and the parser, of JSON between <tool_call> tags."""

PROBE_TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a thing up.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string", "description": "Name of the thing"}},
                "required": ["key"],
            },
        },
    }
]
PROBES: list[list[Message]] = [
    [{"role": "user", "content": "What is 2 + 2?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look up brave-otter.\nThen stop."},
    ],
]
_PROBE_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c0", "type": "function", "function": {"name": "look_up", "arguments": {"key": "brave-otter"}}}
    ],
}
_PROBE_RESULT: Message = {
    "role": "tool",
    "tool_call_id": "c0",
    "name": "look_up",
    "content": '{"tier": "gold"}',
}


class Renderer(Protocol):
    """Messages <-> token ids for one model."""

    name: str
    stop_token_ids: list[int]

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Ids of the whole conversation, up to where the model begins its next turn."""

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        """Ids of `history` + `new`, beginning with `prompt` + `sampled`, where that can be had.

        `history` ends with the assistant message that was parsed from `sampled`.
        """

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """Read a sampled turn."""


class Typed:
    """A renderer of the `renderers` package."""

    def __init__(self, name: str, tokenizer: Any, inner: Any) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._inner = inner
        self.stop_token_ids = list(inner.get_stop_token_ids())

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return list(
            self._inner.render_ids(list(messages), tools=list(tools) or None, add_generation_prompt=True)
        )

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        rendered = self._inner.bridge_to_next_turn(
            list(prompt), list(sampled), list(new), tools=list(tools) or None
        )
        return None if rendered is None else _kept([*prompt, *sampled], list(rendered.token_ids))

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        return read(self._inner, self._tokenizer, sampled, prompt, tools)


class Template:
    """The model's own chat template, extended by the text it adds after an assistant's turn.

    The template must be prefix-stable for that: the text of a conversation must begin with the text of its
    beginning. It is checked at every extension; where it does not hold, the episode forks.
    """

    def __init__(self, tokenizer: Any, inner: Any) -> None:
        self.name = "chat-template"
        self._tokenizer = tokenizer
        self._inner = inner
        self.stop_token_ids = list(inner.get_stop_token_ids())

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return self._ids(self._text(messages, tools, generate=True))

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        if not sampled or sampled[-1] not in self.stop_token_ids:
            return None
        before = self._text(history, tools, generate=False)
        after = self._text([*history, *new], tools, generate=True)
        stop = self._tokenizer.decode([sampled[-1]], skip_special_tokens=False)
        if not after.startswith(before) or stop not in before:
            return None
        closing = before.rpartition(stop)[2]
        return [*prompt, *sampled, *self._ids(closing + after[len(before) :])]

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        return read(self._inner, self._tokenizer, sampled, prompt, tools)

    def _text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        return template_text(self._tokenizer, messages, tools, generate=generate)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def template_text(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool
) -> str:
    """A conversation by the model's own chat template, call arguments given as objects."""
    return str(
        tokenizer.apply_chat_template(
            [_with_object_arguments(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=generate,
            tokenize=False,
        )
    )


def load(folder: Path, tool_call_parser: str = "auto") -> tuple[Renderer, Any]:
    """Renderer and tokenizer of the model in `folder`.

    Raises:
        JobError: `TokenizerUnusable`, `ChatTemplateMissing` or `ToolCallParserUnusable`, naming what is
            missing.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever transformers raises, the remedy is the same
        raise JobError(
            "TokenizerUnusable",
            f"the tokenizer of the base model cannot be loaded: {error}; add tokenizer.json and "
            "tokenizer_config.json beside the weights",
            field="spec.model.base",
        ) from error
    if not tokenizer.chat_template:
        raise JobError(
            "ChatTemplateMissing",
            "the base model has no chat template; add chat_template.jinja beside its tokenizer, or use an "
            "instruction-tuned model",
            field="spec.model.base",
        )
    return choose(tokenizer, model_type(folder), tool_call_parser), tokenizer


def model_type(folder: Path) -> str:
    """`model_type` of the model's config.json; empty where it does not say."""
    path = folder / "config.json"
    return str(json.loads(path.read_text()).get("model_type", "")) if path.exists() else ""


def choose(tokenizer: Any, family: str, tool_call_parser: str = "auto") -> Renderer:
    """The renderer of a model's family where it agrees with the model's chat template, else the template.

    `hermes` is a wish for how calls are read: a renderer that reads them otherwise is passed over.

    Raises:
        JobError: `ToolCallParserUnusable`, where `hermes` could never find a call.
    """
    from renderers import DefaultRendererConfig, config_from_name, create_renderer

    has_tags = tokenizer.convert_tokens_to_ids("<tool_call>") not in (None, tokenizer.unk_token_id)
    hermes = tool_call_parser == "hermes"
    if hermes and not has_tags:
        raise JobError(
            "ToolCallParserUnusable",
            "hermes finds a call by the token <tool_call>, which the base model's tokenizer lacks; use auto, "
            "or a model that was trained with it",
            field="spec.agent.builtin.toolCallParser",
        )
    for name in FAMILIES.get(family, ()):
        if hermes and name != HERMES:
            continue
        try:
            typed = Typed(name, tokenizer, create_renderer(tokenizer, config_from_name(name)))
            if agrees(typed, tokenizer):
                return typed
        except (AssertionError, ValueError, KeyError):
            continue  # the tokenizer lacks the family's special tokens: its template decides
    parser = HERMES if has_tags else None
    return Template(tokenizer, create_renderer(tokenizer, DefaultRendererConfig(tool_parser=parser)))


def agrees(typed: Typed, tokenizer: Any) -> bool:
    """Whether a typed renderer says what the model's own template says, first prompts and tool turns.

    Texts are compared, not ids: a renderer encodes a turn piece by piece, and a tokenizer that would merge
    across two pieces gives other ids for the same text.
    """
    for probe in PROBES:
        for tools in ([], PROBE_TOOLS):
            conversation = [*probe, _PROBE_CALL, _PROBE_RESULT] if tools else probe
            for messages in (probe, conversation):
                text = template_text(tokenizer, messages, tools, generate=True)
                if _decoded(tokenizer, typed.render(messages, tools)) != text:
                    return False
    return True


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _kept(prefix: list[int], extended: list[int]) -> list[int] | None:
    return extended if extended[: len(prefix)] == prefix else None


def _with_object_arguments(message: Message) -> Message:
    """Templates write an object as JSON, and a string in quotes: give them objects."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {
        **message,
        "tool_calls": [{**call, "function": _object_arguments(call["function"])} for call in calls],
    }


def _object_arguments(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
