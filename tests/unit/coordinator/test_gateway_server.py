"""The gateway over HTTP: addresses, conversations, streams, refusals."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from open_rollout import ARN, TOOLS, USER, a_rollout, rig
from scripted_model import ANSWER, CALL
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer
from yarl import URL

from headway_coordinator.faults import InfraError
from headway_coordinator.gateway import openai
from headway_coordinator.gateway import server as served
from headway_coordinator.gateway.rollouts import Status
from headway_coordinator.trajectory.linearize import linearize


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


async def test_a_conversation_is_one_row_of_exactly_what_was_sampled(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        status, first = await r.chat(USER, tools=TOOLS)
        assert status == 200
        message = first["choices"][0]["message"]
        [call] = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "gold"}]}
        # Clients return the message with null content, arguments encoded again, and fields of their own.
        echo = {"role": "assistant", "content": None, "tool_calls": message["tool_calls"], "refusal": None}
        status, second = await r.chat(USER, echo, result, tools=TOOLS)
        assert second["choices"][0]["message"]["content"] == "It is gold."
        assert second["choices"][0]["finish_reason"] == "stop"
    session = r.rollout.session
    assert session.forks == 0
    [row] = linearize(session.graph)
    first_request, second_request = r.model.requests
    sampled = tok.encode(CALL, add_special_tokens=False)
    assert second_request.prompt[: len(first_request.prompt) + len(sampled)] == [
        *first_request.prompt,
        *sampled,
    ]
    assert row.tokens == [*second_request.prompt, *tok.encode(ANSWER, add_special_tokens=False)]
    assert first_request.seed != second_request.seed


async def test_history_with_the_same_tokens_is_not_a_fork(tok: Any) -> None:
    """The gateway renders Qwen's template again at each user message, since it may drop old reasoning."""
    async with rig(tok) as r:
        _, first = await r.chat(USER)
        await r.chat(USER, first["choices"][0]["message"], USER)
        assert r.rollout.session.forks == 0
        assert len(linearize(r.rollout.session.graph)) == 1


