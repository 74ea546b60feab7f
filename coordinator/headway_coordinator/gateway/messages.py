"""Anthropic's Messages: reads a request's JSON as an `Ask`, as for a chat completion. Pure.

Blocks become their counterparts in OpenAI's form. A `tool_result` becomes a message with the role `tool`, a
`tool_use` a tool call, and a `thinking` block reasoning. `messages_answers.py` writes the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from headway_api import bounds
from headway_coordinator.gateway import formats, messages_answers
from headway_coordinator.gateway.asks import Ask, Completion, FieldNames
from headway_coordinator.gateway.blocks import LEAVE_OUT, Block, Unread, unread
from headway_coordinator.gateway.chat_messages import output
from headway_coordinator.gateway.fields import Model, Number, Stops, Tokens, stops
from headway_coordinator.gateway.formats import TextFormat
from headway_coordinator.gateway.named_events import named_event
from headway_coordinator.gateway.neutral import Table
from headway_coordinator.gateway.openai import MODEL
from headway_coordinator.gateway.refusals import GatewayError, bad
from headway_coordinator.gateway.slices import checked
from headway_coordinator.gateway.spellings import level
from headway_coordinator.gateway.tool_choices import force
from headway_coordinator.gateway.unapplied import (
    BUDGET,
    BUDGETS,
    MAX_TOKENS_HINT,
    POLICY,
    SCHEMAS,
    WHY,
    beside,
    listed,
    unapplied,
)
from headway_coordinator.trajectory.calls import Message, Tool


# `fail_fast` in every list: see chat_messages.py.
class _TextBlock(Block):
    UNREAD = Unread(listed={"citations": (None, [])}, inert=("cache_control",))

    type: Literal["text"]
    text: str


_Texts = Annotated[list[_TextBlock], Field(max_length=bounds.MESSAGES, fail_fast=True)]


class _ContentBlock(Block):
    """A block of a message. Its type decides which fields it must have."""

    UNREAD = Unread(
        listed={
            # Chat templates have no place for `is_error`: the model sees only the content.
            "is_error": (None, False),
            "citations": (None, []),
            "caller": (None, {"type": "direct"}),
            "toolset_name": (None,),
        },
        # `data` belongs to redacted thinking, which is refused by its type.
        inert=("cache_control", "signature", "data"),
        reads={
            "text": ("text",),
            "tool_use": ("id", "name", "input"),
            "tool_result": ("tool_use_id", "content"),
            "thinking": ("thinking",),
        },
    )

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | _Texts | None = None
    is_error: StrictBool | None = None
    thinking: str | None = None


class _Turn(Block):
    UNREAD = Unread(
        refused={"clear_at": (None, "never"), "output_config": (None, {})},
        why={
            "clear_at": "the model sees all messages; leave out what it need not see",
            "output_config": "write it into the request's own output_config",
        },
    )

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[_ContentBlock], Field(max_length=bounds.MESSAGES, fail_fast=True)]


class _Custom(Block):
    UNREAD = Unread(
        refused={"input_examples": (None, []), "allowed_callers": (None, [], ["direct"])},
        listed={"defer_loading": (None, False)},
        inert=("strict", "cache_control", "eager_input_streaming"),
        why={
            "input_examples": "the model sees no examples; write them into description",
            "allowed_callers": f"the model itself calls each tool; {LEAVE_OUT}",
        },
    )

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any]
    defer_loading: StrictBool | None = None
    """Not applied: the prompt always shows every tool. To show one later would change the prompt from its
    beginning."""


class _Choice(Block):
    UNREAD = Unread(listed={"disable_parallel_tool_use": (None, False)})

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: StrictBool | None = None


class _Thinking(Block):
    UNREAD = Unread(
        refused={"type": ("enabled", "disabled", "adaptive")},
        # `updates` is listed: the answer shows the whole reasoning at once.
        listed={"budget_tokens": (None,), "display": (None, "summarized", "omitted")},
        inert=("block_binding",),
        why={"type": "the chat template says where the model thinks; write adaptive or disabled"},
    )

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Tokens | None = None
    """Not applied, because reasoning has no limit of its own. Anthropic's API requires clients to send it."""
    display: Literal["summarized", "omitted", "updates"] | None = None

    @property
    def on(self) -> bool | None:
        """Whether the model should think; None: the chat template decides."""
        return {"enabled": True, "adaptive": True, "disabled": False}.get(self.type)


class _Output(Block):
    UNREAD = Unread(
        refused={"task_budget": (None,)},
        closed=True,
        why={"task_budget": "the job bounds an episode; write max_tokens for the turn"},
    )

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Applied if the model's chat template renders a different prompt for it."""
    format: TextFormat | None = None


