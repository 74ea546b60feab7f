"""Answers of the protocols besides chat completions, for the OpenAPI document. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Answer(BaseModel):
    """An answer has the fields that are written here, and no others."""

    model_config = ConfigDict(extra="forbid")


class TextBlock(Answer):
    """What the model said."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Answer):
    """What it thought, where the request has `thinking`."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlock(Answer):
    """A tool that it calls."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, JsonValue]


class MessageUsage(Answer):
    """Tokens of the turn; the prompt's are those of `input_tokens` and of `cache_read_input_tokens`."""

    input_tokens: int = Field(ge=0)
    cache_read_input_tokens: int = Field(ge=0)
    cache_creation_input_tokens: Literal[0]
    output_tokens: int = Field(ge=0)


class Message(Answer):
    """A turn, as Anthropic's Messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Answer):
    """Tokens of a prompt."""

    input_tokens: int = Field(ge=1)
