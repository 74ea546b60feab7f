"""The messages of an episode as messages of Inspect AI. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headway_analysis.measures.tries import TOOL_ERROR
from headway_analysis.report.conversation import Message, arguments, steps, text
from headway_api.records import EpisodeRecord

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage


def messages(episode: EpisodeRecord, model: str) -> Iterator[ChatMessage]:
    """The messages of an episode; `model` is the name of the model that sampled."""
    sampled = {step.at for step in steps(episode)}
    names = {
        call.get("id"): call.get("function", {}).get("name")
        for message in episode.messages
        for call in message.get("tool_calls") or ()
    }
    for at, message in enumerate(episode.messages):
        yield _message(message, f"{episode.episode_id}-m{at}", model, at in sampled, names)


def _message(
    message: Message, identity: str, model: str, sampled: bool, names: Mapping[Any, Any]
) -> ChatMessage:
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )

    words, role = text(message), message.get("role")
    if role == "assistant":
        return ChatMessageAssistant(
            id=identity,
            content=_content(message, words),
            tool_calls=[*_tool_calls(message)] or None,
            source="generate" if sampled else "input",
            model=model if sampled else None,
        )
    if role == "tool":
        called = message.get("tool_call_id")
        name = names.get(called)
        return ChatMessageTool(
            id=identity, content=words, tool_call_id=called, function=name, error=failure(words)
        )
    if role in ("system", "developer"):
        return ChatMessageSystem(id=identity, content=words)
    return ChatMessageUser(id=identity, content=words)


def _content(message: Message, words: str) -> Any:
    from inspect_ai.model import ContentReasoning, ContentText

    reasoning = message.get("reasoning_content")
    return [ContentReasoning(reasoning=str(reasoning)), ContentText(text=words)] if reasoning else words


def _tool_calls(message: Message) -> Iterator[Any]:
    from inspect_ai.tool import ToolCall

    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        yield ToolCall(
            id=str(call.get("id", "")), function=str(function.get("name", "")), arguments=arguments(function)
        )


def failure(answer: str) -> Any:
    """The error that a tool's answer reports; None if the tool did not fail."""
    from inspect_ai.tool import ToolCallError

    if not answer.startswith(TOOL_ERROR):
        return None
    return ToolCallError("unknown", answer.removeprefix(TOOL_ERROR))
