"""Errors name the field as the client wrote it, in each protocol and under each of its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from open_rollout import USER, rig
from scripted_model import ANSWER
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.engines.vllm import SchemaRefusedError
from headway_coordinator.gateway import server as served
from headway_coordinator.gateway.fields import STOPS
from headway_coordinator.trajectory.render import choose

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
RESPONSES, COMPLETIONS = "/v1/responses", "/v1/completions"
REQUESTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    MESSAGES: {"messages": [USER], "max_tokens": 50},
    RESPONSES: {"input": "What is x?"},
    COMPLETIONS: {"prompt": "What is x?"},
}
"""Route -> its smallest request."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


async def refused(r: Any, path: str, fields: dict[str, Any]) -> tuple[str, str]:
    """Send a request that is refused. Returns the field and the message of the error."""
    status, answer = await r.post(path, REQUESTS[path] | fields)
    assert status == 400, answer
    error = answer["error"]
    assert error["message"].startswith(error["param"])
    return error["param"], error["message"]


STOP_FIELDS = [
    (CHAT, "stop"),
    (CHAT, "stop_words"),
    (CHAT, "options.stop"),
    (MESSAGES, "stop_sequences"),
    (COMPLETIONS, "stop"),
    (COMPLETIONS, "stop_words"),
    (COMPLETIONS, "options.stop"),
]


def written(name: str, strings: Any) -> dict[str, Any]:
    return {"options": {"stop": strings}} if name == "options.stop" else {name: strings}


@pytest.mark.parametrize(("path", "name"), STOP_FIELDS)
async def test_an_error_about_a_stop_string_names_its_field(tok: Any, path: str, name: str) -> None:
    async with rig(tok, ANSWER) as r:
        for strings in (["x"] * (STOPS + 1), 7):
            assert (await refused(r, path, written(name, strings)))[0] == name
        for strings in ([""], ["x" * 201], [None]):
            assert (await refused(r, path, written(name, strings)))[0] == f"{name}.0"
        if path != COMPLETIONS:  # a plain completion has no tags of a chat template
            param, message = await refused(r, path, written(name, ["Observation:", "think"]))
            assert param == name
            assert "'<think>'" in message
        assert r.model.requests == []
        assert (await r.post(path, REQUESTS[path] | written(name, ["Observation:"])))[0] == 200


async def test_too_many_stop_strings_name_a_field_that_was_sent(tok: Any) -> None:
    many = [f"line {n}" for n in range(STOPS)]
    async with rig(tok) as r:
        for path in (CHAT, COMPLETIONS):
            fields = {"stop_words": many, "options": {"stop": "END"}}
            assert (await refused(r, path, fields))[0] == "stop_words"
            assert (await refused(r, path, fields | {"stop": "FIN"}))[0] == "stop"


@pytest.mark.parametrize("name", ["stop", "stop_sequences", "stop_words"])
async def test_responses_have_no_stop_strings(tok: Any, name: str) -> None:
    async with rig(tok) as r:
        assert (await refused(r, RESPONSES, {name: ["think"]}))[0] == name


@pytest.mark.parametrize(
    ("path", "name", "fields"),
    [
        (CHAT, "response_format", {"response_format": {"type": "json_object"}}),
        (CHAT, "guided_json", {"guided_json": SCHEMA}),
        (MESSAGES, "output_config.format", {"output_config": {"format": FORMAT}}),
        (MESSAGES, "output_format", {"output_format": FORMAT}),
        (RESPONSES, "text.format", {"text": {"format": FORMAT}}),
        (COMPLETIONS, "json_schema", {"json_schema": SCHEMA}),
    ],
)
async def test_a_schema_that_no_server_accepts_is_named(
    tok: Any, path: str, name: str, fields: dict[str, Any]
) -> None:
    async with rig(tok) as r:
        r.model.fault = SchemaRefusedError("no such grammar")
        assert (await refused(r, path, fields))[0] == name


CONVERSATIONS = {CHAT: "messages", MESSAGES: "messages", RESPONSES: "input", COMPLETIONS: "prompt"}


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_conversation_that_does_not_fit_is_named(
    tok: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "word " * 500
    name = CONVERSATIONS[path]
    fields = {name: [USER | {"content": long}] if name == "messages" else long}
    async with rig(tok, context=20) as r:
        for _ in range(2):
            status, answer = await r.post(path, REQUESTS[path] | fields)
            error = answer["error"]
            assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", name)
            monkeypatch.setattr(served, "MAX_BODY", 1000)  # the second body is too long to be read


STRICT = "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"


async def test_a_conversation_that_the_template_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("open_rollout.choose", lambda tok, _: choose(tok, "unknown"))
    async with rig(tokenizer(tmp_path, STRICT + QWEN3_TEMPLATE)) as r:
        for path, fields in (
            (CHAT, {"messages": [USER | {"content": "no"}]}),
            (MESSAGES, {"messages": [USER | {"content": "no"}]}),
            (RESPONSES, {"input": "no"}),
        ):
            status, answer = await r.post(path, REQUESTS[path] | fields)
            assert (status, answer["error"]["code"]) == (400, "unrenderable")
            assert answer["error"]["param"] == CONVERSATIONS[path]


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        (CHAT, "max_tokens"),
        (MESSAGES, "max_tokens"),
        (RESPONSES, "max_output_tokens"),
        (COMPLETIONS, "max_tokens"),
    ],
)
async def test_an_episode_without_tokens_left_names_the_limit(tok: Any, path: str, limit: str) -> None:
    async with rig(tok) as r:
        r.rollout.session.allowance.limit = 0
        status, answer = await r.post(path, REQUESTS[path])
        assert (status, answer["error"]["code"]) == (400, "episode_token_limit_reached")
        assert answer["error"]["param"] == limit
