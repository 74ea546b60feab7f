"""OpenAI's Responses: reads a request's JSON as an `Ask`, as for a chat completion. Pure.

Items become messages. The model's reasoning, text and calls between two messages of the agent become
one assistant message. `responses_answers.py` writes the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from headway_api import bounds
from headway_coordinator.gateway import formats, responses_answers, tool_choices
from headway_coordinator.gateway.asks import Ask, Completion, FieldNames
from headway_coordinator.gateway.blocks import LEAVE_OUT, Block, Unread, unread
from headway_coordinator.gateway.chat_messages import TEXT_ALONE, arguments, output
from headway_coordinator.gateway.fields import Model, Number, Tokens
from headway_coordinator.gateway.formats import TextFormat
from headway_coordinator.gateway.named_events import named_event
from headway_coordinator.gateway.neutral import Table
from headway_coordinator.gateway.openai import MODEL
from headway_coordinator.gateway.refusals import GatewayError, bad
from headway_coordinator.gateway.rollouts import CONVERSATIONS, Rollout
from headway_coordinator.gateway.slices import checked
from headway_coordinator.gateway.spellings import Effort, level
from headway_coordinator.gateway.tool_choices import ResponsesChoice
from headway_coordinator.gateway.unapplied import (
    BUDGETS,
    SCHEMAS,
    WHY,
    beside,
    listed,
    unapplied,
)
from headway_coordinator.trajectory.calls import Message, Tool


# `fail_fast` in every list: see chat_messages.py.
class _ItemText(Block):
    """A part of an item. Its type decides which field it must have."""

    UNREAD = Unread(listed={"annotations": (None, [])}, inert=("logprobs", "prompt_cache_breakpoint"))

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "text", "refusal"]
    text: str | None = None
    refusal: str | None = None
    """The model's refusal to answer."""


_ItemTexts = Annotated[list[_ItemText], Field(max_length=bounds.MESSAGES, fail_fast=True)]


class _Item(Block):
    """An item of the input. Its type decides which fields it must have."""

    UNREAD = Unread(
        listed={
            "encrypted_content": (None, ""),
            "phase": (None,),
            "namespace": (None,),
            "caller": (None, {"type": "direct"}),
            "async": (None, False),
        },
        inert=("id", "status", "created_by"),
        reads={
            "message": ("content",),
            "reasoning": ("content", "summary"),
            "function_call": ("call_id", "name", "arguments"),
            "function_call_output": ("call_id", "output"),
        },
    )

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | _ItemTexts | None = None
    summary: _ItemTexts | None = None
    """The summary of a reasoning item. Some clients keep only the summary."""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | _ItemTexts | None = None


class _FunctionTool(Block):
    UNREAD = Unread(
        refused={"output_schema": (None, {}), "allowed_callers": (None, [], ["direct"])},
        listed={"defer_loading": (None, False), "async": (None, False)},
        inert=("strict",),
        why={
            "output_schema": "the model does not see it; write it into description",
            "allowed_callers": f"the model itself calls each tool; {LEAVE_OUT}",
        },
    )

    type: Literal["function"]
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Reasoning(Block):
    UNREAD = Unread(
        refused={"context": (None, "auto"), "mode": (None, "standard")},
        listed={"summary": (None,), "generate_summary": (None,)},
        why={
            "context": f"the chat template says which reasoning a prompt keeps; {LEAVE_OUT}",
            "mode": "the model has only one mode of reasoning; set reasoning.effort instead",
        },
    )

    effort: Effort | None = None
    """Applied if the model's chat template renders a different prompt for it."""


class _Text(Block):
    UNREAD = Unread(listed={"verbosity": (None,)})

    format: TextFormat | None = None
    """A schema. The sampler masks tokens that would break it, so the turn is context and is not trained."""


