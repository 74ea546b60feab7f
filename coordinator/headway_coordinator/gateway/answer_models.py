"""Answers of the protocols besides chat completions, for the OpenAPI document. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class ResponseModel(BaseModel):
    """An answer has the fields that are written here, and no others."""

    model_config = ConfigDict(extra="forbid")


class TextBlock(ResponseModel):
    """What the model said."""

    type: Literal["text"]
    text: str


class ThinkingBlock(ResponseModel):
    """The model's reasoning, if the request has `thinking`."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlock(ResponseModel):
    """A tool that it calls."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, JsonValue]


class MessageUsage(ResponseModel):
    """Tokens of the turn; the prompt's are those of `input_tokens` and of `cache_read_input_tokens`."""

    input_tokens: int = Field(ge=0)
    cache_read_input_tokens: int = Field(ge=0)
    cache_creation_input_tokens: Literal[0]
    output_tokens: int = Field(ge=0)


class Message(ResponseModel):
    """A turn, as Anthropic's Messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(ResponseModel):
    """Tokens of a prompt."""

    input_tokens: int = Field(ge=1)


class OutputText(ResponseModel):
    """What the model said."""

    type: Literal["output_text"]
    text: str
    annotations: list[JsonValue] = Field(max_length=0)
    logprobs: list[JsonValue] = Field(max_length=0)


class ReasoningText(ResponseModel):
    """The model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class OutputMessage(ResponseModel):
    """An item of text."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["completed"]
    content: list[OutputText] = Field(min_length=1, max_length=1)


class OutputReasoning(ResponseModel):
    """An item of reasoning."""

    type: Literal["reasoning"]
    id: str
    status: Literal["completed"]
    summary: list[JsonValue] = Field(max_length=0)
    content: list[ReasoningText] = Field(min_length=1, max_length=1)


class OutputCall(ResponseModel):
    """A tool that the model calls."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["completed"]


class Incomplete(ResponseModel):
    """Why a turn is not whole."""

    reason: Literal["max_output_tokens", "content_filter"]


class InputDetails(ResponseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int = Field(ge=0)
    cache_write_tokens: Literal[0]


class OutputDetails(ResponseModel):
    """Reasoning is not counted separately."""

    reasoning_tokens: Literal[0]


class ResponseUsage(ResponseModel):
    """Tokens of the turn."""

    input_tokens: int = Field(ge=0)
    input_tokens_details: InputDetails
    output_tokens: int = Field(ge=0)
    output_tokens_details: OutputDetails
    total_tokens: int = Field(ge=0)


class Response(ResponseModel):
    """A turn, as OpenAI's Responses."""

    id: str
    """What `previous_response_id` of a later request names."""
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: Incomplete | None
    metadata: dict[str, JsonValue] = Field(max_length=0)
    model: str
    instructions: str | None
    previous_response_id: str | None
    max_output_tokens: int | None
    tools: list[JsonValue]
    tool_choice: JsonValue
    output: list[OutputMessage | OutputReasoning | OutputCall]
    parallel_tool_calls: bool
    temperature: None
    top_p: None
    text: JsonValue
    usage: ResponseUsage
