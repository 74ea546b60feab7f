"""Requests for turns as any client might send them: valid, randomly damaged, or very large."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from typing import Any

from evil_replies import VALUES, changed
from open_rollout import ARN, TOOLS, USER

from headway_coordinator.gateway import completions, messages, openai, responses

SCHEMA: dict[str, Any] = {
    "$defs": {"Metal": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}},
    "type": "object",
    "properties": {
        "kind": {"enum": ["gold", "lead"], "title": "Kind"},
        "grams": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Metal"}, "maxItems": 3},
    },
    "required": ["kind"],
    "additionalProperties": False,
}
HELD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "/v1/messages/count_tokens": {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    "/v1/responses": {"text": {"format": {"type": "json_schema", "name": "metal", "schema": SCHEMA}}},
}
"""Fields of a request whose answer must follow `SCHEMA`. They replace its tools."""
EPISODE = "t0-000009-0-0"
CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"key": "x"}'}}
PROMPT: dict[str, Any] = {
    "model": "default",
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c", "name": "look_up", "input": {"key": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": "gold"}],
                    "is_error": False,
                },
                {"type": "text", "text": "And?"},
            ],
        },
    ],
    "tools": [{"name": "look_up", "description": "Look.", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "look_up"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
GOOD: dict[str, Any] = {
    "/v1/chat/completions": {
        "model": "default",
        "messages": [
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
            {
                "role": "tool",
                "tool_call_id": "c",
                "content": [{"type": "text", "text": "gold"}],
                "name": "look_up",
            },
        ],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "look_up"}},
        "max_tokens": 5,
        "temperature": 1.0,
        "stream": False,
        "stream_options": {"include_usage": True},
        "stop": ["END", "Observation:"],
        "logprobs": True,
        "seed": 7,
        "reasoning_effort": None,
        "chat_template_kwargs": {},
    },
    "/v1/completions": {
        "model": "default",
        "prompt": "Question: which metal?",
        "max_tokens": 5,
        "temperature": 1.0,
        "stream": False,
        "stop": ["END", "Observation:"],
        "logprobs": 1,
        "seed": 7,
        "response_format": {"type": "json_schema", "json_schema": {"name": "metal", "schema": SCHEMA}},
    },
    "/v1/messages": PROMPT
    | {
        "max_tokens": 5,
        "stop_sequences": ["END"],
        "temperature": 1.0,
        "stream": False,
    },
    "/v1/messages/count_tokens": PROMPT,
    "/v1/responses": {
        "model": "default",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "What is x?"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": '{"key": "x"}'},
            {"type": "function_call_output", "call_id": "c", "output": "gold"},
        ],
        "tools": [{"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "function", "name": "look_up"},
        "max_output_tokens": 5,
        "temperature": 1.0,
        "stream": False,
        "reasoning": {"effort": None},
        "text": {"format": {"type": "text"}},
    },
    "/v1/tools/look_up": {"key": "x", "more": {"deep": [1, 2.5, None]}},
    "/complete-rollout": {
        "JobArn": ARN,
        "TrajectoryId": EPISODE,
        "Status": "ready",
        "ClientToken": "c",
        "ErrorMessage": "m",
    },
    "/update-reward": {
        "JobArn": ARN,
        "TrajectoryId": EPISODE,
        "Rewards": [0.5],
        "Metrics": {"accuracy": 1.0},
        "ClientToken": "c",
    },
}
HEADERS: tuple[dict[str, str], ...] = (
    *({}, {"Content-Type": "text/plain; charset=utf-7"}, {"X-Stainless-Retry-Count": "9" * 99}),
    *({"X-Amzn-SageMaker-Job-Arn": "x" * 5000}, {"X-Amzn-SageMaker-Trajectory-Id": "a.b.c" * 500}),
    *({"Content-Encoding": "gzip"}, {"Content-Encoding": "deflate"}, {"Authorization": "Bearer " * 100}),
    *({"Expect": "100-continue"}, {"Expect": "what"}, {"Accept-Encoding": "br;q=x"}),
)

KNOWN: dict[str, Any] = {
    "/v1/chat/completions": openai.WITHOUT_EFFECT,
    "/v1/completions": completions.WITHOUT_EFFECT,
    "/v1/messages": messages.WITHOUT_EFFECT,
    "/v1/messages/count_tokens": messages.WITHOUT_EFFECT,
    "/v1/responses": responses.WITHOUT_EFFECT,
}
"""Fields that the gateway knows but does not apply, by path."""


CROWD = {f"field_{number}": number for number in range(300)}
CROWDED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"chat_template_kwargs": CROWD},
    "/v1/completions": CROWD,
    "/v1/messages": {"output_config": CROWD},
    "/v1/responses": CROWD,
}
"""Fields with more names than a record can hold, by path."""


def held(path: str) -> dict[str, Any]:
    """A valid request whose answer must follow `SCHEMA`."""
    kept = {name: value for name, value in GOOD[path].items() if name not in ("tools", "tool_choice")}
    return copy.deepcopy(kept | HELD[path])


def bent(path: str, chance: random.Random) -> tuple[bytes, dict[str, str]]:
    """A request's body and headers, with at most a few random changes to a valid request."""
    body = held(path) if path in HELD and chance.random() < 0.3 else copy.deepcopy(GOOD[path])
    for _ in range(chance.randint(0, 3)):
        body = changed(body, chance)
    if path in KNOWN and isinstance(body, dict) and chance.random() < 0.3:
        body = body | {chance.choice(list(KNOWN[path])): chance.choice(VALUES)}
    if path in CROWDED and isinstance(body, dict) and chance.random() < 0.1:
        body = body | CROWDED[path]
    data = json.dumps(body).encode()
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data) + 1)]
    headers = chance.choice(HEADERS) if chance.random() < 0.3 else {}
    packed = headers.get("Content-Encoding") == "gzip" and chance.random() < 0.5
    return (gzip.compress(data) if packed else data), headers


