"""Parts of messages: a refusal instead of an answer, reasoning, and content that is not text."""

from __future__ import annotations

from typing import Any

import pytest

from headway_coordinator.gateway import messages, openai, responses
from headway_coordinator.gateway.refusals import GatewayError

USER = {"role": "user", "content": "hello"}
TEXT = {"type": "text", "text": "It is gold."}
REFUSAL = {"type": "refusal", "refusal": "I will not say."}


def chat(message: dict[str, Any]) -> dict[str, Any]:
    return openai.read({"messages": [USER, message, USER]}).ask.messages[1]


def said(**fields: Any) -> dict[str, Any]:
    return chat({"role": "assistant"} | fields)


def refused(param: str, message: dict[str, Any]) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        chat(message)
    assert (caught.value.status, caught.value.param) == (400, param)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": [REFUSAL]}, "I will not say."),
        ({"content": [TEXT, REFUSAL]}, "It is gold.I will not say."),
        ({"content": None, "refusal": "I will not say."}, "I will not say."),
        ({"content": "", "refusal": "I will not say."}, "I will not say."),
        ({"content": "It is gold.", "refusal": None}, "It is gold."),
        ({"content": [{"type": "output_text", "text": "It is gold."}]}, "It is gold."),
    ],
)
def test_a_refusal_becomes_the_models_text(fields: dict[str, Any], text: str) -> None:
    assert said(**fields) == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "It shines."},
        {"type": "thinking", "thinking": "It shines.", "signature": "s"},
        {
            "type": "thinking",
            "thinking": [{"type": "text", "text": "It "}, {"type": "text", "text": "shines."}],
        },
        {"type": "reasoning", "text": "It shines."},
        {"type": "reasoning", "reasoning": "It shines."},
    ],
)
@pytest.mark.parametrize("name", [None, "reasoning", "reasoning_content"])
def test_a_thinking_part_is_reasoning(part: dict[str, Any], name: str | None) -> None:
    """A field of the message may hold the same reasoning as the part."""
    fields = {} if name is None else {name: "It shines."}
    assert said(content=[part, TEXT], **fields) == {
        "role": "assistant",
        "content": "It is gold.",
        "reasoning_content": "It shines.",
    }


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"content": [{"type": "thinking", "thinking": "a"}], "reasoning_content": "b"}, "content"),
        ({"content": "x", "reasoning_content": "a", "reasoning": "b"}, "reasoning"),
        ({"content": "x", "refusal": "b"}, "refusal"),
        ({"content": "x", "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({"content": "x", "reasoning": {"text": "a"}}, "reasoning"),
        ({"content": [{"type": "refusal"}]}, "content.0.refusal"),
        ({"content": [{"type": "thinking"}]}, "content.0.thinking"),
        ({"content": [{"type": "text"}]}, "content.0.text"),
        ({"content": [{"type": "text", "text": 7}]}, "content.0.text"),
    ],
)
def test_contradictory_or_missing_content_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    refused(f"messages.1.{name}", {"role": "assistant"} | fields)


@pytest.mark.parametrize("role", ["user", "system", "tool"])
@pytest.mark.parametrize("part", [REFUSAL, {"type": "thinking", "thinking": "a"}])
def test_only_assistant_messages_may_refuse_or_think(role: str, part: dict[str, Any]) -> None:
    error = refused("messages.1.content.0.type", {"role": role, "content": [part], "tool_call_id": "c"})
    assert error.code == "unsupported_content"
    assert "send content of type text" in str(error)
    refused("messages.1.refusal", {"role": role, "content": "", "refusal": "no", "tool_call_id": "c"})


def test_a_refusal_in_responses_becomes_the_models_text() -> None:
    def read(item: dict[str, Any]) -> list[Any]:
        return responses.read({"input": [USER, item, USER]}, earlier=lambda _: []).ask.messages

    item = {"type": "message", "role": "assistant", "content": [REFUSAL]}
    assert read(item)[1] == {"role": "assistant", "content": "I will not say."}
    for other, param in (
        (item | {"role": "user"}, "input.1.content.0.type"),
        (item | {"content": [{"type": "refusal"}]}, "input.1.content.0.refusal"),
        (item | {"content": [{"type": "output_text"}]}, "input.1.content.0.text"),
        ({"type": "reasoning", "content": [REFUSAL]}, "input.1.content.0.type"),
        ({"type": "function_call_output", "call_id": "c", "output": [REFUSAL]}, "input.1.output.0.type"),
    ):
        with pytest.raises(GatewayError) as caught:
            read(other)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("thinking", "shown", "effort"),
    [
        ({"type": "adaptive"}, True, "on"),
        ({"type": "adaptive", "display": None}, True, "on"),
        ({"type": "adaptive", "display": "summarized"}, True, "on"),
        ({"type": "adaptive", "display": "updates"}, True, "on"),
        ({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, False, "on"),
        ({"type": "disabled"}, False, "none"),
    ],
)
def test_an_answer_shows_reasoning_unless_it_is_omitted(
    thinking: dict[str, Any], shown: bool, effort: str
) -> None:
    found = messages.read({"messages": [USER], "max_tokens": 5, "thinking": thinking})
    assert (found.shows_reasoning, found.ask.effort) == (shown, effort)


def test_thinking_between_tools_is_left_to_the_template() -> None:
    body = {"messages": [USER], "max_tokens": 5, "thinking": {"type": "between_tools"}}
    found = messages.read(body, lenient=True)
    assert (found.shows_reasoning, found.ask.effort, found.ignored) == (False, None, ("thinking.type",))


def test_a_tools_error_is_passed_on_as_content_only() -> None:
    """Chat templates cannot show `is_error`, so the record lists the field as ignored."""
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no such key", "is_error": True}
    found = messages.read({"messages": [{"role": "user", "content": [result, result]}], "max_tokens": 5})
    tool = {"role": "tool", "tool_call_id": "c", "content": "no such key"}
    assert (found.ask.messages, found.ignored) == ([tool, tool], ("messages.content.is_error",))