async def test_a_history_that_drifted_forks_and_is_counted(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        await r.chat(USER)
        await r.chat(USER, {"role": "assistant", "content": "It is lead."}, USER)
        assert r.rollout.session.forks == 1
        assert len(linearize(r.rollout.session.graph)) == 2


@pytest.mark.parametrize("where", ["path", "header", "bearer"])
async def test_the_token_may_be_in_the_path_the_id_or_a_bearer(tok: Any, where: str) -> None:
    async with rig(tok) as r:
        base = r.base if where == "path" else r.url
        # AWS clients sign requests with a token of their own, which the gateway ignores.
        bearer = r.rollout.token if where == "bearer" else "its own"
        headers = {"Authorization": f"Bearer {bearer}"}
        if where == "header":
            headers["X-Amzn-SageMaker-Trajectory-Id"] = r.rollout.rollout_id
        for path in ("/v1/chat/completions", "/chat/completions"):
            async with r.http.post(base + path, json={"messages": [USER]}, headers=headers) as answer:
                assert answer.status == 200


@pytest.mark.parametrize(
    ("token", "headers", "status", "code"),
    [
        (None, {"X-Amzn-SageMaker-Trajectory-Id": "t0-000001-0-0"}, 401, "token_missing"),
        (None, {"X-Amzn-SageMaker-Trajectory-Id": "t0-000001-0-0.guess"}, 404, "trajectory_not_found"),
        ("own", {"X-Amzn-SageMaker-Trajectory-Id": "t0-000001-0-0.guess"}, 403, "trajectory_mismatch"),
        (None, {}, 401, "token_missing"),
        (None, {"Authorization": "Bearer guess"}, 404, "trajectory_not_found"),
        (None, {"x-api-key": "guess"}, 404, "trajectory_not_found"),
        ("guess", {}, 404, "trajectory_not_found"),
        ("own", {"X-Amzn-SageMaker-Trajectory-Id": "t0-000002-0-0"}, 403, "trajectory_mismatch"),
        ("own", {"X-Amzn-SageMaker-Job-Arn": "arn:other"}, 403, "trajectory_mismatch"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/complete-rollout", "/update-reward"])
async def test_a_wrong_or_missing_token_is_refused(
    tok: Any, token: str | None, headers: dict[str, str], status: int, code: str, path: str
) -> None:
    async with rig(tok) as r:
        base = r.url if token is None else f"{r.url}/e/{r.rollout.token if token == 'own' else token}"
        async with r.http.post(base + path, json={"messages": [USER]}, headers=headers) as answer:
            found = await answer.json()
    assert (answer.status, found["error"]["code"]) == (status, code)
    assert r.model.requests == []


async def test_agent_with_a_fixed_base_url_is_known_by_its_rollout_id(tok: Any) -> None:
    """SageMaker's SDK names the rollout only in the body."""
    async with rig(tok) as r:
        await r.chat()
        name = {"JobArn": ARN, "TrajectoryId": r.rollout.rollout_id}
        headers = {"Authorization": "Bearer its own"}
        for path, more in [
            ("/complete-rollout", {"Status": "ready"}),
            ("/update-reward", {"Rewards": [1.0]}),
        ]:
            async with r.http.post(r.url + path, json=name | more, headers=headers) as answer:
                assert answer.status == 200
    assert r.rollout.rewards == [1.0]


async def test_one_episode_cannot_act_for_another(tok: Any) -> None:
    async with rig(tok) as r, r.server.open(a_rollout("t0-000009-0-0"), r.backend):
        foreign = {"JobArn": ARN, "TrajectoryId": "t0-000009-0-0", "Status": "ready", "Rewards": [1.0]}
        for path in ("/complete-rollout", "/update-reward"):
            status, answer = await r.post(path, foreign)
            assert (status, answer["error"]["code"]) == (403, "trajectory_mismatch")


async def test_a_rollout_is_rewarded_only_after_its_completion(tok: Any) -> None:
    async with rig(tok) as r:
        await r.chat()
        name = {"JobArn": ARN, "TrajectoryId": r.rollout.trajectory_id}
        assert (await r.post("/update-reward", name | {"Rewards": [1.0]}))[0] == 409
        assert await r.post("/complete-rollout", name | {"Status": "ready"}) == (200, {"Status": "READY"})
        async with r.http.post(r.base + "/complete-rollout", json=name | {"Status": "ready"}) as answer:
            assert answer.status == 409
            assert "not in valid status" in str(answer.reason)
        status, refused = await r.post("/update-reward", name | {"Rewards": [float("nan")]})
        assert (status, refused["error"]["code"]) == (400, "reward_not_finite")
        status, answer = await r.post("/update-reward", name | {"Rewards": [0.5], "Metrics": {"a": 1}})
        assert (status, answer) == (200, {"Status": "REWARD_RECEIVED"})
        status, late = await r.chat()
        assert (status, late["error"]["code"]) == (409, "trajectory_status")
    assert r.rollout.rewards == [0.5]


@pytest.mark.parametrize("body", ["{oops", "[1]", '"text"', "[" * 60_000])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/complete-rollout", "/update-reward", "/v1/tools/x"]
)
async def test_a_body_that_is_not_an_object_is_refused(tok: Any, path: str, body: str) -> None:
    async with rig(tok) as r, r.http.post(r.base + path, data=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == "body"


async def test_an_unknown_path_lists_the_served_ones(tok: Any) -> None:
    async with rig(tok) as r:
        status, answer = await r.post("/v1/embeddings", {})
        assert status == 404
        assert "/v1/chat/completions" in answer["message"]
        async with r.http.get(r.base + "/v1/chat/completions") as found:
            assert found.status == 405


async def test_models_and_tools_are_listed_and_a_tool_is_called(tok: Any) -> None:
    async with rig(tok) as r:
        async with r.http.get(r.base + "/v1/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["default"]
        async with r.http.get(r.base + "/v1/tools") as answer:
            assert (await answer.json())["tools"] == TOOLS
        status, reply = await r.post("/v1/tools/look_up", {"key": "x"})
        assert (status, reply) == (200, {"content": 'look_up of {"key": "x"} is gold', "done": False})


@pytest.mark.parametrize("name", ["default", "gpt-4o", "Qwen/Qwen3-8B"])
async def test_a_model_says_how_long_its_context_is(tok: Any, name: str) -> None:
    async with rig(tok, context=1234) as r:
        async with r.http.get(f"{r.base}/v1/models/{name}") as answer:
            assert (answer.status, (await answer.json())["max_model_len"]) == (200, 1234)
        async with r.http.get(f"{r.base}/v1/models") as answer:
            assert [model["max_model_len"] for model in (await answer.json())["data"]] == [1234]


async def test_a_model_of_unknown_context_lists_no_length(tok: Any) -> None:
    async with rig(tok) as r:
        unknown = replace(r.backend, context_length=None)
        async with (
            r.server.open(a_rollout("t0-000002-0-0"), unknown) as one,
            r.http.get(f"{r.url}/e/{one.token}/v1/models/default") as answer,
        ):
            assert "max_model_len" not in await answer.json()


async def test_a_stream_has_calls_usage_and_an_end(tok: Any) -> None:
    async with rig(tok, CALL) as r:
        body = {"messages": [USER], "tools": TOOLS, "stream": True, "stream_options": {"include_usage": True}}
        async with r.http.post(r.base + "/v1/chat/completions", json=body) as answer:
            assert answer.content_type == "text/event-stream"
            lines = [line for line in (await answer.text()).split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    called = [call for c in chunks if c["choices"] for call in c["choices"][0]["delta"].get("tool_calls", [])]
    assert called[0]["function"]["name"] == "look_up"
    assert chunks[-1]["usage"]["completion_tokens"] == len(tok.encode(CALL, add_special_tokens=False))


async def test_a_slow_stream_is_kept_alive_and_its_error_is_sent(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "KEEP_ALIVE_SECONDS", 0.05)
    async with rig(tok) as r:
        r.model.gate.clear()
        body = {"messages": [USER], "stream": True}
        async with r.http.post(r.base + "/v1/chat/completions", json=body) as answer:
            assert (await answer.content.readline()).startswith(b":")
            r.model.fault = InfraError("the server is gone")
            r.model.gate.set()
            rest = await answer.text()
    [error] = [line for line in rest.splitlines() if line.startswith("data:")]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "platform_fault"


async def test_a_lost_tool_call_is_a_fault_of_the_platform(tok: Any) -> None:
    async with rig(tok) as r:
        r.rollout.sandbox.fault = InfraError("the sandbox died")  # type: ignore[attr-defined]
        status, answer = await r.post("/v1/tools/look_up", {})
        assert (status, answer["error"]["code"]) == (502, "platform_fault")
        assert r.rollout.fault == "the sandbox died"


async def test_reaching_a_limit_is_recorded(tok: Any) -> None:
    async with rig(tok, context=60) as r:
        assert (await r.chat())[0] == 200
        long = {"role": "user", "content": "word " * 100}
        status, answer = await r.chat(long)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "60" in str(r.rollout.truncated)
        await r.chat(USER, USER)
        assert r.rollout.truncated is None


async def test_a_call_against_tool_choice_is_text_and_forks_nothing(tok: Any) -> None:
    async with rig(tok, CALL) as r:
        _, first = await r.chat(tools=TOOLS)
        message = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "gold"}
        status, second = await r.chat(USER, message, result, tools=TOOLS, tool_choice="none")
        [choice] = second["choices"]
        assert (status, choice["finish_reason"]) == (200, "stop")
        assert "tool_calls" not in choice["message"]
        assert '{"name": "look_up", "arguments": {"key": "x"}}' in choice["message"]["content"]
    assert r.rollout.session.forks == 0
    assert [turn.malformed_tool_calls for turn in r.rollout.session.turns] == [0, 0]
    assert len(linearize(r.rollout.session.graph)) == 1


async def test_forced_call_tokens_are_not_trained(tok: Any) -> None:
    async with rig(tok, ' {"key": "x"}}\n</tool_call><|im_end|>') as r:
        choice = {"type": "function", "function": {"name": "look_up"}}
        status, answer = await r.chat(USER, tools=TOOLS, tool_choice=choice)
        assert status == 200
        [call] = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "look_up", "arguments": '{"key": "x"}'}
        [row] = linearize(r.rollout.session.graph)
        trained = [token for token, mask in zip(row.tokens, row.mask, strict=True) if mask]
        assert tok.decode(trained) == ' {"key": "x"}}\n</tool_call><|im_end|>'
        assert tok.decode(row.tokens).endswith('"arguments": {"key": "x"}}\n</tool_call><|im_end|>')


async def test_half_a_surrogate_pair_is_refused_anywhere(tok: Any) -> None:
    """JSON can spell half of a surrogate pair, which no record can hold."""
    async with rig(tok) as r:
        await r.chat()
        for path, field in [
            ("/complete-rollout", "ErrorMessage"),
            ("/complete-rollout", "TrajectoryId"),
            ("/v1/chat/completions", "model"),
            ("/v1/chat/completions", "user"),
            ("/v1/messages", "system"),
            ("/v1/responses", "input"),
            ("/v1/completions", "prompt"),
            ("/v1/tools/look_up", "key"),
        ]:
            body = {"messages": [USER], "Status": "failed", field: "bad \ud83d"}
            status, answer = await r.post(path, body)
            assert (status, answer["error"]["param"]) == (400, "body"), path
        assert r.rollout.status is Status.PENDING


async def test_a_bug_of_ours_is_not_the_agents_fault(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.fault = RuntimeError("a bug")
        status, answer = await r.chat()
        assert (status, answer["error"]["code"]) == (502, "platform_fault")
        assert r.rollout.fault == "RuntimeError: a bug"
        r.rollout.sandbox.fault = RuntimeError("another")  # type: ignore[attr-defined]
        assert (await r.post("/v1/tools/look_up", {}))[0] == 502


@pytest.mark.parametrize(("own", "cut"), [(2, False), (64, True), (1000, True), (None, True)])
async def test_a_clients_own_max_tokens_is_no_truncation(tok: Any, own: int | None, cut: bool) -> None:
    async with rig(tok, "word " * 200) as r:
        _, answer = await r.chat(max_tokens=own)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert (r.rollout.truncated is not None) is cut


async def test_a_refused_request_does_not_claim_the_address(tok: Any) -> None:
    async with rig(tok) as r:
        former = r.base
        assert r.server.renew(r.rollout)
        async with r.http.post(former + "/v1/chat/completions", json={"messages": []}) as answer:
            assert answer.status == 400
        async with r.http.post(former + "/complete-rollout", json={"Status": "perhaps"}) as answer:
            assert answer.status == 400
        assert (await r.chat())[0] == 200
        async with r.http.post(former + "/v1/chat/completions", json={"messages": [USER]}) as answer:
            assert answer.status == 409


@pytest.mark.parametrize(
    ("header", "status", "param"),
    [
        ({b"X-Amzn-SageMaker-Job-Arn": b"\xff\xfe"}, 403, "JobArn"),
        ({b"X-Amzn-SageMaker-Trajectory-Id": b"\xff"}, 403, "TrajectoryId"),
        ({b"Content-Encoding": b"gzip"}, 400, "body"),
        ({b"Content-Encoding": b"deflate"}, 400, "body"),
        ({b"X-Stainless-Retry-Count": b"9" * 5000}, 200, None),
        ({b"Authorization": b"Bearer \xff"}, 200, None),
    ],
    ids=str,
)
async def test_any_bytes_in_headers_get_a_typed_answer(
    tok: Any, header: dict[bytes, bytes], status: int, param: str | None
) -> None:
    document = json.dumps({"messages": [USER]}).encode()
    async with rig(tok) as r:
        where = URL(r.base + "/v1/chat/completions")
        lines = [b"POST %s HTTP/1.1" % where.raw_path.encode(), b"Host: gateway", b"Connection: close"]
        lines += [b"Content-Length: %d" % len(document), *(k + b": " + v for k, v in header.items())]
        reader, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + document)
        head, _, answer = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        writer.close()
    assert int(head.split()[1]) == status
    assert json.loads(answer).get("error", {}).get("param") == param


async def test_a_fault_of_the_gateway_itself_is_typed_too(tok: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("oops")

    async with rig(tok) as r:
        monkeypatch.setattr(openai, "models", broken)
        async with r.http.get(r.base + "/v1/models") as answer:
            assert answer.status == 500
            assert (await answer.json())["error"]["code"] == "platform_fault"


@pytest.mark.parametrize("body", [{}, {"status": "failed"}, {"Status": None}])
async def test_a_completion_without_a_status_is_refused(tok: Any, body: dict[str, Any]) -> None:
    async with rig(tok) as r:
        await r.chat()
        status, answer = await r.post("/complete-rollout", body)
        assert (status, answer["error"]["param"]) == (400, "Status")
        assert r.rollout.status is Status.PENDING


async def test_a_request_that_no_context_can_hold_truncates(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "MAX_BODY", 1000)
    async with rig(tok) as r:
        status, answer = await r.chat({"role": "user", "content": "word " * 500})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "1000 bytes" in str(r.rollout.truncated)
        status, answer = await r.post("/complete-rollout", {"Status": "failed", "ErrorMessage": "x" * 2000})
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