class CountBody(BaseModel):
    """A request to count a prompt's tokens."""

    model_config = ConfigDict(extra="allow")

    model: Model = MODEL
    messages: Annotated[list[_Turn], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]
    system: str | _Texts | None = None
    tools: Annotated[list[_Custom], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    """Whether the model thinks, if its chat template has such a switch. Also says whether the answer shows
    the reasoning."""
    output_config: _Output | None = None
    output_format: TextFormat | None = None
    """A schema. The sampler masks tokens that would break it, so the turn is context and is not trained."""


class MessagesBody(CountBody):
    """A request for a turn."""

    max_tokens: Tokens
    temperature: Number | None = None
    top_p: Number | None = None
    stop_sequences: Stops | None = None
    stream: StrictBool | None = None


WITHOUT_EFFECT: Final[Table] = beside(
    {
        "compaction": (None, {}),
        "container": (None,),
        "context_management": (None, {}),
        "fallbacks": (None, []),
        "mcp_servers": (None, []),
        "thread": (None,),
    },
    MessagesBody.model_fields,
)
"""Field that is not applied -> the values at which it would change nothing."""
EFFORT: Final = 'write output_config.effort, or thinking: {"type": "disabled"}'
FORMAT: Final = "write a JSON schema in output_config.format"
INSTEAD: Final[dict[str, str]] = {
    **WHY,
    **dict.fromkeys(formats.SPELLINGS, FORMAT),
    **dict.fromkeys(SCHEMAS, FORMAT),
    **dict.fromkeys(BUDGETS, BUDGET.replace("reasoning_effort", "output_config.effort")),
    **dict.fromkeys(("reasoning_effort", "enable_thinking", "chat_template_kwargs", "think"), EFFORT),
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens"), MAX_TOKENS_HINT),
    **dict.fromkeys(("instructions", "systemInstruction", "system_instruction"), "write system"),
    **dict.fromkeys(("reasoning", "prompt_mode"), EFFORT),
    **dict.fromkeys(("stop", "stop_words", "stopSequences"), "write stop_sequences"),
    **dict.fromkeys(("compaction", "context_management"), f"the model sees all messages; {LEAVE_OUT}"),
    **dict.fromkeys(("container", "mcp_servers"), f"nothing here runs tools for the model; {LEAVE_OUT}"),
    "fallbacks": POLICY,
    "thread": "no conversation is kept; write all of it into messages",
    "text": FORMAT,
    "options": "send its fields beside the others, by Anthropic's names",
    "logprobs": "a reply of the Messages API has no place for it; use the chat completions API",
}
"""Field -> why it is not applied, and what to do instead."""

Body = TypeVar("Body", bound=CountBody)


@dataclass(frozen=True)
class MessagesRequest:
    """A parsed request for a turn: a `dialect.TurnRequest`."""

    ask: Ask
    model: str
    stream: bool
    shows_reasoning: bool
    """Whether the answer shows the reasoning."""
    ignored: tuple[str, ...] = ()

    def whole(self, found: Completion, trajectory_id: str) -> dict[str, Any]:
        """The answer without streaming."""
        return messages_answers.message(found, self.model, trajectory_id, self.shows_reasoning)

    def events(self, found: Completion, trajectory_id: str) -> Iterator[bytes]:
        """The answer as server-sent events."""
        for one in messages_answers.events(self.whole(found, trajectory_id)):
            yield named_event(one)

    def failed(self, refusal: GatewayError) -> bytes:
        """The event that ends a stream with an error."""
        return named_event(refusal.body)


def read(body: object, *, lenient: bool = False, large: bool = False) -> MessagesRequest:
    """Check the JSON of a request for a turn. The arguments are as in `openai.read`.

    Raises:
        GatewayError: names the field to change.
    """
    asked = _checked(body, MessagesBody, large)
    assert isinstance(body, dict)
    ignored = unapplied(body, WITHOUT_EFFECT, lenient=lenient, why=INSTEAD)
    ignored += unread(asked, lenient=lenient)
    json_answer = _schema(asked, lenient)
    stop = stops({"stop_sequences": asked.stop_sequences})
    ask = replace(
        _ask(asked, json_answer, must_think=not lenient),
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        stop=tuple(stop),
        names=FieldNames(schema=json_answer.name, stops=stop),
    )
    ignored += (*json_answer.ignored, *listed(body, MessagesBody.model_fields, WITHOUT_EFFECT))
    thinking = asked.thinking
    shown = thinking is not None and bool(thinking.on) and thinking.display != "omitted"
    return MessagesRequest(ask, asked.model, bool(asked.stream), shown, ignored)


def read_count(body: object, *, lenient: bool = False, large: bool = False) -> MessagesRequest:
    """Check the JSON of a request to count tokens. Arguments and errors are as in `openai.read`."""
    asked = _checked(body, CountBody, large)
    assert isinstance(body, dict)
    ignored = unapplied(body, WITHOUT_EFFECT, lenient=lenient, why=INSTEAD)
    ignored += unread(asked, lenient=lenient)
    json_answer = _schema(asked, lenient)
    ask = _ask(asked, json_answer, must_think=not lenient)
    return MessagesRequest(ask, asked.model, False, False, ignored + json_answer.ignored)


def _checked(body: object, model: type[Body], large: bool) -> Body:
    if not isinstance(body, dict):
        raise bad("body", "must be a JSON object")
    return checked(model, body, "messages", large=large)


def _schema(asked: CountBody, lenient: bool) -> formats.Chosen:
    """The schema of the answer, or the fields that ask for one and are ignored."""
    config = asked.output_config
    wanted = [
        *formats.of_text(asked.output_format, "output_format"),
        *formats.of_text(config.format if config else None, "output_config.format"),
    ]
    may_call = bool(asked.tools) and (asked.tool_choice is None or asked.tool_choice.type != "none")
    return formats.chosen_schema(wanted, may_call, lenient)


def _effort(asked: CountBody) -> str | None:
    """The effort that a request asks for. If `thinking` is disabled, that overrides a level of effort."""
    thinks = asked.thinking.on if asked.thinking is not None else None
    if thinks is False:
        return "none"
    if asked.output_config is not None and asked.output_config.effort is not None:
        return level(asked.output_config.effort)
    return "on" if thinks else None


def _ask(asked: CountBody, json_answer: formats.Chosen, *, must_think: bool) -> Ask:
    effort = _effort(asked)
    switched = effort in ("none", "on")
    tools = [_tool(tool) for tool in asked.tools or []]
    choice = asked.tool_choice
    begun = None
    if choice is not None and choice.type in ("any", "tool"):
        if choice.type == "tool" and choice.name is None:
            raise bad("tool_choice.name", "is missing; write the name of a tool")
        begun = force(choice.name if choice.type == "tool" else None, tools)
    if asked.messages[-1].role == "assistant":
        at = len(asked.messages) - 1
        raise bad(
            f"messages.{at}.role",
            "the last message is the assistant's, and turns cannot be prefilled; end with a user's",
            "unsupported_content",
        )
    return Ask(
        messages=[*_system(asked.system), *_conversation(asked.messages)],
        tools=tools,
        may_call=choice is None or choice.type != "none",
        force=begun,
        schema=json_answer.schema,
        effort=effort,
        effort_at="thinking" if switched else "output_config.effort",
        must_think=must_think and not switched,
    )


def _tool(tool: _Custom) -> Tool:
    description = {} if tool.description is None else {"description": tool.description}
    return {
        "type": "function",
        "function": {"name": tool.name, **description, "parameters": tool.input_schema},
    }


def _system(given: str | list[_TextBlock] | None) -> Iterator[Message]:
    text = _joined(given)
    if text:
        yield {"role": "system", "content": text}


def _joined(given: str | Sequence[_TextBlock] | None) -> str:
    """The text of blocks, joined by newlines as in chat completions."""
    return given if isinstance(given, str) else "\n".join(block.text for block in given or ())


def _conversation(turns: Sequence[_Turn]) -> Iterator[Message]:
    for at, turn in enumerate(turns):
        if isinstance(turn.content, str):
            yield {"role": turn.role, "content": turn.content}
        elif turn.role == "assistant":
            yield _assistant(turn.content, f"messages.{at}.content")
        else:
            yield from _given(turn.role, turn.content, f"messages.{at}.content")


def _given(role: str, blocks: Sequence[_ContentBlock], at: str) -> Iterator[Message]:
    """The messages for the blocks of a user or system turn.

    Each tool result becomes a message of its own, and so does the text between results.
    """
    texts: list[str] = []
    for n, block in enumerate(blocks):
        if block.type == "text":
            texts.append(_required(block.text, f"{at}.{n}.text"))
        elif block.type == "tool_result" and role == "user":
            if texts:
                yield {"role": role, "content": "\n".join(texts)}
                texts = []
            answers = _required(block.tool_use_id, f"{at}.{n}.tool_use_id")
            yield {"role": "tool", "tool_call_id": answers, "content": _joined(block.content)}
        else:
            raise bad(f"{at}.{n}.type", f"a {role} message has no {block.type} block", "unsupported_content")
    if texts or not blocks:
        yield {"role": role, "content": "\n".join(texts)}


def _assistant(blocks: Sequence[_ContentBlock], at: str) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for n, block in enumerate(blocks):
        where = f"{at}.{n}"
        if block.type == "text":
            texts.append(_required(block.text, f"{where}.text"))
        elif block.type == "thinking":
            reasoning.append(_required(block.thinking, f"{where}.thinking"))
        elif block.type == "tool_use":
            calls.append(_call(block, where))
        else:
            raise bad(f"{where}.type", f"this model writes no {block.type} block", "unsupported_content")
    return output(texts, reasoning, calls)


def _call(block: _ContentBlock, at: str) -> dict[str, Any]:
    if block.input is None:
        raise bad(f"{at}.input", "is missing")
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = {"name": _required(block.name, f"{at}.name"), "arguments": arguments}
    return {"id": _required(block.id, f"{at}.id"), "type": "function", "function": function}


def _required(value: str | None, at: str) -> str:
    if value is None:
        raise bad(at, "is missing")
    return value
