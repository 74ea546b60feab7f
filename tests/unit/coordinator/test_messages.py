"""Anthropic's Messages API: how a request is translated to a chat request, and what its clients receive."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from completions import answered
from open_rollout import rig
from scripted_model import ANSWER, CALL
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway import messages, messages_answers
from headway_coordinator.gateway.asks import Force
from headway_coordinator.gateway.refusals import GatewayError

USER = {"role": "user", "content": "hello"}
TOOL = {"name": "look_up", "description": "Look.", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "c", "name": "look_up", "input": {"key": "ü"}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "claude", "max_tokens": 9, "messages": [USER]} | fields


def read_messages(*turns: Any, **fields: Any) -> list[Any]:
    return messages.read(body(messages=list(turns), **fields)).ask.messages


def test_the_smallest_request_is_read_with_defaults() -> None:
    found = messages.read(body())
    assert found.ask.messages == [USER]
    assert (found.ask.max_tokens, found.model, found.stream, found.ignored) == (9, "claude", False, ())


def test_a_conversation_is_the_one_of_a_chat_completion() -> None:
    found = read_messages(
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I "},
                {"type": "text", "text": "look."},
                USE,
                USE | {"id": "d"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "gold", "is_error": False},
                {"type": "tool_result", "tool_use_id": "d", "content": [{"type": "text", "text": "lead"}]},
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
        system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
    )
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "look_up", "arguments": json.dumps({"key": "ü"}, ensure_ascii=False)},
    }
    assert found == [
        {"role": "system", "content": "Be\nbrief."},
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [call, call | {"id": "d"}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "gold"},
        {"role": "tool", "tool_call_id": "d", "content": "lead"},
        {"role": "user", "content": "And?"},
    ]


def test_text_before_a_result_stays_before_it() -> None:
    result = {"type": "tool_result", "tool_use_id": "c"}
    found = read_messages({"role": "user", "content": [{"type": "text", "text": "a"}, result]}, USER)
    assert [one["role"] for one in found] == ["user", "tool", "user"]
    assert found[1]["content"] == ""


def test_a_system_message_may_come_later() -> None:
    later = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    assert read_messages(USER, later) == [USER, {"role": "system", "content": "Be brief."}]


@pytest.mark.parametrize(
    ("choice", "may_call", "force"),
    [
        (None, True, None),
        ({"type": "auto"}, True, None),
        ({"type": "none"}, False, None),
        ({"type": "any"}, True, Force("look_up")),
        ({"type": "tool", "name": "look_up"}, True, Force("look_up")),
    ],
)
def test_every_tool_choice_is_read(choice: Any, may_call: bool, force: Force | None) -> None:
    ask = messages.read(body(tools=[TOOL], tool_choice=choice)).ask
    assert (ask.may_call, ask.force) == (may_call, force)
    assert ask.tools == [
        {
            "type": "function",
            "function": {"name": "look_up", "description": "Look.", "parameters": {"type": "object"}},
        }
    ]


def test_stop_sequences_end_the_turn() -> None:
    assert messages.read(body(stop_sequences=["a", "b", "a"])).ask.stop == ("a", "b")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("max_tokens", {"max_tokens": None}),
        ("max_tokens", {"max_tokens": "5"}),
        ("max_tokens", {"max_tokens": True}),
        ("messages", {"messages": []}),
        ("system", {"system": 7}),
        ("temperature", {"temperature": "1"}),
        ("top_k", {"top_k": 5}),
        ("container", {"container": "c"}),
        ("min_p", {"min_p": 0.1}),
        ("presence_penalty", {"presence_penalty": 0.5}),
        ("n", {"n": 2}),
        ("stop", {"stop": ["END"]}),
        ("logprobs", {"logprobs": True}),
        ("max_completion_tokens", {"max_completion_tokens": 5}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("guided_json", {"guided_json": {"type": "object"}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("reasoning_effort", {"reasoning_effort": "low"}),
        ("mcp_servers", {"mcp_servers": [{}]}),
        ("output_format.schema", {"output_format": {"type": "json_schema"}}),
        ("output_config.effort", {"output_config": {"effort": "some"}}),
        ("stop_sequences", {"stop_sequences": "END"}),
        ("stop_sequences.0", {"stop_sequences": ["\ud83d"]}),
        ("stop_sequences.0", {"stop_sequences": [""]}),
        ("stream", {"stream": 1}),
        ("thinking.type", {"thinking": {"type": "maybe"}}),
        ("tools.0.type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("tools.0.input_schema", {"tools": [{"name": "a"}]}),
        ("tools", {"tools": [TOOL] * 513}),
        ("tool_choice", {"tool_choice": {"type": "any"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "no"}}),
        ("tool_choice.name", {"tools": [TOOL], "tool_choice": {"type": "tool"}}),
        ("messages.0.role", {"messages": [{"role": "tool", "content": "a"}]}),
        ("messages.1.role", {"messages": [USER, {"role": "assistant", "content": "I"}]}),
        ("messages.0.content.0.type", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        ("messages.0.content.0.type", {"messages": [{"role": "user", "content": [USE]}]}),
        ("messages.0.content.0.text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        (
            "messages.0.content.0.tool_use_id",
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        ),
        (
            "messages.0.content.0.input",
            {"messages": [{"role": "assistant", "content": [USE | {"input": "{}"}]}, USER]},
        ),
        (
            "messages.0.content.0.id",
            {"messages": [{"role": "assistant", "content": [USE | {"id": None}]}, USER]},
        ),
    ],
)
def test_unsupported_fields_are_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as caught:
        messages.read(body(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert str(caught.value).startswith(param)


@pytest.mark.parametrize("document", [None, [], "text", 7])
def test_a_body_that_is_not_an_object_is_refused(document: object) -> None:
    for read in (messages.read, messages.read_count):
        with pytest.raises(GatewayError):
            read(document)


def test_ineffective_fields_are_listed_and_more_if_lenient() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    asked = body(
        tools=[TOOL, TOOL | {"name": "later", "defer_loading": True}],
        thinking=thinking,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    listed = ("thinking.budget_tokens", "tool_choice.disable_parallel_tool_use", "tools.defer_loading")
    assert messages.read(asked).ignored == listed
    assert messages.read(asked | {"top_k": 5}, lenient=True).ignored == ("top_k", *listed)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": "END"}, "write stop_sequences"),
        ({"response_format": {"type": "json_object"}}, "output_config.format"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, 'thinking: {"type": "disabled"}'),
    ],
)
def test_a_refusal_says_what_to_write_instead(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(GatewayError, match=re.escape(message)):
        messages.read(body(**fields))
    assert messages.read(body(**fields), lenient=True).ignored == (*fields,)


def test_other_fields_are_listed_except_inert_ones() -> None:
    inert = {"metadata": {"user_id": "u"}, "service_tier": "auto", "betas": ["b"], "cache_control": None}
    neutral = {"n": 1, "stop": None, "response_format": {"type": "text"}, "chat_template_kwargs": {}}
    listed = {"seed": 7, "parallel_tool_calls": False, "stop_sequence": ["END"]}
    assert messages.read(body(**inert, **neutral, **listed)).ignored == (*listed,)


def test_an_answer_with_calls() -> None:
    answer = messages_answers.message(answered(), "claude", "t0-1", True)
    uses = [USE | {"id": f"call-0-{i}", "input": {"key": "x"}} for i in (0, 1)]
    assert answer["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "I look."},
        *uses,
    ]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    assert answer["usage"] == {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 3,
    }


def test_reasoning_is_shown_to_clients_that_ask_for_it() -> None:
    for thinking, shown in ((None, False), ({"type": "disabled"}, False), ({"type": "adaptive"}, True)):
        answer = messages.read(body(thinking=thinking)).whole(answered(), "t0-1")
        assert ("thinking" in [block["type"] for block in answer["content"]]) == shown


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"finish_reason": "stop"}, "end_turn", None),
        ({"finish_reason": "length"}, "max_tokens", None),
        ({"finish_reason": "content_filter"}, "refusal", None),
        ({"finish_reason": "stop", "stopped": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "tool_calls", "stopped": "END"}, "tool_use", None),
    ],
)
def test_an_answer_has_the_reason_why_its_turn_ended(
    fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    answer = messages_answers.message(answered(**fields), "m", "t0-1", False)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)


def test_a_stream_adds_up_to_the_answer() -> None:
    whole = messages_answers.message(answered(), "claude", "t0-1", True)
    first, *events, last, end = messages_answers.events(whole)
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            field, _, name = messages_answers.DELTAS[blocks[-1]["type"]]
            piece = event["delta"][name]
            blocks[-1][field] = json.loads(piece) if field == "input" else piece
        assert event["index"] == len(blocks) - 1
    assert blocks == whole["content"]
    assert first["message"] | {"content": blocks} | last["delta"] | {"usage": last["usage"]} == whole
    assert (first["type"], end) == ("message_start", {"type": "message_stop"})


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


async def test_counted_tokens_equal_the_billed_ones(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        asked = body(messages=[USER], tools=[TOOL])
        _, answer = await r.post("/v1/messages", asked)
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call-0-0"}]}
        asked["messages"] = [USER, {"role": "assistant", "content": answer["content"]}, result]
        status, counted = await r.post("/v1/messages/count_tokens", asked)
        turns = len(r.rollout.session.turns)
        _, answer = await r.post("/v1/messages", asked)
        usage = answer["usage"]
    assert (status, turns) == (200, 1)
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert r.rollout.session.forks == 0


async def test_counting_beyond_the_context_does_not_end_the_episode(tok: Any) -> None:
    async with rig(tok, ANSWER, context=20) as r:
        long = {"messages": [{"role": "user", "content": "word " * 500}]}
        status, answer = await r.post("/v1/messages/count_tokens", long)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert r.rollout.truncated is None


async def test_a_prompt_beyond_the_context_is_counted(tok: Any) -> None:
    """An agent counts to find out how much to leave out."""
    async with rig(tok, ANSWER, context=300) as r:
        for words, status in ((150, 200), (1500, 400)):
            long = {"messages": [{"role": "user", "content": "word " * words}]}
            found, answer = await r.post("/v1/messages/count_tokens", long)
            assert found == status
            if status == 200:
                assert 300 < answer["input_tokens"] < 1200
            else:
                assert answer["error"]["code"] == "context_length_exceeded"


async def test_an_endpoint_is_not_asked_to_count(tok: Any) -> None:
    class Elsewhere:
        async def chat(self, session: Any, ask: Any) -> Any:
            raise AssertionError

    async with rig(tok) as r:
        turns = r.server._turns[r.rollout.trajectory_id]
        turns.backend = replace(turns.backend, chat=Elsewhere())
        status, answer = await r.post("/v1/messages/count_tokens", {"messages": [USER]})
    assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")


async def test_errors_have_anthropics_form(tok: Any) -> None:
    async with rig(tok) as r:
        _, answer = await r.post("/v1/messages", body(top_k=5))
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
