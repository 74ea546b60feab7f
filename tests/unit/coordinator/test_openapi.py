"""The gateway's OpenAPI document has every route, and every answer of the gateway conforms to it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from open_rollout import USER, rig
from scripted_model import CALL, MALFORMED
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway import openai, openapi
from headway_coordinator.gateway.server import GatewayServer

DOCUMENT: dict[str, Any] = json.loads(openapi.document())
ROUTES = {
    (method.upper(), path)
    for path, item in DOCUMENT["paths"].items()
    for method in ("get", "post")
    if method in item
}


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def schema_of(method: str, path: str, status: int) -> dict[str, Any]:
    """The document's schema of an answer, with the components that it refers to."""
    answers = DOCUMENT["paths"][path][method.lower()]["responses"]
    found: dict[str, Any] = answers[str(status) if str(status) in answers else f"{status // 100}XX"]
    return found["content"]["application/json"]["schema"] | {"components": DOCUMENT["components"]}


def test_the_document_has_every_route_below_both_addresses() -> None:
    served = {"": set[tuple[str, str]](), "/e/{token}": set[tuple[str, str]]()}
    for route in GatewayServer().app().router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        base = "/e/{token}" if path.startswith("/e/") else ""
        if route.method != "HEAD" and path != "/openapi.json":
            served[base].add((route.method, path.removeprefix(base)))
    assert served == {"": ROUTES, "/e/{token}": ROUTES}
    assert [server["url"] for server in DOCUMENT["servers"]] == ["/e/{token}", "/"]


def test_document_is_valid_and_lists_fields_without_effect(tok: Any) -> None:
    assert set(DOCUMENT["components"]["schemas"]["Body"]["properties"]) >= {*openai.WITHOUT_EFFECT}
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_the_document_needs_no_token(tok: Any) -> None:
    async with rig(tok) as r, r.http.get(f"{r.url}/openapi.json") as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert await answer.json() == DOCUMENT


GOOD: list[tuple[str, str, Any]] = [
    ("POST", "/v1/chat/completions", {"messages": [USER], "tools": "theirs"}),
    ("POST", "/chat/completions", {"messages": [USER], "logit_bias": {}, "n": 1}),
    ("POST", "/chat/completions", {"messages": [USER], "stop": "old", "logprobs": True}),
    ("POST", "/v1/messages", {"messages": [USER], "max_tokens": 5, "thinking": {"type": "adaptive"}}),
    ("POST", "/v1/messages/count_tokens", {"messages": [USER]}),
    ("POST", "/v1/responses", {"input": "hello", "instructions": "Be brief.", "max_output_tokens": 9}),
    ("POST", "/v1/completions", {"prompt": "hello", "logprobs": 0, "stop": ["END"], "max_tokens": 9}),
    ("POST", "/responses", {"input": "hello", "max_output_tokens": 9}),
    ("POST", "/completions", {"prompt": "hello", "max_tokens": 9}),
    *(("GET", f"{own}/models{name}", None) for own in ("/v1", "") for name in ("", "/{id}")),
    ("GET", "/v1/tools", None),
    ("POST", "/v1/tools/{name}", {"key": "x"}),
    ("POST", "/complete-rollout", {"Status": "ready", "ErrorMessage": None}),
    ("POST", "/update-reward", {"Rewards": [0.5], "Metrics": {"a": 1}, "ClientToken": 7}),
]
BAD: list[tuple[str, str, Any]] = [
    ("POST", "/v1/chat/completions", {"messages": [USER], "logit_bias": {"7": 1}}),
    ("POST", "/chat/completions", [1]),
    ("POST", "/v1/responses", {"input": "hello", "text": {"format": {"type": "json_schema"}}}),
    ("POST", "/v1/completions", {"prompt": ["a", "b"]}),
    ("POST", "/v1/completions", {"prompt": "a", "echo": True}),
    ("POST", "/v1/responses", {"input": "hello", "previous_response_id": "resp_no"}),
    ("POST", "/v1/messages", {"messages": [USER]}),
    ("POST", "/v1/messages", {"messages": [USER], "max_tokens": 5, "top_k": 7}),
    ("POST", "/v1/messages/count_tokens", {"messages": [USER], "tools": 7}),
    ("POST", "/v1/tools/{name}", "x"),
    ("POST", "/complete-rollout", {"Status": "maybe"}),
    ("POST", "/update-reward", {"Rewards": [7]}),
]


async def asked(r: Any, method: str, path: str, body: Any, base: str) -> tuple[int, Any]:
    url = base + path.format(name="look_up", id="any/name")
    async with r.http.request(method, url, data=None if body is None else json.dumps(body)) as answer:
        return answer.status, await answer.json()


async def test_each_answer_conforms_to_the_document(tok: Any) -> None:
    async with rig(tok, f"<think>hm</think>{CALL}", MALFORMED, "Gold.<|im_end|>") as r:
        for method, path, body in GOOD:
            if isinstance(body, dict) and body.get("tools") == "theirs":
                body = body | {"tools": list(r.rollout.tools)}
            status, answer = await asked(r, method, path, body, r.base)
            assert status == 200, answer
            jsonschema.validate(answer, schema_of(method, path, 200))
    assert {(method, path) for method, path, _ in GOOD} == ROUTES


async def test_each_refusal_conforms_to_the_document(tok: Any) -> None:
    async with rig(tok) as r:
        for method, path, body in BAD:
            status, answer = await asked(r, method, path, body, r.base)
            assert 400 <= status < 500, answer
            jsonschema.validate(answer, schema_of(method, path, status))
        for method, path in ROUTES:
            status, answer = await asked(r, method, path, {} if method == "POST" else None, r.url)
            assert status == 401, path
            jsonschema.validate(answer, schema_of(method, path, status))


async def test_an_answer_of_another_shape_would_be_found(tok: Any) -> None:
    """The schemas are closed, so an answer with an extra or a missing field does not conform."""
    async with rig(tok) as r:
        _, answer = await r.chat()
    schema = schema_of("POST", "/v1/chat/completions", 200)
    without = {key: value for key, value in answer.items() if key != "usage"}
    for other in (answer | {"more": 1}, without, answer | {"choices": []}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(other, schema)
