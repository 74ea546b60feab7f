"""Models of the answers of Messages and Responses, for the OpenAPI document. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class ResponseModel(BaseModel):
    """Base of the answers' models: an answer has only the declared fields."""

    model_config = ConfigDict(extra="forbid")


class TextBlock(ResponseModel):
    """The text of the model's answer."""

    type: Literal["text"]
    text: str


class ThinkingBlock(ResponseModel):
    """The model's reasoning, if the request has `thinking`."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlock(ResponseModel):
    """A call of a tool by the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, JsonValue]


class MessageUsage(ResponseModel):
    """Tokens of the turn. The prompt has `input_tokens` plus `cache_read_input_tokens` tokens."""

    input_tokens: int = Field(ge=0)
    cache_read_input_tokens: int = Field(ge=0)
    cache_creation_input_tokens: Literal[0]
    output_tokens: int = Field(ge=0)


class Message(ResponseModel):
    """The model's answer to a turn, in the form of Anthropic's Messages API."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(ResponseModel):
    """The number of tokens in a prompt."""

    input_tokens: int = Field(ge=1)


class OutputText(ResponseModel):
    """The text of the model's answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[JsonValue] = Field(max_length=0)
    logprobs: list[JsonValue] = Field(max_length=0)


class ReasoningText(ResponseModel):
    """The model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class OutputMessage(ResponseModel):
    """An output item with the text of the model's answer."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["completed"]
    content: list[OutputText] = Field(min_length=1, max_length=1)


class OutputReasoning(ResponseModel):
    """An output item with the model's reasoning."""

    type: Literal["reasoning"]
    id: str
    status: Literal["completed"]
    summary: list[JsonValue] = Field(max_length=0)
    content: list[ReasoningText] = Field(min_length=1, max_length=1)


class OutputCall(ResponseModel):
    """An output item with a call of a tool by the model."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["completed"]


class Incomplete(ResponseModel):
    """Why an answer is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class InputDetails(ResponseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int = Field(ge=0)
    cache_write_tokens: Literal[0]


class OutputDetails(ResponseModel):
    """Details of the answer's tokens. Tokens of reasoning are not counted separately, so they are 0."""

    reasoning_tokens: Literal[0]


class ResponseUsage(ResponseModel):
    """Tokens of the turn."""

    input_tokens: int = Field(ge=0)
    input_tokens_details: InputDetails
    output_tokens: int = Field(ge=0)
    output_tokens_details: OutputDetails
    total_tokens: int = Field(ge=0)


class Response(ResponseModel):
    """The model's answer to a turn, in the form of OpenAI's Responses API."""

    id: str
    """A later request continues this answer by sending this id as `previous_response_id`."""
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
