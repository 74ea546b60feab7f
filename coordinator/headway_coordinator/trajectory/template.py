"""Renders a conversation as text with the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, Final, Literal

from headway_api.chat_template import TODAY, object_arguments
from headway_coordinator.trajectory.call_ids import SHORT, as_written, is_numbered, is_short
from headway_coordinator.trajectory.calls import Message, Tool

LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True)
class CallFormat:
    """The form in which a chat template takes tool calls, their results and reasoning."""

    text: bool = False
    """Whether arguments are a string with JSON, instead of an object."""
    ids: Literal["given", "short", "numbered"] = "given"
    """The form of call ids: as given; nine letters or digits (Mistral); or functions.NAME:COUNT (Kimi). An id
    that the model wrote in this form is kept."""
    named: bool = False
    """Whether a tool's result also has the tool's name."""
    null: bool = False
    """Whether a turn with only calls has null as its content, instead of an empty string."""
    reasoning: Literal["field", "thinking", "part"] = "field"
    """The field for reasoning: `reasoning_content`, `thinking` (LFM2.5), or a part of `content` (Mistral)."""

    def __call__(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation in this form."""
        found = [_with_arguments(message, text=self.text) for message in messages]
        if self.reasoning != "field":
            found = [_with_reasoning(message, self.reasoning) for message in found]
        if self.null:
            found = [_without_blank(message) for message in found]
        plain = self.ids == "given" and not self.named and not any(map(_has_own_ids, found))
        return found if plain else _renamed(found, self)


BLANKS: Final = ([{"type": "text", "text": ""}], " ")
"""Contents of a turn without text, for templates that refuse an empty string. The first adds no token."""
PLAIN: Final = CallFormat()
CALL_FORMATS: Final = (
    CallFormat(reasoning="thinking"),
    CallFormat(ids="short", reasoning="part"),
    PLAIN,
    CallFormat(text=True),
    CallFormat(text=True, null=True),
    CallFormat(null=True),
    CallFormat(ids="short"),
    CallFormat(ids="short", text=True),
    CallFormat(ids="numbered", named=True),
    CallFormat(named=True),
)
"""All forms, in the order in which they are tried."""


def inlined(reasoning: str, content: str) -> str:
    """A turn as one text that includes its reasoning, as a client keeps it that does not separate them."""
    return f"<think>\n{reasoning}\n</think>\n\n{content}"


def own_template(tokenizer: Any) -> str:
    """The model's own chat template, or all of them as JSON if the model has several with names."""
    found = tokenizer.chat_template
    return found if isinstance(found, str) else json.dumps(found, sort_keys=True)


def template_text(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    generate: bool,
    call_format: CallFormat = PLAIN,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """A conversation rendered by the model's own chat template with `variables`.

    Models sample turns without text. Where the template refuses these, as Mistral's does, one of `BLANKS` is
    their content.
    """

    def rendered(given: list[Message]) -> str:
        return str(
            tokenizer.apply_chat_template(
                given,
                tools=list(tools) or None,
                add_generation_prompt=generate,
                tokenize=False,
                strftime_now=TODAY.strftime,
                **(variables or {}),
            )
        )

    given = call_format(messages)
    try:
        return rendered(given)
    except Exception:  # a template raises whatever its author chose
        if not any(map(_is_blank, given)):
            raise
        for blank in BLANKS:
            with suppress(Exception):
                return rendered([one | {"content": blank} if _is_blank(one) else one for one in given])
        raise


def decoded(tokenizer: Any, ids: list[int]) -> str:
    """Ids as text, including special tokens, without clean-up."""
    kind: Any = type(tokenizer)
    if _decodes_by_backend(kind):  # `decode` of transformers is slower, because it first checks every id
        return str(tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False))
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@cache
def _decodes_by_backend(kind: Any) -> bool:
    """Whether a tokenizer class decodes with its backend alone, and overrides no method for decoding."""
    from transformers import PreTrainedTokenizerFast as Fast

    return issubclass(kind, Fast) and (kind.decode, kind._decode) == (Fast.decode, Fast._decode)


def _with_arguments(message: Message, *, text: bool) -> Message:
    """The message with arguments as text or as objects.

    Most templates write an object as JSON, but would quote a string, so they receive objects. Other templates
    append the arguments to a text, so they receive text.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    function = _text_arguments if text else object_arguments
    return {**message, "tool_calls": [{**call, "function": function(call["function"])} for call in calls]}


def _without_blank(message: Message) -> Message:
    return (
        message | {"content": None} if message.get("tool_calls") and not message.get("content") else message
    )


def _is_blank(message: Message) -> bool:
    """Whether this is a turn without text and calls, such as one whose only token ended it."""
    return message.get("role") == "assistant" and not message.get("content") and not message.get("tool_calls")


def _with_reasoning(message: Message, place: Literal["thinking", "part"]) -> Message:
    """The message with its reasoning in the field that the template reads."""
    reasoning = message.get("reasoning_content")
    if message.get("role") != "assistant" or not reasoning:
        return message
    if place == "thinking":
        return message | {"thinking": reasoning}
    parts = [{"type": "thinking", "thinking": reasoning}]
    if content := message.get("content"):
        parts.append({"type": "text", "text": content})
    return message | {"content": parts}


def _text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**function, "arguments": text}


def _renamed(messages: list[Message], call_format: CallFormat) -> list[Message]:
    """The messages with call ids in the template's form. A call and its result have the same id."""
    known: dict[str, tuple[str, str]] = {}
    count = 0
    found = []
    for message in messages:
        if calls := message.get("tool_calls"):
            given = []
            for call in calls:
                name = call["function"]["name"]
                new = _id(str(call.get("id", "")), name, count, call_format)
                known[str(call.get("id", ""))] = (new, name)
                given.append({**call, "id": new})
                count += 1
            message = {**message, "tool_calls": given}
        elif message.get("role") == "tool":
            old = str(message.get("tool_call_id", ""))
            new, name = known.get(old, (_id(old, message.get("name") or "", count, call_format), ""))
            message = {**message, "tool_call_id": new}
            if call_format.named and name:
                message.setdefault("name", name)
        found.append(message)
    return found


def _has_own_ids(message: Message) -> bool:
    return any("functions." in str(call.get("id", "")) for call in message.get("tool_calls") or ())


def _id(given: str, name: str, count: int, call_format: CallFormat) -> str:
    own = as_written(given)
    if call_format.ids == "given" or (is_short(own) if call_format.ids == "short" else is_numbered(own)):
        return own
    if call_format.ids == "numbered":
        return f"functions.{name}:{count}"
    number, letters = int.from_bytes(sha256(given.encode()).digest()[:8]), ""
    for _ in range(SHORT):
        number, place = divmod(number, len(LETTERS))
        letters += LETTERS[place]
    return letters
