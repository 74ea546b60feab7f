"""Reading an endpoint's answers and errors, writing a conversation for it, and how long to wait."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_coordinator.endpoint.pace import (
    FIRST_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    asked_for,
    backoff,
    pause,
)
from headway_coordinator.endpoint.refused import RefusalKind, judge
from headway_coordinator.endpoint.reply import (
    MAX_CALLS,
    MAX_DEPTH,
    EndpointReplyError,
    Reply,
    UnreadableReplyError,
    read,
)
from headway_coordinator.endpoint.wire import DROPPABLE, Dialect, conversation
from headway_coordinator.gateway.asks import Ask, Force, Sampling, Session
from headway_coordinator.gateway.core import assistant
from headway_coordinator.trajectory.call_ids import call_id, identified

USER = {"role": "user", "content": "What is x?"}
LOOK_UP = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def answer(message: Any, finish: Any = "stop", **other: Any) -> bytes:
    return json.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": finish}]} | other
    ).encode()


def calling(*functions: Any) -> Reply:
    calls = [{"id": f"c{n}", "type": "function", "function": f} for n, f in enumerate(functions)]
    return read(answer({"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"))


def test_an_answer_is_text_calls_reasoning_and_cost() -> None:
    message = {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "x is a key",
        "tool_calls": [{"id": "a", "function": {"name": "look_up", "arguments": '{"key": "x"}'}}],
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    found = read(answer(message, "tool_calls", usage=usage))
    assert (found.parsed.content, found.parsed.reasoning) == ("I look.", "x is a key")
    [call] = found.parsed.calls
    assert (call.name, call.arguments, call.problem) == ("look_up", {"key": "x"}, None)
    assert (found.prompt_tokens, found.cached_tokens, found.sampled_tokens) == (7, 4, 3)
    assert (found.counted, found.finish_reason, found.reasoning) == (True, "stop", "reasoning_content")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"key": "x"', "arguments are not JSON"),
        ("[1]", "arguments are not an object"),
        ('{"n": NaN}', "NaN is not a finite number"),
        ('{"n": ' + "9" * 5000 + "}", "arguments are not JSON"),
        ('{"key": "\\ud83d"}', "cannot be written as JSON"),
        ('{"a": ' * MAX_DEPTH + "{}" + "}" * MAX_DEPTH, "nested more than"),
        ('{"a": ' * 50_000 + "{}" + "}" * 50_000, "nested more than 64 levels"),
        (7, "arguments are not an object"),
    ],
)
def test_unexecutable_arguments_are_the_models_mistake(arguments: Any, problem: str) -> None:
    found = calling({"name": "look_up", "arguments": arguments})
    [call] = found.parsed.calls
    assert call.arguments is None
    assert problem in str(call.problem)
    message = assistant(identified(found.parsed, 0, ()), True)
    assert "tool_calls" not in message
    assert "look_up" in message["content"], "what the model wrote stays in its text"
    json.dumps(message, ensure_ascii=False).encode()


@pytest.mark.parametrize("arguments", ["", "  ", None, {}, "{}"])
def test_a_tool_without_parameters_may_be_called_with_nothing(arguments: Any) -> None:
    [call] = calling({"name": "end", "arguments": arguments}).parsed.calls
    assert (call.arguments, call.problem) == ({}, None)


def test_call_without_function_or_name_cannot_be_carried_out() -> None:
    found = read(answer({"content": "", "tool_calls": ["look_up", {"function": {"arguments": "{}"}}]}))
    assert [call.problem for call in found.parsed.calls] == [
        "it names no function",
        "the name is not a string",
    ]


def test_calls_beyond_the_limit_become_one_unreadable_call() -> None:
    found = calling(*[{"name": "look_up", "arguments": "{}"}] * 5000)
    good = [call for call in found.parsed.calls if call.problem is None]
    assert len(good) == MAX_CALLS
    assert "5000 calls" in str(found.parsed.calls[-1].problem)
    assert len(found.parsed.calls) == MAX_CALLS + 1


@pytest.mark.parametrize(
    ("reason", "means"),
    [
        ("stop", "stop"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
        ("STOP", "stop"),
        ("eos_token", "stop"),
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("content_filter", "content_filter"),
        ("RECITATION", "content_filter"),
        ("model_context_window_exceeded_limit", "length"),
        ("incomplete", "length"),
        ("completed", "stop"),
        ("MALFORMED_FUNCTION_CALL", "stop"),
    ],
)
def test_each_finish_reason_is_read(reason: str, means: str) -> None:
    assert read(answer({"content": "x"}, reason)).finish_reason == means


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": None, "refusal": "I cannot."}, "I cannot.", None),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", None),
        ({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "b"}]}, "b", "hm"),
        ({"content": "a", "reasoning": "hm"}, "a", "hm"),
        ({"content": "half \ud83d a pair"}, "half ? a pair", None),
        ({}, "", None),
    ],
)
def test_each_form_of_text_and_reasoning_is_read(message: Any, text: str, reasoning: str | None) -> None:
    found = read(answer(message)).parsed
    assert (found.content, found.reasoning) == (text, reasoning)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"<!DOCTYPE html><html>Sign in</html>", "an HTML page"),
        (b'data: {"choices": []}\n\n', "a stream"),
        (b'{"choices": [{"message": {"content": "I', "not complete JSON"),
        (b'{"choices": []}', "no choices"),
        (b"{}", "no choices"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"choices": [{"text": "old"}]}', "no message"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 90_000, "nested more than 64 levels"),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, "nested more than"),
        (answer({"content": 7}), "neither text nor a list"),
        (answer({"tool_calls": {}}), "not a list"),
        (answer({"content": "x"}, None), "may be cut short"),
        (answer({"content": "x"}, ""), "may be cut short"),
        (answer({"content": "x"}, "abort"), "may be cut short"),
        (answer({"content": "x"}, "network_error"), "may be cut short"),
    ],
)
def test_an_invalid_chat_completion_is_refused_with_a_reason(data: bytes, says: str) -> None:
    with pytest.raises(UnreadableReplyError, match=says):
        read(data)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"code": 429, "message": "slow down"}}, 429),
        ({"error": {"code": "boom"}}, 500),
        ({"error": "out of memory"}, 500),
        ({"choices": [{"error": {"code": 502}, "finish_reason": "error", "message": {}}]}, 502),
    ],
)
def test_an_error_in_a_body_with_status_200_is_an_error(body: Any, status: int) -> None:
    with pytest.raises(EndpointReplyError) as caught:
        read(json.dumps(body).encode())
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        (None, (0, 0, 0, False)),
        ({}, (0, 0, 0, False)),
        ("many", (0, 0, 0, False)),
        ({"prompt_tokens": -1, "completion_tokens": 2}, (0, 0, 2, False)),
        ({"prompt_tokens": True, "completion_tokens": 2.5}, (0, 0, 0, False)),
        ({"prompt_tokens": 3, "completion_tokens": 0}, (3, 0, 0, True)),
        ({"prompt_tokens": 3, "completion_tokens": 10**19}, (3, 0, 0, False)),
        ({"prompt_tokens": 10**9, "completion_tokens": 1}, (10**9, 0, 1, True)),
        ({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}, (3, 0, 1, True)),
        (
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
            (3, 3, 1, True),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115}, (10, 0, 105, True)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, (10, 0, 5, True)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 9}, (10, 0, 5, True)),
        ({"prompt_tokens": 10, "total_tokens": 115}, (10, 0, 0, False)),
    ],
)
def test_unreported_usage_counts_as_zero_and_is_marked(usage: Any, found: Any) -> None:
    reply = read(answer({"content": "x"}, usage=usage))
    assert (reply.prompt_tokens, reply.cached_tokens, reply.sampled_tokens, reply.counted) == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.sampled_from(["choices", "message", "content", "tool_calls", "function", "error", "usage"])


@given(
    st.recursive(JSON, lambda inner: st.dictionaries(FIELDS, inner, max_size=4) | st.lists(inner, max_size=2))
)
def test_any_json_is_read_or_refused(body: Any) -> None:
    for wrapped in (body, {"choices": [body]}, {"choices": [{"message": body, "finish_reason": "stop"}]}):
        try:
            found = read(json.dumps(wrapped).encode())
        except (UnreadableReplyError, EndpointReplyError):
            continue
        json.dumps(assistant(found.parsed, True), ensure_ascii=False).encode()


OPENAI_LIMIT = (
    "Rate limit reached for default-model in organization org-1 on requests per min. Limit: 3 / min. Please "
    "try again in 20s. Contact us if you continue to have issues. Please add a payment method to your "
    "account to increase your rate limit. Visit https://platform.openai.com/account/billing to add one."
)
GEMINI_LIMIT = (
    "You exceeded your current quota, please check your plan and billing details. * Quota exceeded for "
    "metric: generate_content_free_tier_requests, limit: 5. Please retry in 22.4s."
)
"""Gemini's two rate limits pass by themselves, though their messages name quota and billing."""
NO_SUCH_TOOL = "The model called the function 'foo', which does not exist"


