"""Chat completions: reading the requests that clients write, and making the answers that they read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from episodes import version

from headway_api.records import MAX_IGNORED, Turn
from headway_coordinator.gateway import completions, messages, openai, responses
from headway_coordinator.gateway.asks import Completion, Force, Sampling
from headway_coordinator.gateway.refusals import GatewayError
from headway_coordinator.trajectory.calls import Call

TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look.", "parameters": {"a": 1}}}
OTHER = {"type": "function", "function": {"name": "other"}}
CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
USER = {"role": "user", "content": "hello"}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "default", "messages": [USER]} | fields


def refused(param: str, **fields: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        openai.read(body(**fields))
    assert caught.value.status == 400
    assert caught.value.param == param
    assert str(caught.value).startswith(param)
    return caught.value


def test_the_smallest_request_is_read_with_defaults() -> None:
    found = openai.read({"messages": [USER]})
    assert found.ask.messages == [USER]
    assert (found.ask.tools, found.ask.max_tokens, found.ask.force) == ([], None, None)
    assert (found.model, found.stream, found.usage_in_stream) == ("default", False, False)


def test_content_may_be_blocks_and_developer_is_system() -> None:
    blocks = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    roles = ("developer", "user", "assistant")
    found = openai.read(body(messages=[{"role": role, "content": blocks} for role in roles]))
    assert found.ask.messages == [
        {"role": "system", "content": "hel\nlo"},
        {"role": "user", "content": "hel\nlo"},
        {"role": "assistant", "content": "hello"},
    ]


def test_a_conversation_with_calls_is_read() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "gold"}]},
    ]
    found = openai.read(body(messages=messages, tools=[TOOL]))
    assert found.ask.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert found.ask.messages[2] == {"role": "tool", "tool_call_id": "c", "content": "gold"}
    assert found.ask.tools == [TOOL]


def test_the_smaller_of_two_token_limits_applies() -> None:
    assert openai.read(body(max_tokens=9, max_completion_tokens=7)).ask.max_tokens == 7
    assert openai.read(body(max_tokens=9, max_completion_tokens=None)).ask.max_tokens == 9


@pytest.mark.parametrize(
    ("choice", "tools", "may_call", "force"),
    [
        ("auto", [TOOL], True, None),
        (None, [TOOL], True, None),
        ("none", [TOOL], False, None),
        ("required", [TOOL], True, Force("look_up")),
        ("required", [TOOL, OTHER], True, Force(None)),
        ("any", [TOOL, OTHER], True, Force(None)),
        ({"type": "function", "function": {"name": "other"}}, [TOOL, OTHER], True, Force("other")),
        ({"type": "auto"}, [TOOL], True, None),
        ({"type": "none"}, [TOOL], False, None),
        ({"type": "any"}, [TOOL], True, Force("look_up")),
    ],
)
def test_every_tool_choice_is_read(
    choice: Any, tools: list[Any], may_call: bool, force: Force | None
) -> None:
    found = openai.read(body(tools=tools, tool_choice=choice))
    assert len(found.ask.tools) == len(tools)
    assert (found.ask.may_call, found.ask.force) == (may_call, force)


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1, "stop": None, "logprobs": False, "presence_penalty": 0.0, "frequency_penalty": 0},
        {"response_format": {"type": "text"}, "logit_bias": {}, "top_logprobs": None},
        {
            "temperature": 0.0,
            "top_p": 0.1,
            "seed": 7,
            "user": "me",
            "metadata": {},
            "parallel_tool_calls": True,
        },
        {"store": False, "service_tier": "auto", "something_new": [1]},
    ],
)
def test_fields_at_neutral_values_are_accepted(neutral: dict[str, Any]) -> None:
    assert openai.read(body(**neutral)).ask.messages == [USER]


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("n", {"n": 2}),
        ("logit_bias", {"logit_bias": {"7": -100}}),
        ("n", {"n": True}),
        ("stop", {"stop": 7}),
        ("stop", {"stop": "x" * 201}),
        ("stop", {"stop": ["x"] * 17}),
        ("stop.0", {"stop": [""]}),
        ("stop", {"stop": "\ud83d"}),
        ("stop.1", {"stop": ["a", None]}),
        ("logprobs", {"logprobs": 1}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 3}),
        ("seed", {"seed": "7"}),
        ("seed", {"seed": True}),
        ("seed", {"seed": 1.5}),
        ("seed", {"seed": 2**70}),
        ("frequency_penalty", {"frequency_penalty": 0.5}),
        ("response_format.type", {"response_format": {"type": "grammar"}}),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": {"type": "json_object"}, "tools": [TOOL]}),
        ("guided_json", {"response_format": {"type": "json_object"}, "guided_json": {"type": "object"}}),
        ("guided_json", {"guided_json": "{"}),
        ("json_schema", {"json_schema": "[]"}),
        ("structured_outputs.regex", {"structured_outputs": {"regex": "a+"}}),
        ("structured_outputs.json.pattern", {"structured_outputs": {"json": {"pattern": "a+"}}}),
        ("extra_body", {"extra_body": {"guided_json": {}}}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("chat_template_kwargs.documents", {"chat_template_kwargs": {"documents": [1]}}),
        ("chat_template_kwargs.thinking", {"chat_template_kwargs": {"thinking": 1}}),
        ("enable_thinking", {"enable_thinking": "no"}),
        ("reasoning_effort", {"reasoning_effort": "some"}),
        ("enable_thinking", {"reasoning_effort": "low", "enable_thinking": False}),
        ("stop_token_ids", {"stop_token_ids": [7]}),
        ("guided_choice", {"guided_choice": ["yes", "no"]}),
        ("messages.0.function_call", {"messages": [USER | {"function_call": {"name": "f"}}]}),
        ("messages", {"messages": []}),
        ("messages.0.role", {"messages": [{"role": "alien", "content": "a"}]}),
        ("messages.1.tool_call_id", {"messages": [USER, {"role": "tool", "content": "a"}]}),
        ("messages.0.tool_calls", {"messages": [USER | {"tool_calls": [CALL]}]}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": True}),
        ("max_tokens", {"max_tokens": "5"}),
        ("max_tokens", {"max_tokens": 5.5}),
        ("max_tokens", {"max_tokens": 10**30}),
        ("max_completion_tokens", {"max_completion_tokens": True}),
        ("temperature", {"temperature": float("nan")}),
        ("temperature", {"temperature": "0.7"}),
        ("temperature", {"temperature": True}),
        ("temperature", {"temperature": -1}),
        ("top_p", {"top_p": float("inf")}),
        ("stream", {"stream": "yes"}),
        ("regex", {"regex": "a+"}),
        ("ebnf", {"ebnf": "root ::= a"}),
        ("grammar", {"grammar": "root ::= a"}),
        ("min_new_tokens", {"min_new_tokens": 5}),
        ("max_length", {"max_length": 5}),
        ("stop_regex", {"stop_regex": "a"}),
        ("repeat_penalty", {"repeat_penalty": 1.1}),
        ("do_sample", {"do_sample": False}),
        ("messages", {"messages": [USER] * 10_001}),
        ("tools", {"tools": [TOOL] * 513}),
        ("messages.0.content", {"messages": [USER | {"content": [{"type": "text", "text": "a"}] * 10_001}]}),
        ("messages.0.tool_calls", {"messages": [{"role": "assistant", "tool_calls": [CALL] * 513}]}),
        ("messages.0.images", {"messages": [USER | {"images": ["aGk="]}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": "any"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}}),
        ("tools.0.type", {"tools": [{"type": "web_search"}]}),
    ],
)
def test_unsupported_fields_are_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    refused(param, **fields)


@pytest.mark.parametrize(
    ("given", "stops"), [("END", ("END",)), (["a", "b", "a"], ("a", "b")), ("", ()), ([], ()), (None, ())]
)
def test_stop_is_a_string_or_a_list(given: Any, stops: tuple[str, ...]) -> None:
    found = openai.read(body(stop=given))
    assert (found.ask.stop, found.ignored) == (stops, ())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guided_regex": "a+"}, 'response_format: {"type": "json_schema"'),
        ({"ebnf": "root ::= a"}, 'response_format: {"type": "json_schema"'),
        ({"guided_choice": ["a"]}, "an enum"),
        ({"documents": [{}]}, "one chat template"),
        ({"max_length": 5}, "write max_tokens"),
        ({"n": 2}, "send the request again"),
        ({"logit_bias": {"7": 1}}, "spec.agent.lenient: true"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(fields: dict[str, Any], message: str) -> None:
    assert message in str(refused(next(iter(fields)), **fields))


def test_a_lenient_job_lists_pictures_that_it_ignores() -> None:
    found = openai.read(body(messages=[USER | {"images": ["aGk="]}]), lenient=True)
    assert found.ignored == ("messages.images",)
    assert openai.read(body(messages=[USER | {"images": []}])).ignored == ()


def test_a_lenient_job_ignores_and_lists_what_is_not_applied() -> None:
    fields = {"response_format": {"type": "json_object"}, "n": 3, "seed": 7, "regex": "a+"}
    found = openai.read(body(**fields), lenient=True)
    assert sorted(found.ignored) == sorted(fields)
    assert found.ask == replace(openai.read(body()).ask, must_think=False)


def test_lenient_job_takes_an_effort_the_template_knows() -> None:
    found = openai.read(body(reasoning_effort="low", chat_template_kwargs={"documents": []}), lenient=True)
    assert (found.ask.effort, found.ask.must_think) == ("low", False)
    assert found.ignored == ("chat_template_kwargs.documents",)


def test_a_lenient_job_still_refuses_invalid_values() -> None:
    for fields in ({"max_tokens": "5"}, {"stop": 7}, {"messages": []}):
        with pytest.raises(GatewayError):
            openai.read(body(**fields), lenient=True)


def test_a_seed_is_listed_and_not_applied() -> None:
    assert openai.read(body(seed=7)).ignored == ("seed",)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"parallel_tool_calls": False}, ("parallel_tool_calls",)),
        ({"parallel_tool_calls": True, "return_token_ids": False, "include_reasoning": True}, ()),
        ({"return_token_ids": True, "include_reasoning": False}, ("return_token_ids", "include_reasoning")),
        ({"tempreature": 0.2, "max_token": 5, "something_new": None}, ("tempreature", "max_token")),
        ({"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "flex"}, ()),
    ],
)
def test_requested_output_that_no_answer_has_is_listed(
    fields: dict[str, Any], names: tuple[str, ...]
) -> None:
    for lenient in (False, True):
        assert openai.read(body(**fields), lenient=lenient).ignored == names


def test_the_list_of_ignored_names_is_bounded() -> None:
    many = {f"field_{number}": number for number in range(10_000)}
    for asked in (body(**many), body(chat_template_kwargs=many)):
        assert len(openai.read(asked, lenient=True).ignored) == MAX_IGNORED + 1


def test_sampling_that_differs_from_the_job_s_is_named() -> None:
    job = Sampling(temperature=1.0, top_p=0.9, max_tokens=9)
    ask = openai.read(body(temperature=0, top_p=0.9)).ask
    assert ask.overruled(job) == ["temperature"]
    assert ask.overruled(replace(job, temperature=0.0)) == []
    assert openai.read(body()).ask.overruled(job) == []
    both = {"temperature": 0.7, "top_p": 1.0}
    for read in (
        messages.read({"messages": [USER], "max_tokens": 5} | both),
        completions.read({"prompt": "x"} | both),
        responses.read({"input": "x"} | both, earlier=lambda _: []),
    ):
        assert read.ask.overruled(job) == ["temperature", "top_p"]


def test_pictures_are_refused_as_unsupported_content() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    error = refused("messages.0.content.0.type", messages=[{"role": "user", "content": [picture]}])
    assert error.code == "unsupported_content"
    assert error.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "arguments", ["{oops", "[1]", "7", "[" * 100_000, '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}']
)
def test_calls_that_nobody_can_read_are_refused(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    refused(
        "messages.0.tool_calls.0.function.arguments",
        messages=[{"role": "assistant", "content": "", "tool_calls": [call]}],
    )


@pytest.mark.parametrize("document", [None, [], "text", 7])
def test_a_body_that_is_not_an_object_is_refused(document: object) -> None:
    with pytest.raises(GatewayError):
        openai.read(document)


def answered(*, calls: bool) -> Completion:
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    found: list[Call] = []
    if calls:
        function = {"name": "look_up", "arguments": "{}"}
        message["tool_calls"] = [
            {"id": f"call-0-{i}", "type": "function", "function": function} for i in (0, 1)
        ]
        found = [Call("", "look_up", {})] * 2
    else:
        message["content"] = "gold"
    turn = Turn(
        index=0,
        prompt_tokens=10,
        cached_tokens=4,
        sampled_tokens=3,
        finish_reason="stop",
        policy_version=version(5),
    )
    return Completion(0, message, found, "tool_calls" if calls else "stop", turn, 1)


def test_an_answer_with_calls() -> None:
    request = openai.read(body(model="gpt-oss"))
    answer = openai.completion(request, answered(calls=True), "t0-1")
    assert answer["model"] == "gpt-oss"
    assert answer["system_fingerprint"] == "policy-0.5"
    [choice] = answer["choices"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    assert answer["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


@pytest.mark.parametrize("calls", [True, False])
def test_a_stream_adds_up_to_the_answer(calls: bool) -> None:
    request = openai.read(body(stream=True, stream_options={"include_usage": True}))
    whole = openai.completion(request, answered(calls=calls), "t0-1")
    chunks = list(openai.chunks(request, answered(calls=calls), "t0-1"))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "hm"
    called = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in called] == list(range(len(called)))
    assert [{k: v for k, v in call.items() if k != "index"} for call in called] == message.get(
        "tool_calls", []
    )
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == whole["choices"][0]["finish_reason"]
    without = list(openai.chunks(openai.read(body(stream=True)), answered(calls=calls), "t0-1"))
    assert all("usage" not in chunk for chunk in without)
    assert len(without) == len(chunks) - 1
