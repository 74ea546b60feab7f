"""OpenAI's Responses API: how a request is translated to a chat request, and what its clients receive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from completions import answered
from open_rollout import rig
from scripted_model import ANSWER, CALL
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway import responses, responses_answers
from headway_coordinator.gateway.asks import Force
from headway_coordinator.gateway.refusals import GatewayError, bad
from headway_coordinator.gateway.rollouts import CONVERSATIONS
from headway_coordinator.trajectory.linearize import linearize

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": True}
CALLED = {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": '{"key":"x"}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "gold"}
BEFORE = [USER, {"role": "assistant", "content": "hi"}]


def earlier(response: str) -> Sequence[dict[str, Any]]:
    if response != "resp_known":
        raise bad("previous_response_id", "unknown")
    return BEFORE


def read(lenient: bool = False, **fields: Any) -> responses.ResponsesRequest:
    return responses.read({"input": "hello"} | fields, lenient=lenient, earlier=earlier)


def test_the_smallest_request_is_read_with_defaults() -> None:
    found = read()
    assert (found.ask.messages, found.stream, found.ignored) == ([USER], False, ())
    assert not found.ask.instructed


def test_items_between_two_messages_become_one_message() -> None:
    found = read(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            CALLED,
            CALLED | {"call_id": "d"},
            RESULT,
            RESULT | {"call_id": "d", "output": [{"type": "input_text", "text": "lead"}]},
            {"role": "developer", "content": "Go on."},
        ],
    )
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"key": "x"}'}}
    assert found.ask.messages == [
        {"role": "system", "content": "Be brief."},
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [call, call | {"id": "d"}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "gold"},
        {"role": "tool", "tool_call_id": "d", "content": "lead"},
        {"role": "system", "content": "Go on."},
    ]
    assert found.ask.instructed


HM, BRIEF = {"type": "reasoning_text", "text": "hm"}, {"type": "summary_text", "text": "Hm."}


@pytest.mark.parametrize(
    ("item", "reasoning"),
    [
        ({"summary": [], "content": [HM]}, "hm"),
        ({"summary": [BRIEF], "content": [HM]}, "hm"),
        ({"summary": [BRIEF, BRIEF]}, "Hm.\nHm."),
        ({"summary": [BRIEF], "content": None, "encrypted_content": None, "status": None}, "Hm."),
        ({"summary": [], "content": []}, None),
        ({"summary": []}, None),
    ],
)
@pytest.mark.parametrize("spoken", [True, False])
def test_a_summary_of_reasoning_adds_no_empty_message(
    item: dict[str, Any], reasoning: str | None, spoken: bool
) -> None:
    said = [{"type": "message", "role": "assistant", "content": "hi"}] if spoken else []
    found = read(input=[USER, {"type": "reasoning", "id": "rs_1"} | item, *said, USER]).ask.messages
    assert found[:1] + found[-1:] == [USER, USER]
    own = {"role": "assistant", "content": "hi" if spoken else ""}
    own |= {"reasoning_content": reasoning} if reasoning else {}
    assert found[1:-1] == ([own] if spoken or reasoning else [])


async def test_replayed_output_continues_one_row(tmp_path: Path) -> None:
    """Clients send back `response.output`, with the reasoning whole, summarized or empty."""
    tok = tokenizer(tmp_path, QWEN3_TEMPLATE)
    thinking = f"<think>\nhm\n</think>\n\n{CALL}"
    for edit in ({}, {"content": None, "summary": [BRIEF]}, {"content": [], "summary": []}):
        async with rig(tok, thinking, ANSWER) as r:
            asked: dict[str, Any] = {"input": [USER], "tools": [TOOL]}
            _, first = await r.post("/v1/responses", asked)
            output = [item | (edit if item["type"] == "reasoning" else {}) for item in first["output"]]
            assert [item["type"] for item in output] == ["reasoning", "function_call"]
            result = RESULT | {"call_id": output[-1]["call_id"]}
            status, _ = await r.post("/v1/responses", asked | {"input": [USER, *output, result]})
            assert status == 200
            session = r.rollout.session
            assert (session.forks, len(linearize(session.graph))) == (0, 1)


def test_an_earlier_answer_goes_before_the_input() -> None:
    found = read(previous_response_id="resp_known", instructions="Be brief.")
    assert found.ask.messages == [{"role": "system", "content": "Be brief."}, *BEFORE, USER]


@pytest.mark.parametrize(
    ("choice", "may_call", "force"),
    [
        (None, True, None),
        ("auto", True, None),
        ("none", False, None),
        ("required", True, Force("look_up")),
        ({"type": "function", "name": "look_up"}, True, Force("look_up")),
        ({"type": "auto"}, True, None),
        ({"type": "required"}, True, Force("look_up")),
    ],
)
def test_every_tool_choice_is_read(choice: Any, may_call: bool, force: Force | None) -> None:
    ask = read(tools=[TOOL], tool_choice=choice).ask
    assert (ask.may_call, ask.force) == (may_call, force)
    function = {"name": "look_up", "parameters": {"type": "object"}}
    assert ask.tools == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"input": [{"type": "item_reference", "id": "a"}]}, "send the item itself, or previous_response_id"),
        ({"input": [{"type": "web_search_call"}]}, "write what it says as a message"),
        ({"tools": [{"type": "web_search"}]}, "write a function of your own, and answer its calls"),
    ],
)
def test_a_kind_that_is_not_known_names_what_to_write(fields: Any, fix: str) -> None:
    with pytest.raises(GatewayError, match=f"; .*{fix}$"):
        read(**fields)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {"input": None}),
        ("input", {"input": []}),
        ("input.0.type", {"input": [{"type": "item_reference", "id": "a"}]}),
        ("input.0.type", {"input": [{"type": "web_search_call", "id": "a"}]}),
        ("input.0.role", {"input": [{"content": "a"}]}),
        ("input.0.content.0.type", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input.0.call_id", {"input": [CALLED | {"call_id": None}]}),
        ("input.0.name", {"input": [CALLED | {"name": None}]}),
        ("input.0.arguments", {"input": [CALLED | {"arguments": "{oops"}]}),
        ("input.0.arguments", {"input": [CALLED | {"arguments": "[1]"}]}),
        ("input.0.call_id", {"input": [RESULT | {"call_id": None}]}),
        ("input.0.output", {"input": [RESULT | {"output": None}]}),
        ("previous_response_id", {"previous_response_id": "resp_other"}),
        ("previous_response_id", {"previous_response_id": 7}),
        ("max_output_tokens", {"max_output_tokens": "5"}),
        ("max_output_tokens", {"max_output_tokens": True}),
        ("temperature", {"temperature": "1"}),
        ("stream", {"stream": 1}),
        ("background", {"background": True}),
        ("conversation", {"conversation": "c"}),
        ("prompt", {"prompt": {"id": "p"}}),
        ("truncation", {"truncation": "auto"}),
        ("top_logprobs", {"top_logprobs": 5}),
        ("max_tool_calls", {"max_tool_calls": 1}),
        ("stop", {"stop": ["END"]}),
        ("top_k", {"top_k": 5}),
        ("presence_penalty", {"presence_penalty": 0.5}),
        ("n", {"n": 2}),
        ("logit_bias", {"logit_bias": {"7": 1}}),
        ("max_tokens", {"max_tokens": 5}),
        ("num_predict", {"num_predict": 5}),
        ("stop_words", {"stop_words": ["END"]}),
        ("options", {"options": {"num_predict": 5}}),
        ("think", {"think": True}),
        ("format", {"format": "json"}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("structured_outputs", {"structured_outputs": {"json": {}}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("previous_input_messages", {"previous_input_messages": [{"role": "user"}]}),
        ("reasoning.effort", {"reasoning": {"effort": "some"}}),
        ("text.format.schema", {"text": {"format": {"type": "json_schema"}}}),
        ("text.format", {"text": {"format": {"type": "json_object"}}, "tools": [TOOL]}),
        ("tools.0.type", {"tools": [{"type": "web_search"}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "name": "no"}}),
    ],
)
def test_unsupported_fields_are_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert str(caught.value).startswith(param)


@pytest.mark.parametrize("document", [None, [], "text", 7])
def test_a_body_that_is_not_an_object_is_refused(document: object) -> None:
    with pytest.raises(GatewayError):
        responses.read(document, earlier=earlier)


def test_a_lenient_job_lists_what_it_ignores() -> None:
    wished = {"format": {"type": "json_object"}}
    found = read(lenient=True, reasoning={"effort": "low"}, text=wished, truncation="auto")
    assert sorted(found.ignored) == ["text.format", "truncation"]
    assert (found.ask.schema, found.ask.effort, found.ask.must_think) == (None, "low", False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": "END"}, "send a chat completion"),
        ({"response_format": {"type": "json_object"}}, "text.format"),
        ({"max_tokens": 5}, "write max_output_tokens"),
        ({"enable_thinking": False}, "write reasoning.effort"),
    ],
)
def test_a_refusal_says_what_to_write_instead(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(GatewayError, match=message):
        read(**fields)
    assert read(lenient=True, **fields).ignored == (*fields,)


def test_other_fields_are_listed_except_inert_ones() -> None:
    inert = {"store": False, "metadata": {}, "prompt_cache_key": "k", "user": "u", "service_tier": "auto"}
    neutral = {"include": ["reasoning.encrypted_content"], "parallel_tool_calls": True, "top_k": -1}
    assert read(**inert, **neutral).ignored == ()
    listed = {
        "seed": 7,
        "parallel_tool_calls": False,
        "include": ["message.output_text.logprobs"],
        "max_output_token": 5,
    }
    assert read(**inert, **listed).ignored == (*listed,)
    nested = read(reasoning={"summary": "auto", "effort": None}, text={"format": {"type": "text"}, "tone": 1})
    assert nested.ignored == ("reasoning.summary", "text.tone")


def test_an_answer_has_reasoning_text_and_calls() -> None:
    answer = read(tools=[TOOL], model="gpt").whole(answered(), "t0-1")
    assert [item["type"] for item in answer["output"]] == [
        *("reasoning", "message", "function_call", "function_call")
    ]
    assert [item.get("call_id") for item in answer["output"][2:]] == ["call-0-0", "call-0-1"]
    assert (answer["status"], answer["model"], answer["tools"]) == ("completed", "gpt", [TOOL])
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (10, 3)
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 4


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_a_truncated_turn_has_the_status_incomplete(finish: str, reason: str) -> None:
    whole = read().whole(answered(finish_reason=finish), "t0-1")
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert [*responses_answers.events(whole)][-1] == {"type": "response.incomplete", "response": whole}


def test_a_stream_adds_up_to_the_answer() -> None:
    whole = read().whole(answered(), "t0-1")
    events = list(responses_answers.events(whole))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"] == events[-1]["response"]["output"]
    assert events[0]["response"]["output"] == []
    texts = {"response.reasoning_text.delta": "hm", "response.output_text.delta": "I look."}
    for kind, text in texts.items():
        assert [event["delta"] for event in events if event["type"] == kind] == [text]
    calls = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert [call["delta"] for call in calls] == ['{"key": "x"}'] * 2
    numbered = b"".join(read().events(answered(), "t0-1")).decode()
    assert [f'"sequence_number": {n}}}' in numbered for n in range(len(events))] == [True] * len(events)


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


async def test_a_chain_of_answers_is_one_row(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER, ANSWER) as r:
        fields = {"instructions": "Be brief.", "tools": [TOOL]}
        _, first = await r.post("/v1/responses", fields | {"input": "hello"})
        result = [RESULT | {"call_id": first["output"][0]["call_id"]}]
        _, second = await r.post(
            "/v1/responses", fields | {"input": result, "previous_response_id": first["id"]}
        )
        _, third = await r.post(
            "/v1/responses", fields | {"input": "sure?", "previous_response_id": second["id"]}
        )
        session = r.rollout.session
    assert third["previous_response_id"] == second["id"]
    assert session.forks == 0
    assert len(linearize(session.graph, session.unseen)) == 1
    assert [one["role"] for one in r.rollout.conversation] == [
        *("system", "user", "assistant", "tool", "assistant", "user", "assistant")
    ]


async def test_instructions_apply_to_one_turn_only(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        _, first = await r.post("/v1/responses", {"instructions": "Be brief.", "input": "hello"})
        await r.post("/v1/responses", {"input": "sure?", "previous_response_id": first["id"]})
        assert [one["role"] for one in r.rollout.conversation] == ["user", "assistant", "user", "assistant"]
        assert r.rollout.session.forks == 1


async def test_an_unknown_or_too_old_answer_is_refused(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        _, first = await r.post("/v1/responses", {"input": "hello"})
        for n in range(CONVERSATIONS):
            await r.post("/v1/responses", {"input": f"hello {n}"})
        for response in (first["id"], "resp_none"):
            status, answer = await r.post(
                "/v1/responses", {"input": "sure?", "previous_response_id": response}
            )
            assert (status, answer["error"]["param"]) == (400, "previous_response_id")