def test_a_rate_limit_that_names_its_end_is_waited_for() -> None:
    used_up = error("You exceeded your current quota")
    assert judge(429, {}, used_up, []).kind is RefusalKind.FAULT
    found = judge(429, {"Retry-After": "7"}, used_up, [])
    assert (found.kind, found.wait) == (RefusalKind.BUSY, 7)
    gone = error("You exceeded your current quota", code="insufficient_quota")
    assert judge(429, {"Retry-After": "7"}, gone, []).kind is RefusalKind.FAULT


def error(message: str, **fields: Any) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error"} | fields})


@pytest.mark.parametrize(
    ("status", "text", "kind", "name"),
    [
        (401, error("Incorrect API key provided"), RefusalKind.FAULT, "secretRef"),
        (403, "<html>forbidden</html>", RefusalKind.FAULT, "secretRef"),
        (402, error("Insufficient credits"), RefusalKind.FAULT, "secretRef"),
        (
            429,
            error("You exceeded your current quota", code="insufficient_quota"),
            RefusalKind.FAULT,
            "secretRef",
        ),
        (429, error("Rate limit reached for requests", code="rate_limit_exceeded"), RefusalKind.BUSY, ""),
        (429, error(OPENAI_LIMIT, code="rate_limit_exceeded"), RefusalKind.BUSY, ""),
        (429, error(GEMINI_LIMIT, code=429, status="RESOURCE_EXHAUSTED"), RefusalKind.BUSY, ""),
        (429, error("Your credit balance is too low"), RefusalKind.FAULT, "secretRef"),
        (429, error("Billing hard limit", code="billing_hard_limit_reached"), RefusalKind.FAULT, "secretRef"),
        (403, error("Your input was flagged by moderation"), RefusalKind.FILTERED, ""),
        (400, error(NO_SUCH_TOOL), RefusalKind.REFUSED, "url"),
        (503, "upstream connect error", RefusalKind.BUSY, ""),
        (529, error("Overloaded", type="overloaded_error"), RefusalKind.BUSY, ""),
        (502, "<html>bad gateway</html>", RefusalKind.BUSY, ""),
        (500, error("EngineCore encountered an issue"), RefusalKind.BROKEN, ""),
        (408, "", RefusalKind.BROKEN, ""),
        (404, error("The model `x` does not exist.", code=404, param="model"), RefusalKind.FAULT, "model"),
        (404, error("The model `x` does not exist", code="model_not_found"), RefusalKind.FAULT, "model"),
        (404, error('model "x" not found, try pulling it first'), RefusalKind.FAULT, "model"),
        (400, error("nobody/x is not a valid model ID"), RefusalKind.FAULT, "model"),
        (404, '{"detail": "Not Found"}', RefusalKind.FAULT, "url"),
        (404, "404 page not found", RefusalKind.FAULT, "url"),
        (405, '{"detail": "Method Not Allowed"}', RefusalKind.FAULT, "url"),
        (301, "", RefusalKind.FAULT, "url"),
        (
            400,
            error(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                "'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            ),
            RefusalKind.DROP,
            "max_tokens",
        ),
        (
            400,
            error(
                "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) "
                "value is supported.",
                param="temperature",
            ),
            RefusalKind.DROP,
            "temperature",
        ),
        (400, error("Unrecognized request argument supplied: seed"), RefusalKind.DROP, "seed"),
        (
            422,
            json.dumps(
                {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra", "input": 3}]}
            ),
            RefusalKind.DROP,
            "seed",
        ),
        (422, json.dumps([{"error": {"message": "Unknown name top_p"}}]), RefusalKind.DROP, "top_p"),
        (
            400,
            error(
                "Unknown parameter: 'messages[1].reasoning_content'", param="messages[1].reasoning_content"
            ),
            RefusalKind.DROP,
            "reasoning_content",
        ),
        (
            400,
            error("This model's maximum context length is 8192 tokens. Please reduce the length."),
            RefusalKind.FULL,
            "",
        ),
        (
            400,
            error(
                "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context "
                "length is 1024 tokens and your request has 900 input tokens"
            ),
            RefusalKind.FULL,
            "",
        ),
        (400, error("too long", code="context_length_exceeded"), RefusalKind.FULL, ""),
        (413, "", RefusalKind.FULL, ""),
        (400, error("filtered", code="content_filter"), RefusalKind.FILTERED, ""),
        (
            400,
            error('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
            RefusalKind.REFUSED,
            "url",
        ),
        (400, "", RefusalKind.REFUSED, "url"),
        (418, "[]", RefusalKind.REFUSED, "url"),
    ],
)
def test_each_error_has_its_kind_and_name(status: int, text: str, kind: RefusalKind, name: str) -> None:
    sent = [parameter for parameter in DROPPABLE if parameter != "tool_choice"]
    found = judge(status, {}, text, sent)
    assert (found.kind, found.name) == (kind, name)
    assert found.message.startswith(str(status))


@pytest.mark.parametrize("loc", [5, None, "body.seed", {"a": 1}])
def test_an_error_with_loc_of_any_type_is_read(loc: Any) -> None:
    """An error whose `loc` was not a list once ended the whole job."""
    found = judge(422, {}, json.dumps({"detail": [{"loc": loc, "msg": "Extra"}]}), DROPPABLE)
    assert found.kind in (RefusalKind.REFUSED, RefusalKind.DROP)
    assert "Extra" in found.message


def test_an_endpoints_error_can_be_stored() -> None:
    """JSON can spell half of a surrogate pair, which no status, report or log can hold."""
    found = judge(400, {}, '{"error": {"message": "no \\ud800 such\\u0000\\nthing"}}', ())
    found.message.encode()
    assert found.message.startswith("400 ")
    assert found.message.isprintable()


def test_only_the_beginning_of_an_error_is_searched() -> None:
    """Patterns with gaps take quadratic time. A search of 64 KiB would delay every candidate."""
    long = "prompt tokens " * 1000
    assert judge(400, {}, long + "exceed", ()).kind is RefusalKind.REFUSED
    assert judge(400, {}, "prompt tokens " + "x" * 1000 + "exceed", ()).kind is RefusalKind.FULL


@given(status=st.integers(300, 599), text=st.text(max_size=60) | JSON.map(json.dumps))
def test_every_error_is_classified(status: int, text: str) -> None:
    assert judge(status, {}, text, DROPPABLE).kind in RefusalKind


def body(dialect: Dialect, ask: Ask | None = None) -> dict[str, Any]:
    session = Session("e-x-000000-0-0", 5, Sampling(0.7, 0.9, 64))
    return dialect.body("m", session, ask or Ask([USER]), 0, bounded=True)


def test_request_carries_the_jobs_sampling_and_the_turns_seed() -> None:
    first = body(Dialect())
    assert first["seed"] == body(Dialect())["seed"] > 0
    assert (first["temperature"], first["top_p"], first["max_tokens"]) == (0.7, 0.9, 64)
    assert first["stream"] is False
    assert {"tools", "tool_choice", "logprobs"}.isdisjoint(first)
    assert body(Dialect(), Ask([USER], max_tokens=8))["max_tokens"] == 8
    assert body(Dialect(), Ask([USER], max_tokens=8000))["max_tokens"] == 64


@pytest.mark.parametrize(
    ("ask", "choice"),
    [
        (Ask([USER], [LOOK_UP]), None),
        (Ask([USER], [LOOK_UP], may_call=False), "none"),
        (Ask([USER], [LOOK_UP], force=Force()), "required"),
        (Ask([USER], [LOOK_UP], force=Force("f")), {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_a_request_says_whether_tools_may_be_called(ask: Ask, choice: Any) -> None:
    found = body(Dialect(), ask)
    assert found["tools"] == [LOOK_UP]
    assert found.get("tool_choice") == choice


def test_refused_field_is_dropped_and_bound_takes_its_other_name() -> None:
    dialect = Dialect()
    assert dialect.learn("seed", "unknown")
    assert not dialect.learn("seed", "unknown"), "a request that was under way tells nothing new"
    assert dialect.learn("max_tokens", "use max_completion_tokens")
    found = body(dialect)
    assert "seed" not in found
    assert found["max_completion_tokens"] == 64
    assert dialect.dropped == {"seed": "", "max_tokens": "max_completion_tokens"}
    assert dialect.learn("max_completion_tokens", "unknown")
    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(body(dialect))
    assert dialect.dropped["max_tokens"] == ""


def test_a_too_large_max_tokens_is_not_sent_under_another_name() -> None:
    dialect = Dialect()
    dialect.learn("max_tokens", "max_tokens is too large: this model supports at most 16 completion tokens")
    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(body(dialect))


def test_answers_to_unreadable_calls_are_user_messages() -> None:
    call = {"id": call_id(0, 1), "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    found = conversation(
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": call_id(0, 0), "content": "could not be read", "name": "x"},
            {"role": "tool", "tool_call_id": call_id(0, 1), "content": "gold", "name": "look_up"},
            {"role": "assistant", "content": "done"},
        ]
    )
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "user", "assistant"]
    assert found[1] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert found[2] == {"role": "tool", "tool_call_id": call_id(0, 1), "content": "gold"}
    assert found[3] == {"role": "user", "content": "could not be read"}


def test_reasoning_is_sent_back_under_its_original_name() -> None:
    messages = [USER, {"role": "assistant", "content": "a", "reasoning_content": "hm"}, USER]
    dialect = Dialect(reasoning="reasoning")
    assert body(dialect, Ask(messages))["messages"][1] == {
        "role": "assistant",
        "content": "a",
        "reasoning": "hm",
    }
    dialect.learn("reasoning", "extra fields are not permitted")
    assert body(dialect, Ask(messages))["messages"][1] == {"role": "assistant", "content": "a"}


NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)


def _date(seconds: float) -> str:
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Mon, 1 Jan 99999999999 00:00:00 GMT"}, None),
        ({"Retry-After": "Mon, 1 Jan 2020 00:00:00 +99999999999999999"}, None),
        ({"Retry-After": _date(30)}, 30.0),
        ({"Retry-After": _date(-30)}, 0.0),
        ({"Retry-After": _date(3630), "Date": _date(3600)}, 30.0),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
    ],
)
def test_the_wait_that_an_answer_asks_for_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_for(headers, lambda: NOW.timestamp()) == seconds


@given(asked=st.floats(0, 100), tries=st.integers(1, 100), chance=st.floats(0, 1))
def test_a_pause_is_at_least_as_long_as_requested(asked: float, tries: int, chance: float) -> None:
    found = pause(asked, tries, lambda: chance)
    assert asked <= found <= max(asked * 1.25, FIRST_PAUSE_SECONDS)
    assert tries == 1 or found >= FIRST_PAUSE_SECONDS / 2
    assert pause(None, tries, lambda: chance) == backoff(tries, lambda: chance)


@given(tries=st.integers(1, 10**6), chance=st.floats(0, 1))
def test_waits_double_up_to_a_limit(tries: int, chance: float) -> None:
    assert 0 < backoff(tries, lambda: chance) <= LAST_PAUSE_SECONDS
    assert backoff(2, lambda: chance) == 2 * backoff(1, lambda: chance)