class ResponsesBody(BaseModel):
    """A request for a turn."""

    model_config = ConfigDict(extra="allow")

    model: Model = MODEL
    input: str | Annotated[list[_Item], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]
    instructions: str | None = None
    """The system prompt of this turn alone. A later turn must send it again."""
    previous_response_id: Annotated[str, Field(max_length=bounds.NAME)] | None = None
    """The id of an earlier answer of this episode. The request continues that answer's conversation."""
    tools: Annotated[list[_FunctionTool], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesChoice | None = None
    max_output_tokens: Tokens | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    stream: StrictBool | None = None
    reasoning: _Reasoning | None = None
    text: _Text | None = None


WITHOUT_EFFECT: Final[Table] = beside(
    {
        "background": (None, False),
        "context_management": (None, []),
        "conversation": (None,),
        "max_tool_calls": (None,),
        "image": (None, {}, *({"context_compression": how} for how in ("auto", "enabled", "disabled"))),
        "previous_input_messages": (None, []),
        "prompt": (None,),
        "truncation": (None, "disabled"),
    },
    ResponsesBody.model_fields,
)
"""Field that is not applied -> the values at which it would change nothing."""
EFFORT: Final = "write reasoning.effort"
FORMAT: Final = "write a JSON schema in text.format"
MAX_TOKENS_HINT: Final = "write max_output_tokens"
CHAT: Final = "Responses have no place for it; send a chat completion"
INSTEAD: Final[dict[str, str]] = {
    **WHY,
    **dict.fromkeys(formats.SPELLINGS, FORMAT),
    **dict.fromkeys(SCHEMAS, FORMAT),
    **dict.fromkeys(
        BUDGETS, "reasoning has no bound of its own; write max_output_tokens, or reasoning.effort"
    ),
    **dict.fromkeys(("reasoning_effort", "enable_thinking", "thinking", "chat_template_kwargs"), EFFORT),
    **dict.fromkeys(("think", "prompt_mode", "output_config"), EFFORT),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict"), MAX_TOKENS_HINT),
    **dict.fromkeys(("num_predict", "max_tokens_to_sample", "maxOutputTokens"), MAX_TOKENS_HINT),
    **dict.fromkeys(("stop", "stop_sequences", "stop_words", "stopSequences", "logprobs"), CHAT),
    **dict.fromkeys(("messages", "prompt", "inputs", "contents"), "write input"),
    **dict.fromkeys(("system", "systemInstruction", "system_instruction"), "write instructions"),
    "max_length": "it counts the prompt too; write max_output_tokens, which counts the answer alone",
    "image": TEXT_ALONE,
    "output_format": FORMAT,
    "previous_input_messages": "send the conversation as input",
}
"""Field -> why it is not applied, and what to do instead."""

Earlier = Callable[[str], Sequence[Message]]
"""Returns the conversation up to the answer with this id, without that turn's instructions; see `earlier`."""


@dataclass(frozen=True)
class ResponsesRequest:
    """A parsed request for a turn: a `dialect.TurnRequest`."""

    ask: Ask
    stream: bool
    ignored: tuple[str, ...] = ()
    echoed: dict[str, Any] = field(default_factory=dict)
    """The fields of the request that the answer repeats."""

    def whole(self, found: Completion, trajectory_id: str) -> dict[str, Any]:
        """The answer without streaming."""
        return responses_answers.response(found, trajectory_id, self.echoed)

    def events(self, found: Completion, trajectory_id: str) -> Iterator[bytes]:
        """The answer as server-sent events."""
        for number, one in enumerate(responses_answers.events(self.whole(found, trajectory_id))):
            yield named_event(one | {"sequence_number": number})

    def failed(self, refusal: GatewayError) -> bytes:
        """The event that ends a stream with an error."""
        body = refusal.body
        return named_event(body | {"code": refusal.code, "param": refusal.param, "sequence_number": 0})


def read(body: object, *, lenient: bool = False, large: bool = False, earlier: Earlier) -> ResponsesRequest:
    """Check the JSON of a request for a turn. The arguments are as in `openai.read`.

    Raises:
        GatewayError: names the field to change.
    """
    if not isinstance(body, dict):
        raise bad("body", "must be a JSON object")
    asked = checked(ResponsesBody, body, "input", large=large)
    ignored = unapplied(body, WITHOUT_EFFECT, lenient=lenient, why=INSTEAD)
    ignored += listed(body, ResponsesBody.model_fields, WITHOUT_EFFECT)
    ignored += unread(asked, lenient=lenient)
    tools = [_tool(tool) for tool in asked.tools or []]
    choice = tool_choices.of_responses(asked.tool_choice, tools, lenient=lenient)
    wanted = formats.of_text(asked.text.format if asked.text else None, "text.format")
    json_answer = formats.chosen_schema(wanted, bool(tools) and choice.may_call, lenient)
    instructions = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    before = earlier(asked.previous_response_id) if asked.previous_response_id else ()
    effort = level(asked.reasoning.effort) if asked.reasoning else None
    ask = Ask(
        messages=[*instructions, *before, *_conversation(asked.input)],
        tools=tools,
        may_call=choice.may_call,
        max_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        force=choice.force,
        instructed=bool(instructions),
        schema=json_answer.schema,
        effort=effort,
        effort_at="reasoning.effort",
        must_think=not lenient and effort != "none",
        names=FieldNames("input", "max_output_tokens", "text.format"),
    )
    ignored += (*choice.ignored, *json_answer.ignored)
    return ResponsesRequest(ask, bool(asked.stream), ignored, _echoed(asked))


def earlier(rollout: Rollout, response: str) -> Sequence[Message]:
    """The conversation up to the answer with the id `response`, without that turn's instructions.

    Raises:
        GatewayError: no recent answer of this episode has this id.
    """
    for node, conversation in rollout.delivered.items():
        if responses_answers.response_id(rollout.trajectory_id, node) == response:
            return conversation[node in rollout.instructed :]
    raise bad(
        "previous_response_id",
        f"none of this episode's last {CONVERSATIONS} answers has it; send the conversation as input",
    )


def _echoed(asked: ResponsesBody) -> dict[str, Any]:
    return {
        "model": asked.model,
        "instructions": asked.instructions,
        "previous_response_id": asked.previous_response_id,
        "max_output_tokens": asked.max_output_tokens,
        "tools": [_shown_tool(tool) for tool in asked.tools or []],
        "tool_choice": _shown_choice(asked.tool_choice),
    }


def _shown_tool(tool: _FunctionTool) -> dict[str, Any]:
    """A tool in the form in which the answer repeats it.

    It has only known fields: these are in the prompt, so the context bounds their length.
    """
    strict = (tool.model_extra or {}).get("strict")
    shown = {"strict": strict} if isinstance(strict, bool) else {}
    return tool.model_dump(include={"type", "name", "description", "parameters"}, exclude_unset=True) | shown


def _shown_choice(choice: str | ResponsesChoice | None) -> Any:
    if not isinstance(choice, ResponsesChoice):
        return choice or "auto"
    named = [{"type": one.type, "name": one.name} for one in choice.tools or []]
    return choice.model_dump(include={"type", "name", "mode"}, exclude_none=True) | (
        {"tools": named} if named else {}
    )


def _tool(tool: _FunctionTool) -> Tool:
    function = tool.model_dump(include={"name", "description", "parameters"}, exclude_none=True)
    function.setdefault("parameters", {"type": "object", "properties": {}})
    return {"type": "function", "function": function}


def _conversation(given: str | Sequence[_Item]) -> Iterator[Message]:
    if isinstance(given, str):
        yield {"role": "user", "content": given}
        return
    own: list[tuple[str, _Item]] = []
    for number, item in enumerate(given):
        at = f"input.{number}"
        if item.type == "reasoning" and not _reasoning(item, at):
            continue  # alone it would be an empty message
        if item.type in ("reasoning", "function_call") or item.role == "assistant":
            own.append((at, item))
            continue
        if own:
            yield _output_message(own)
            own = []
        yield _input_message(item, at)
    if own:
        yield _output_message(own)


def _input_message(item: _Item, at: str) -> Message:
    """A message from the agent, or the result of a tool."""
    if item.type == "function_call_output":
        answers = _required(item.call_id, f"{at}.call_id")
        if item.output is None:
            raise bad(f"{at}.output", "is missing")
        content = _joined(item.output, "\n", f"{at}.output")
        return {"role": "tool", "tool_call_id": answers, "content": content}
    role = _required(item.role, f"{at}.role")
    content = _joined(item.content, "\n", f"{at}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def _output_message(items: Sequence[tuple[str, _Item]]) -> Message:
    """One assistant message from adjacent items of the model.

    Each item comes with its path in the request, for error messages.
    """
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, item in items:
        if item.type == "reasoning":
            reasoning.append(_reasoning(item, at))
        elif item.type == "function_call":
            calls.append(_call(item, at))
        else:
            texts.append(_joined(item.content, "", f"{at}.content", refusals=True))
    return output(texts, reasoning, calls)


def _call(item: _Item, at: str) -> dict[str, Any]:
    written = arguments(_required(item.arguments, f"{at}.arguments"), f"{at}.arguments")
    function = {"name": _required(item.name, f"{at}.name"), "arguments": written}
    return {"id": _required(item.call_id, f"{at}.call_id"), "type": "function", "function": function}


def _reasoning(item: _Item, at: str) -> str:
    """The text of a reasoning item, or that of its summary if its content is empty."""
    return _joined(item.content, "", f"{at}.content") or _joined(item.summary, "\n", f"{at}.summary")


def _joined(given: str | Sequence[_ItemText] | None, between: str, at: str, *, refusals: bool = False) -> str:
    """The text of parts, joined by `between`. `refusals`: whether a part may be the model's refusal."""
    if given is None or isinstance(given, str):
        return given or ""
    return between.join(_said(part, f"{at}.{n}", refusals) for n, part in enumerate(given))


def _said(part: _ItemText, at: str, refusals: bool) -> str:
    if part.type != "refusal":
        return _required(part.text, f"{at}.text")
    if not refusals:
        raise bad(
            f"{at}.type", "only an assistant's message has a refusal; send a text", "unsupported_content"
        )
    return _required(part.refusal, f"{at}.refusal")


def _required(value: str | None, at: str) -> str:
    if value is None:
        raise bad(at, "is missing")
    return value