def _wide(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"enum": [n, n + 1]} for n in range(count)}}


def _deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"anyOf": [found, {"type": "array", "items": found}]}
    return found


SCHEMAS: tuple[Callable[[], Any], ...] = (
    lambda: _wide(100),
    lambda: _wide(5000),
    lambda: _deep(7),
    lambda: _deep(12),
    lambda: {"enum": [f"value {n}" for n in range(500)]},
    lambda: {
        "$defs": {f"D{n}": {"$ref": f"#/$defs/D{(n + 1) % 900}"} for n in range(900)},
        "$ref": "#/$defs/D0",
    },
    lambda: {"type": "string", "pattern": "(a+)+" * 1000},
    lambda: {"type": "array", "maxItems": 10**9, "items": {"type": "string", "maxLength": 10**9}},
    lambda: {"enum": ["x" * 100_000]},
)
"""Schemas that take long to read, or would take long to compile."""
WORDS = ("a", "🦊", "ab ", " ", "<tool_call>", "x" * 40 + "\n")
"""Texts that are repeated to make megabytes of text."""


def _tool(path: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """A tool in the form that the API at `path` uses."""
    function = {"name": "look_up", "parameters": parameters}
    if path == "/v1/chat/completions":
        return {"type": "function", "function": function}
    if path == "/v1/responses":
        return {"type": "function", **function}
    return {"name": "look_up", "input_schema": parameters}


def _chats() -> tuple[list[dict[str, Any]], ...]:
    called = {"function": {"name": "f", "arguments": "{}"}}
    numbers = json.dumps({"a": list(range(12_000))})
    long = {"function": {"name": "f", "arguments": numbers}}
    return (
        [USER, *[{"role": "assistant", "tool_calls": [called] * 480}] * 41, USER],
        [{"role": "user", "content": [{"type": "text", "text": "a"}] * 9_999}] * 3,
        [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}] * 9_999}, USER],
        [{"role": "user", "content": "a", **{f"x{n}": 1 for n in range(18)}}] * 4_700,
        [{"role": "user", "content": "a", "name": "n"}] * 10_000,
        [USER, {"role": "assistant", "tool_calls": [long] * 8}, USER],
    )


def _blocks() -> tuple[list[dict[str, Any]], ...]:
    used = {"type": "tool_use", "id": "c", "name": "look_up", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a"}] * 10}
    return (
        [USER, *[{"role": "assistant", "content": [used] * 500}, USER] * 30],
        [{"role": "user", "content": [given] * 2_700}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}] * 9_999}] * 3,
        [{"role": "user", "content": "a"}] * 10_000,
    )


def _items() -> tuple[list[dict[str, Any]], ...]:
    thought = [{"type": "summary_text", "text": "a"}] * 9
    called = {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": "{}"}
    own = {"type": "message", "role": "assistant", "content": "a" * 500}
    return (
        [USER, *[{"type": "reasoning", "summary": thought, "content": thought}] * 1_500, USER],
        [USER, *[called] * 9_000],
        [USER, *[own] * 9_000, USER],
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 9_999}] * 3,
        [{"type": "function_call_output", "call_id": "c", "output": "a"}] * 9_000,
    )


CROWDS: dict[str, Callable[[], tuple[list[dict[str, Any]], ...]]] = {
    "/v1/chat/completions": _chats,
    "/v1/messages": _blocks,
    "/v1/messages/count_tokens": _blocks,
    "/v1/responses": _items,
}
"""By path: conversations with nearly as many values as a request may have."""


def crowded(path: str, chance: random.Random) -> bytes:
    """A valid request with nearly as many values as it may have."""
    body = copy.deepcopy(GOOD[path]) | {"tool_choice": {"type": "none"}}
    if chance.random() < 0.2:
        wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(30_000)}}
        return json.dumps(body | {"tools": [_tool(path, wide)]}).encode()
    name = "input" if path == "/v1/responses" else "messages"
    return json.dumps(body | {name: chance.choice(CROWDS[path]())}).encode()


def heavy(path: str, chance: random.Random, size: int) -> bytes:
    """A valid request that is large: about `size` bytes of text, many values, or a large schema."""
    kind = chance.random()
    if path in CROWDS and kind < 0.4:
        return crowded(path, chance)
    body = copy.deepcopy(GOOD[path])
    if kind < 0.7:
        body = held(path) if path in HELD else body
        schema = chance.choice(SCHEMAS)()
        return json.dumps(_with_schema(body, schema)).encode()
    word = chance.choice(WORDS)
    text = word * (size // len(word.encode()))
    if path == "/v1/completions":
        body["prompt"] = [chance.randrange(300)] * 190_000 if chance.random() < 0.3 else text
    elif path == "/v1/responses":
        body["input"] = [{"role": "user", "content": text}]
    else:
        body["messages"] = [{"role": "user", "content": text}]
    return json.dumps(body, ensure_ascii=False).encode()


def _with_schema(value: Any, schema: Any) -> Any:
    """A copy of `value`, in which `schema` replaces `SCHEMA`."""
    if value == SCHEMA:
        return schema
    if isinstance(value, dict):
        return {name: _with_schema(one, schema) for name, one in value.items()}
    return value
