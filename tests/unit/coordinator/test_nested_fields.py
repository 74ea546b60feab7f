"""Fields inside messages, tools and choices that are not applied.

Each is refused by name, listed, or inert.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway_api.records import MAX_IGNORED
from headway_coordinator.gateway import completions, messages, openai, responses
from headway_coordinator.gateway.refusals import GatewayError

USER = {"role": "user", "content": "hello"}
SAID = {"role": "assistant", "content": "hi"}
FUNCTION = {"name": "look_up", "parameters": {"type": "object"}}
CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
CUSTOM = {"name": "look_up", "input_schema": {"type": "object"}}
FLAT = {"type": "function"} | FUNCTION
USE = {"type": "tool_use", "id": "c", "name": "look_up", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "gold"}
TEXT = {"type": "text", "text": "hello"}


def read(protocol: str, fields: dict[str, Any], *, lenient: bool = False) -> Any:
    if protocol == "chat":
        return openai.read({"messages": [USER]} | fields, lenient=lenient)
    if protocol == "messages":
        return messages.read({"messages": [USER], "max_tokens": 5} | fields, lenient=lenient)
    if protocol == "count":
        return messages.read_count({"messages": [USER]} | fields, lenient=lenient)
    if protocol == "completions":
        return completions.read({"prompt": "hello"} | fields, lenient=lenient)
    return responses.read({"input": "hello"} | fields, lenient=lenient, earlier=lambda _: [])


def tools(**fields: Any) -> dict[str, Any]:
    return {"tools": [CUSTOM | fields]}


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("chat", "messages.1.prefix", {"messages": [USER, SAID | {"prefix": True}]}, "a message of its own"),
    ("chat", "messages.0.images", {"messages": [USER | {"images": ["aGk="]}]}, "accepts only text"),
    ("chat", "messages.1.audio", {"messages": [USER, SAID | {"audio": {"id": "a"}}, USER]}, "only text"),
    ("chat", "messages.0.tools", {"messages": [USER | {"tools": [FLAT]}]}, "the request's own tools"),
    ("chat", "messages.0.task", {"messages": [USER | {"task": "title"}]}, "one chat template"),
    ("chat", "thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 5}}, "max_tokens"),
    ("chat", "thinking.clear_thinking", {"thinking": {"type": "enabled", "clear_thinking": False}}, "keeps"),
    ("messages", "tools.0.input_examples", tools(input_examples=[{}]), "into description"),
    ("messages", "tools.0.allowed_callers", tools(allowed_callers=["code_execution"]), "calls each tool"),
    (
        "messages",
        "messages.1.clear_at",
        {"messages": [USER, {"role": "system", "content": "a", "clear_at": "next_user_message"}]},
        "sees all messages",
    ),
    (
        "messages",
        "messages.1.output_config",
        {"messages": [USER, {"role": "system", "content": "a", "output_config": {"effort": "low"}}]},
        "the request's own output_config",
    ),
    ("messages", "output_config.task_budget", {"output_config": {"task_budget": {"total": 9}}}, "max_tokens"),
    ("messages", "output_config.tone", {"output_config": {"tone": "warm"}}, "leave it out"),
    ("messages", "thinking.type", {"thinking": {"type": "between_tools"}}, "adaptive or disabled"),
    ("count", "tools.0.input_examples", tools(input_examples=[{}]), "into description"),
    ("responses", "tools.0.output_schema", {"tools": [FLAT | {"output_schema": {"a": 1}}]}, "description"),
    (
        "responses",
        "tools.0.allowed_callers",
        {"tools": [FLAT | {"allowed_callers": ["programmatic"]}]},
        "calls each tool",
    ),
    ("responses", "reasoning.context", {"reasoning": {"context": "all_turns"}}, "which reasoning"),
    ("responses", "reasoning.mode", {"reasoning": {"mode": "pro"}}, "reasoning.effort"),
]


@pytest.mark.parametrize(("protocol", "param", "fields", "message"), REFUSED)
def test_a_nested_field_that_would_be_lost_is_refused(
    protocol: str, param: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(GatewayError) as caught:
        read(protocol, fields)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, "unsupported_parameter")
    assert message in str(error)
    name = ".".join(part for part in param.split(".") if not part.isdecimal())
    assert read(protocol, fields, lenient=True).ignored == (name,)


@pytest.mark.parametrize(
    ("protocol", "name", "value"),
    [
        ("chat", "moderation", {"model": "omni"}),
        ("chat", "task", "title"),
        ("messages", "compaction", {"instructions": "short"}),
        ("messages", "fallbacks", "default"),
        ("messages", "thread", {"type": "create"}),
        ("messages", "context_management", {"edits": [{}]}),
        ("responses", "image", {"url": "data:"}),
        ("responses", "moderation", {"model": "omni"}),
    ],
)
def test_newer_fields_of_a_request_are_refused(protocol: str, name: str, value: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        read(protocol, {name: value})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    found = read(protocol, {name: value}, lenient=True)
    assert found.ignored == (name,)
    assert found.ask == replace(read(protocol, {}).ask, must_think=False)


LISTED: list[tuple[str, str, dict[str, Any]]] = [
    ("chat", "messages.tone", {"messages": [USER | {"tone": 1}]}),
    ("chat", "messages.channel", {"messages": [USER, SAID | {"channel": "final"}, USER]}),
    (
        "chat",
        "messages.content.citations",
        {"messages": [{"role": "user", "content": [TEXT | {"citations": [1]}]}]},
    ),
    ("chat", "messages.tool_calls.extra", {"messages": [SAID | {"tool_calls": [CALL | {"extra": 1}]}]}),
    (
        "chat",
        "tools.function.defer_loading",
        {"tools": [{"type": "function", "function": FUNCTION | {"defer_loading": True}}]},
    ),
    ("chat", "tools.tone", {"tools": [{"type": "function", "function": FUNCTION, "tone": 1}]}),
    ("chat", "stream_options.continuous_usage_stats", {"stream_options": {"continuous_usage_stats": True}}),
    ("chat", "response_format.tone", {"response_format": {"type": "text", "tone": 1}}),
    ("completions", "stream_options.tone", {"stream_options": {"tone": 1}}),
    (
        "messages",
        "messages.content.is_error",
        {"messages": [{"role": "user", "content": [RESULT | {"is_error": True}]}]},
    ),
    (
        "messages",
        "messages.content.toolset_name",
        {"messages": [{"role": "assistant", "content": [USE | {"toolset_name": "a"}]}, USER]},
    ),
    (
        "messages",
        "messages.content.content.citations",
        {"messages": [{"role": "user", "content": [RESULT | {"content": [TEXT | {"citations": [1]}]}]}]},
    ),
    ("messages", "system.citations", {"system": [TEXT | {"citations": [{"type": "page_location"}]}]}),
    (
        "messages",
        "tool_choice.disable_parallel_tool_use",
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    ("messages", "tools.defer_loading", tools(defer_loading=True)),
    ("messages", "thinking.display", {"thinking": {"type": "adaptive", "display": "updates"}}),
    ("messages", "thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("responses", "input.phase", {"input": [USER, SAID | {"phase": "commentary"}]}),
    (
        "responses",
        "input.encrypted_content",
        {"input": [USER, {"type": "reasoning", "encrypted_content": "x"}]},
    ),
    ("responses", "tools.async", {"tools": [FLAT | {"async": True}]}),
    ("responses", "reasoning.summary", {"reasoning": {"summary": "auto"}}),
    ("responses", "text.tone", {"text": {"tone": 1}}),
]


@pytest.mark.parametrize(("protocol", "name", "fields"), LISTED)
def test_a_nested_field_that_is_not_applied_is_listed(
    protocol: str, name: str, fields: dict[str, Any]
) -> None:
    for lenient in (False, True):
        assert read(protocol, fields, lenient=lenient).ignored == (name,)


ECHOED: list[tuple[str, dict[str, Any]]] = [
    (
        "chat",
        {"messages": [USER, SAID | {"refusal": None, "annotations": [], "audio": None, "tone": ""}, USER]},
    ),
    (
        "chat",
        {"messages": [SAID | {"tool_calls": [CALL | {"index": 0}]}, USER | {"prefix": False, "images": []}]},
    ),
    ("chat", {"messages": [{"role": "user", "content": [TEXT | {"cache_control": {"type": "ephemeral"}}]}]}),
    (
        "chat",
        {
            "messages": [
                {"role": "user", "content": [TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}]}
            ]
        },
    ),
    ("chat", {"tools": [{"type": "function", "function": FUNCTION | {"strict": True}}]}),
    ("chat", {"stream_options": {"include_usage": True, "include_obfuscation": False}}),
    ("chat", {"thinking": {"type": "enabled", "budget_tokens": None}}),
    (
        "messages",
        tools(
            strict=True,
            cache_control={"type": "ephemeral"},
            eager_input_streaming=True,
            allowed_callers=["direct"],
        ),
    ),
    (
        "messages",
        {"messages": [{"role": "user", "content": [RESULT | {"is_error": False, "cache_control": None}]}]},
    ),
    (
        "messages",
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": [
                        USE | {"caller": {"type": "direct"}},
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                    ],
                },
                USER,
            ]
        },
    ),
    ("messages", {"thinking": {"type": "adaptive", "display": "summarized", "block_binding": {}}}),
    (
        "responses",
        {
            "input": [
                {"type": "reasoning", "id": "r", "summary": [], "status": None, "encrypted_content": None},
                USER,
            ]
        },
    ),
    (
        "responses",
        {
            "input": [
                {
                    "role": "assistant",
                    "id": "m",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
                }
            ]
        },
    ),
    ("responses", {"tools": [FLAT | {"strict": True, "output_schema": None, "allowed_callers": ["direct"]}]}),
    ("responses", {"reasoning": {"context": "auto", "mode": "standard", "summary": None}}),
]


@pytest.mark.parametrize(("protocol", "fields"), ECHOED)
def test_an_inert_field_is_not_listed_as_ignored(protocol: str, fields: dict[str, Any]) -> None:
    assert read(protocol, fields).ignored == ()


OF_OTHER_KINDS: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"messages": [USER | {"tool_call_id": "c"}]}, "messages.tool_call_id"),
    ("chat", {"messages": [USER | {"reasoning_content": "hm"}]}, "messages.reasoning_content"),
    ("chat", {"messages": [USER | {"content": [TEXT | {"thinking": "hm"}]}]}, "messages.content.thinking"),
    ("messages", {"messages": [USER | {"content": [TEXT | {"input": {"a": 1}}]}]}, "messages.content.input"),
    (
        "messages",
        {"messages": [SAID | {"content": [USE]}, USER | {"content": [RESULT | {"text": "lost"}]}]},
        "messages.content.text",
    ),
    (
        "responses",
        {"input": [USER, {"type": "function_call_output", "call_id": "c", "output": "a", "content": "lost"}]},
        "input.content",
    ),
    ("responses", {"input": [USER | {"output": "lost"}]}, "input.output"),
]


@pytest.mark.parametrize(("protocol", "fields", "name"), OF_OTHER_KINDS)
def test_a_field_that_belongs_to_another_part_type_is_listed(
    protocol: str, fields: dict[str, Any], name: str
) -> None:
    assert name in read(protocol, fields).ignored


def test_a_name_is_listed_once_up_to_a_records_limit() -> None:
    each = [USER | {"tone": 1, f"tone_{number}": 1} for number in range(5000)]
    assert read("chat", {"messages": each[:2]}).ignored == (
        "messages.tone",
        "messages.tone_0",
        "messages.tone_1",
    )
    many = read("chat", {"messages": each}).ignored
    assert len(many) == MAX_IGNORED + 1
    [long] = read("chat", {"messages": [USER | {"x" * 1000: 1}]}).ignored
    assert long == "messages." + "x" * 60


def test_the_first_of_several_bad_fields_is_named_with_place() -> None:
    fields = {"messages": [USER, SAID | {"partial": True}, USER | {"images": ["a"]}]}
    with pytest.raises(GatewayError) as caught:
        read("chat", fields)
    assert caught.value.param == "messages.1.partial"
    assert read("chat", fields, lenient=True).ignored == ("messages.partial", "messages.images")
