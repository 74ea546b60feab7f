"""The gateway against requests that are bent at random: no answer of 5xx, and none that hangs.

A failure names the seed: HOSTILE_SEED=n repeats it, HOSTILE_CASES=n bends more.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import os
import random
from typing import Any

import aiohttp
import pytest
from evil_replies import VALUES, changed
from memory import flat
from open_rollout import ARN, TOOLS, USER, a_rollout, rig
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway import bodies, messages, openai, responses
from headway_wire import contents

pytestmark = pytest.mark.hostile

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
CASES = int(os.environ.get("HOSTILE_CASES", "150"))
MOST = 64 * 1024 * 1024
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
"""What a request that is held to a schema says instead of its tools."""
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


NOT_OURS = {"Content-Encoding", "Expect"}
"""Headers that aiohttp refuses by itself, in its own words."""


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def held(path: str) -> dict[str, Any]:
    kept = {name: value for name, value in GOOD[path].items() if name not in ("tools", "tool_choice")}
    return copy.deepcopy(kept | HELD[path])


def bent(path: str, chance: random.Random) -> tuple[bytes, dict[str, str]]:
    """A request's body and headers, most often almost good."""
    body = held(path) if path in HELD and chance.random() < 0.3 else copy.deepcopy(GOOD[path])
    for _ in range(chance.randint(0, 3)):
        body = changed(body, chance)
    if path.endswith("completions") and isinstance(body, dict) and chance.random() < 0.3:
        body = body | {chance.choice(list(openai.WITHOUT_EFFECT)): chance.choice(VALUES)}
    if "responses" in path and isinstance(body, dict) and chance.random() < 0.3:
        body = body | {chance.choice(list(responses.WITHOUT_EFFECT)): chance.choice(VALUES)}
    if "messages" in path and isinstance(body, dict) and chance.random() < 0.3:
        body = body | {chance.choice(list(messages.WITHOUT_EFFECT)): chance.choice(VALUES)}
    data = json.dumps(body).encode()
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data) + 1)]
    headers = chance.choice(HEADERS) if chance.random() < 0.3 else {}
    packed = headers.get("Content-Encoding") == "gzip" and chance.random() < 0.5
    return (gzip.compress(data) if packed else data), headers


@pytest.mark.parametrize("path", GOOD)
async def test_no_request_is_answered_with_a_fault_of_ours(
    tok: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A deflated body that breaks off never ends, for aiohttp: the deadline ends it.
    monkeypatch.setattr(contents, "BODY_SECONDS", 1.0)
    monkeypatch.setattr(bodies, "CALL_SECONDS", 1.0)
    chance = random.Random(f"{SEED}/{path}")
    seen = set()
    async with rig(tok, context=4000) as r:
        await r.chat()  # what is loaded at the first turn is no request's cost
        with flat(MOST):
            for number in range(CASES):
                data, headers = bent(path, chance)
                at = f"HOSTILE_SEED={SEED}, request {number}: {data[:200]!r} {headers}"
                async with (
                    r.server.open(a_rollout(EPISODE), r.backend) as one,
                    asyncio.timeout(30),
                    # Of its own: what is no HTTP ends its connection.
                    aiohttp.ClientSession() as http,
                    http.post(f"{r.url}/e/{one.token}{path}", data=data, headers=headers) as answer,
                ):
                    said = await answer.text()
                    seen.add(answer.status)
                    assert answer.status < 500, f"{at}: {said[:500]}"
                    assert not one.faults, at
                    if answer.content_type == "text/event-stream":
                        assert answer.status == 200, at
                    elif answer.content_type != "application/json":
                        assert set(headers) & NOT_OURS, f"{at}: {said[:500]}"
                    elif answer.status >= 400:
                        assert json.loads(said)["error"]["code"], at
                        assert len(said) < 6000, at
    assert seen & {200, 409}, "some of them are good"
    assert 400 in seen


@pytest.mark.parametrize("path", GOOD)
async def test_the_requests_that_are_bent_are_good_before(tok: Any, path: str) -> None:
    async with rig(tok, context=4000) as r, r.server.open(a_rollout(EPISODE), r.backend) as r.rollout:
        if path == "/update-reward":
            await r.post("/complete-rollout", GOOD["/complete-rollout"])
        status, answer = await r.post(path, GOOD[path])
        assert status == 200, answer
