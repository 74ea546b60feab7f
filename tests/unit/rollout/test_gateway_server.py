"""The gateway over HTTP: addresses, turns that are sampled once, streams, refusals."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from speaker import ANSWER, CALL, Speaker
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.sandbox_api import ToolReply
from headway_rollout.faults import InfraFault
from headway_rollout.gateway import openai, turns
from headway_rollout.gateway import server as served
from headway_rollout.gateway.core import Gateway, Sampling, Session
from headway_rollout.gateway.rollouts import Rollout, Status
from headway_rollout.gateway.server import GatewayServer
from headway_rollout.gateway.turns import Places
from headway_rollout.room import Room
from headway_rollout.trajectory.linearize import linearize
from headway_rollout.trajectory.render import choose

ARN = "arn:headway:rltrainingjob::tests:job/uid"
USER = {"role": "user", "content": "What is x?"}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


class Gold:
    """The sandbox's tools."""

    fault: Exception | None = None

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        if self.fault is not None:
            raise self.fault
        return ToolReply(content=f"{name} of {json.dumps(arguments)} is gold", done=name == "end")


@dataclass
class Rig:
    """One open rollout, and a client."""

    server: GatewayServer
    rollout: Rollout
    speaker: Speaker
    http: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: object, **options: Any) -> tuple[int, Any]:
        async with self.http.post(self.base + path, data=json.dumps(body), **options) as answer:
            return answer.status, await answer.json()

    async def chat(self, *messages: Any, **fields: Any) -> tuple[int, Any]:
        return await self.post("/v1/chat/completions", {"messages": list(messages) or [USER]} | fields)

    @property
    def base(self) -> str:
        return f"{self.url}/e/{self.rollout.token}"


@asynccontextmanager
async def rig(tok: Any, *texts: str, context: int = 1000, limit: int = 8) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        speaker = Speaker(tok, texts or [ANSWER])
        gateway = GatewayServer(Gateway(choose(tok, "qwen3"), speaker, context, 5.0), Places(Room(limit)))
        runner = web.AppRunner(gateway.app(), shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        one = await stack.enter_async_context(gateway.open(a_rollout()))
        yield Rig(gateway, one, speaker, http, f"http://127.0.0.1:{runner.addresses[0][1]}")


def a_rollout(episode: str = "t0-000001-0-0") -> Rollout:
    return Rollout(
        session=Session(episode_id=episode, seed=3, sampling=Sampling(1.0, 1.0, 64)),
        job_arn=ARN,
        sandbox=Gold(),
        tools=TOOLS,
        reward_range=(0.0, 1.0),
        takes_reward=True,
        expires_at=time.monotonic() + 60,
    )


async def test_a_conversation_is_one_row_of_exactly_what_was_sampled(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        status, first = await r.chat(USER, tools=TOOLS)
        assert status == 200
        said = first["choices"][0]["message"]
        [call] = said["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "gold"}]}
        # As clients echo it: null content, arguments written anew, fields of their own.
        echo = {"role": "assistant", "content": None, "tool_calls": said["tool_calls"], "refusal": None}
        status, second = await r.chat(USER, echo, result, tools=TOOLS)
        assert second["choices"][0]["message"]["content"] == "It is gold."
        assert second["choices"][0]["finish_reason"] == "stop"
    session = r.rollout.session
    assert session.forks == 0
    [row] = linearize(session.graph)
    first_request, second_request = r.speaker.requests
    sampled = tok.encode(CALL, add_special_tokens=False)
    assert second_request.prompt[: len(first_request.prompt) + len(sampled)] == [
        *first_request.prompt,
        *sampled,
    ]
    assert row.tokens == [*second_request.prompt, *tok.encode(ANSWER, add_special_tokens=False)]
    assert first_request.seed != second_request.seed


async def test_a_history_that_is_rendered_afresh_to_the_same_tokens_is_no_fork(tok: Any) -> None:
    """Qwen's template is asked again at every word of the user, since it may drop what was thought before."""
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
async def test_the_token_in_the_path_in_the_id_or_as_a_bearer(tok: Any, where: str) -> None:
    async with rig(tok) as r:
        base = r.base if where == "path" else r.url
        # A client of AWS signs a token of its own, which means nothing here.
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
        ("guess", {}, 404, "trajectory_not_found"),
        ("own", {"X-Amzn-SageMaker-Trajectory-Id": "t0-000002-0-0"}, 403, "trajectory_mismatch"),
        ("own", {"X-Amzn-SageMaker-Job-Arn": "arn:other"}, 403, "trajectory_mismatch"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/complete-rollout", "/update-reward"])
async def test_who_may_not_come_in(
    tok: Any, token: str | None, headers: dict[str, str], status: int, code: str, path: str
) -> None:
    async with rig(tok) as r:
        base = r.url if token is None else f"{r.url}/e/{r.rollout.token if token == 'own' else token}"
        async with r.http.post(base + path, json={"messages": [USER]}, headers=headers) as answer:
            found = await answer.json()
    assert (answer.status, found["error"]["code"]) == (status, code)
    assert r.speaker.requests == []


async def test_an_agent_with_a_fixed_base_url_is_known_by_its_rollouts_id(tok: Any) -> None:
    """SageMaker's SDK completes by the body alone."""
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


async def test_one_episode_cannot_speak_for_another(tok: Any) -> None:
    async with rig(tok) as r, r.server.open(a_rollout("t0-000009-0-0")):
        foreign = {"JobArn": ARN, "TrajectoryId": "t0-000009-0-0", "Status": "ready", "Rewards": [1.0]}
        for path in ("/complete-rollout", "/update-reward"):
            status, answer = await r.post(path, foreign)
            assert (status, answer["error"]["code"]) == (403, "trajectory_mismatch")


async def test_completing_and_rewarding(tok: Any) -> None:
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


@pytest.mark.parametrize("body", ["{oops", "[1]", '"text"', "[" * 100_000])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/complete-rollout", "/update-reward", "/v1/tools/x"]
)
async def test_a_body_that_is_none(tok: Any, path: str, body: str) -> None:
    async with rig(tok) as r, r.http.post(r.base + path, data=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == "body"


async def test_what_is_not_served_says_what_is(tok: Any) -> None:
    async with rig(tok) as r:
        status, answer = await r.post("/v1/responses", {})
        assert status == 404
        assert "/v1/chat/completions" in answer["message"]
        async with r.http.get(r.base + "/v1/chat/completions") as found:
            assert found.status == 405


async def test_models_and_tools(tok: Any) -> None:
    async with rig(tok) as r:
        async with r.http.get(r.base + "/v1/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["default"]
        async with r.http.get(r.base + "/v1/tools") as answer:
            assert (await answer.json())["tools"] == TOOLS
        status, reply = await r.post("/v1/tools/look_up", {"key": "x"})
        assert (status, reply) == (200, {"content": 'look_up of {"key": "x"} is gold', "done": False})


async def test_a_stream(tok: Any) -> None:
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


async def test_a_slow_stream_is_kept_alive_and_its_error_is_told(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "KEEP_ALIVE_SECONDS", 0.05)
    async with rig(tok) as r:
        r.speaker.gate.clear()
        body = {"messages": [USER], "stream": True}
        async with r.http.post(r.base + "/v1/chat/completions", json=body) as answer:
            assert (await answer.content.readline()).startswith(b":")
            r.speaker.fault = InfraFault("the server is gone")
            r.speaker.gate.set()
            rest = await answer.text()
    [error] = [line for line in rest.splitlines() if line.startswith("data:")]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "platform_fault"


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_turn_whose_client_left_is_sampled_once(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.gate.clear()
        with pytest.raises(TimeoutError):
            await r.post(
                "/v1/chat/completions", {"messages": [USER]}, timeout=aiohttp.ClientTimeout(total=0.1)
            )
        await until(lambda: r.rollout.calls == 0)
        again = asyncio.create_task(r.chat())
        await until(lambda: r.rollout.calls == 1)
        r.speaker.gate.set()
        status, answer = await again
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "It is gold.")
        assert len(r.speaker.requests) == 1
        # It was delivered now: the same request is a wish for another sample, unless the client retries.
        await r.chat()
        assert len(r.speaker.requests) == 2
        await r.post("/v1/chat/completions", {"messages": [USER]}, headers={"X-Stainless-Retry-Count": "1"})
        assert len(r.speaker.requests) == 2
    assert len(r.rollout.session.turns) == 2


async def test_two_clients_that_ask_alike_get_a_sample_each(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.gate.clear()
        both = [asyncio.create_task(r.chat()) for _ in range(2)]
        await until(lambda: len(r.speaker.requests) == 2)
        r.speaker.gate.set()
        ids = {answer["id"] for _, answer in await asyncio.gather(*both)}
        assert len(ids) == 2
    assert len({request.seed for request in r.speaker.requests}) == 2


async def test_two_clients_that_asked_alike_and_left_get_a_sample_each_again(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.gate.clear()
        left = [asyncio.create_task(r.chat()) for _ in range(2)]
        await until(lambda: len(r.speaker.requests) == 2)
        for one in left:
            one.cancel()
        await until(lambda: r.rollout.calls == 0)
        r.speaker.gate.set()
        ids = {(await r.chat())[1]["id"] for _ in range(2)}
        assert len(ids) == 2
        assert len(r.speaker.requests) == 2


async def test_a_turn_that_failed_is_sampled_anew_and_not_held_against_the_agent(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.fault = InfraFault("no server")
        status, answer = await r.chat()
        assert (status, answer["error"]["code"]) == (502, "platform_fault")
        assert r.rollout.fault == "no server"
        r.speaker.fault = None
        assert (await r.chat())[0] == 200
        assert r.rollout.fault is None


async def test_a_tool_that_is_lost_is_the_platforms_fault(tok: Any) -> None:
    async with rig(tok) as r:
        r.rollout.sandbox.fault = InfraFault("the sandbox died")  # type: ignore[attr-defined]
        status, answer = await r.post("/v1/tools/look_up", {})
        assert (status, answer["error"]["code"]) == (502, "platform_fault")
        assert r.rollout.fault == "the sandbox died"


async def test_running_into_a_limit_is_remembered(tok: Any) -> None:
    async with rig(tok, context=60) as r:
        assert (await r.chat())[0] == 200
        long = {"role": "user", "content": "word " * 100}
        status, answer = await r.chat(long)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "60" in str(r.rollout.truncated)
        await r.chat(USER, USER)
        assert r.rollout.truncated is None


async def test_servers_that_are_full_push_back(tok: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "QUEUE_SECONDS", 0.05)
    async with rig(tok, limit=1) as r:
        r.speaker.gate.clear()
        first = asyncio.create_task(r.chat())
        await until(lambda: len(r.speaker.requests) == 1)
        async with r.http.post(r.base + "/v1/chat/completions", json={"messages": [USER, USER]}) as answer:
            assert answer.status == 429
            assert int(answer.headers["Retry-After"]) > 0
            assert (await answer.json())["error"]["type"] == "rate_limit_error"
        assert r.rollout.fault is not None
        assert r.server.places.refused == 1
        r.speaker.gate.set()
        assert (await first)[0] == 200
        assert (await r.chat(USER, USER))[0] == 200


@pytest.mark.parametrize("alike", [False, True])
async def test_an_agent_that_runs_wild_is_bounded(tok: Any, alike: bool) -> None:
    async with rig(tok, limit=100) as r:
        r.speaker.gate.clear()
        many = [
            asyncio.create_task(r.chat({"role": "user", "content": "0" if alike else str(n)}))
            for n in range(turns.AT_ONCE)
        ]
        await until(lambda: len(r.speaker.requests) == turns.AT_ONCE)
        status, answer = await r.chat()
        assert (status, answer["error"]["code"]) == (429, "too_many_turns")
        assert r.rollout.fault is None
        r.speaker.gate.set()
        assert {status for status, _ in await asyncio.gather(*many)} == {200}


async def test_the_end_of_an_episode_ends_its_turns(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.gate.clear()
        async with r.server.open(a_rollout("t0-000009-0-0")) as other:
            r.rollout = other
            asked = asyncio.create_task(r.chat())
            await until(lambda: len(r.speaker.requests) == 1)
        status, answer = await asked
        assert (status, answer["error"]["code"]) == (409, "trajectory_status")
        status, answer = await r.post("/complete-rollout", {"Status": "ready"})
        assert (status, answer["error"]["code"]) == (409, "trajectory_status")
        assert other.status is Status.PENDING
        body = {"messages": [USER]}
        async with r.http.post(r.base + "/v1/chat/completions", json=body) as answered:
            # OpenAI's clients send a conflict again where they are not told otherwise.
            assert (answered.status, answered.headers["X-Should-Retry"]) == (409, "false")


async def test_the_end_of_an_episode_ends_turns_that_were_asked_for_alike(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.gate.clear()
        async with r.server.open(a_rollout("t0-000009-0-0")) as other:
            r.rollout = other
            asked = [asyncio.create_task(r.chat()) for _ in range(2)]
            await until(lambda: len(r.speaker.requests) == 2)
        assert [status for status, _ in await asyncio.gather(*asked)] == [409, 409]


async def test_a_call_against_the_agents_choice_is_text_and_the_history_is_kept(tok: Any) -> None:
    async with rig(tok, CALL) as r:
        _, first = await r.chat(tools=TOOLS)
        said = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "gold"}
        status, second = await r.chat(USER, said, result, tools=TOOLS, tool_choice="none")
        [choice] = second["choices"]
        assert (status, choice["finish_reason"]) == (200, "stop")
        assert "tool_calls" not in choice["message"]
        assert '{"name": "look_up", "arguments": {"key": "x"}}' in choice["message"]["content"]
    assert r.rollout.session.forks == 0
    assert [turn.malformed_tool_calls for turn in r.rollout.session.turns] == [0, 0]
    assert len(linearize(r.rollout.session.graph)) == 1


async def test_forced_calls_are_given_and_not_trained(tok: Any) -> None:
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


async def test_half_a_character_is_refused_wherever_it_stands(tok: Any) -> None:
    """JSON can spell it, and no record could hold it."""
    async with rig(tok) as r:
        await r.chat()
        for path, field in [
            ("/complete-rollout", "ErrorMessage"),
            ("/complete-rollout", "TrajectoryId"),
            ("/v1/chat/completions", "model"),
            ("/v1/tools/look_up", "key"),
        ]:
            body = {"messages": [USER], "Status": "failed", field: "bad \ud83d"}
            status, answer = await r.post(path, body)
            assert (status, answer["error"]["param"]) == (400, "body"), path
        assert r.rollout.status is Status.PENDING


async def test_a_bug_of_ours_is_not_held_against_the_agent(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.fault = RuntimeError("a bug")
        status, answer = await r.chat()
        assert (status, answer["error"]["code"]) == (502, "platform_fault")
        assert r.rollout.fault == "RuntimeError: a bug"
        r.rollout.sandbox.fault = RuntimeError("another")  # type: ignore[attr-defined]
        assert (await r.post("/v1/tools/look_up", {}))[0] == 502


async def gone(r: Rig, *messages: Any, path: str = "/v1/chat/completions") -> None:
    """A client that does not wait for its answer."""
    body = {"messages": list(messages) or [USER]}
    with pytest.raises(TimeoutError):
        await r.post(path, body, timeout=aiohttp.ClientTimeout(total=0.1))
    await until(lambda: r.rollout.calls == 0)


async def test_a_turn_that_nobody_came_back_for_is_not_trained_or_rewarded(tok: Any) -> None:
    async with rig(tok, "Lost words.<|im_end|>", ANSWER) as r:
        r.speaker.gate.clear()
        await gone(r)
        assert r.rollout.lost
        r.speaker.gate.set()
        await until(lambda: r.rollout.session.turns)
        status, _ = await r.chat({"role": "user", "content": "Something else?"})
        assert status == 200
        session = r.rollout.session
        assert (len(session.turns), session.taken) == (2, 1)
        trained = [
            token
            for row in linearize(session.graph, session.unseen)
            for token, mask in zip(row.tokens, row.mask, strict=True)
            if mask
        ]
        assert tok.decode(trained) == ANSWER
        assert [turn.delivered for turn in session.record] == [False, True]
        assert r.rollout.conversation[-1]["content"] == "It is gold."
        r.rollout.complete("ready")
        r.rollout.reward([0.5])


async def test_a_turn_that_runs_when_the_agent_is_done_has_no_part_in_it(tok: Any) -> None:
    async with rig(tok) as r:
        await r.chat()
        r.speaker.gate.clear()
        late = asyncio.create_task(r.chat(USER, USER))
        await until(lambda: len(r.speaker.requests) == 2)
        assert (await r.post("/complete-rollout", {"Status": "ready"}))[0] == 200
        status, answer = await late
        assert (status, answer["error"]["code"]) == (409, "trajectory_status")
        r.speaker.gate.set()
        await asyncio.sleep(0.05)
        assert len(r.rollout.session.turns) == 1
        assert len(r.rollout.conversation) == 2


async def test_a_fault_stands_until_the_same_request_is_answered(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.fault = InfraFault("no server")
        await r.chat()
        r.speaker.fault = None
        await r.chat(USER, USER)
        assert r.rollout.fault == "no server"
        await r.chat()
        assert r.rollout.fault is None


async def test_a_tool_call_that_was_cut_short_cannot_be_made_good(tok: Any) -> None:
    class Slow:
        async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
            await asyncio.sleep(5)
            raise AssertionError

    async with rig(tok) as r:
        r.rollout.sandbox = Slow()
        await gone(r, path="/v1/tools/refund")
        await r.chat()
        assert r.rollout.fault == "the call of refund was cut short"


async def test_a_stream_is_told_to_come_back_before_it_begins(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "QUEUE_SECONDS", 0.3)
    monkeypatch.setattr(served, "KEEP_ALIVE_SECONDS", 0.05)
    async with rig(tok, limit=1) as r:
        r.speaker.gate.clear()
        first = asyncio.create_task(r.chat())
        await until(lambda: len(r.speaker.requests) == 1)
        body = {"messages": [USER, USER], "stream": True}
        async with r.http.post(r.base + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 429
            assert "Retry-After" in answer.headers
        r.speaker.gate.set()
        await first


async def test_a_limit_that_rises_lets_in_who_waits(tok: Any) -> None:
    room = Room(8)
    places = Places(room.follower())
    room.limit = 1
    holding = asyncio.Event()

    async def hold() -> None:
        async with places.place():
            await holding.wait()

    tasks = [asyncio.create_task(hold()) for _ in range(8)]
    await until(lambda: places.taken == 1)
    room.limit = 8
    await until(lambda: places.taken == 8)
    holding.set()
    await asyncio.gather(*tasks)
    assert places.refused == 0


async def test_a_retry_of_what_was_refused_is_a_sample_of_its_own(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tok, "one<|im_end|>", "two<|im_end|>") as r:
        await r.chat()
        monkeypatch.setattr(turns, "AT_ONCE", 0)
        assert (await r.chat())[0] == 429
        monkeypatch.undo()
        retry = {"X-Stainless-Retry-Count": "1"}
        _, answer = await r.post("/v1/chat/completions", {"messages": [USER]}, headers=retry)
        assert answer["choices"][0]["message"]["content"] == "two"


@pytest.mark.parametrize(("own", "cut"), [(2, False), (64, True), (1000, True), (None, True)])
async def test_a_bound_of_the_agents_own_cuts_nothing_off(tok: Any, own: int | None, cut: bool) -> None:
    async with rig(tok, "word " * 200) as r:
        _, answer = await r.chat(max_tokens=own)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert (r.rollout.truncated is not None) is cut


async def test_a_call_that_is_refused_takes_no_address(tok: Any) -> None:
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


async def test_a_retry_of_a_failed_twin_is_a_sample_of_its_own(tok: Any) -> None:
    async with rig(tok, "one<|im_end|>", "two<|im_end|>") as r:
        r.speaker.fault = InfraFault("no server")
        assert (await r.chat())[0] == 502
        r.speaker.fault = None
        assert (await r.chat())[1]["choices"][0]["message"]["content"] == "one"
        body, retry = {"messages": [USER]}, {"X-Stainless-Retry-Count": "1"}
        contents = [
            (await r.post("/v1/chat/completions", body, headers=retry))[1]["choices"][0]["message"]["content"]
            for _ in range(2)
        ]
        assert contents == ["two", "two"], "the retry of what failed, and a retry of that"


async def test_an_agent_that_went_on_after_it_had_left_a_turn_has_lost_nothing(tok: Any) -> None:
    async with rig(tok) as r:
        r.speaker.gate.clear()
        await gone(r)
        assert r.rollout.lost
        r.speaker.gate.set()
        assert (await r.chat(USER, USER))[0] == 200
        assert not r.rollout.lost


async def test_turns_whose_client_left_hold_nobody_up(tok: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    async with rig(tok) as r:
        r.speaker.gate.clear()
        await gone(r)
        other = asyncio.create_task(r.chat(USER, USER))
        await until(lambda: len(r.speaker.requests) == 2)
        r.speaker.gate.set()
        assert (await other)[0] == 200


async def test_an_answer_that_comes_as_the_agent_is_done_is_not_its_own(tok: Any) -> None:
    async with rig(tok) as r:
        await r.chat()
        r.speaker.gate.clear()
        late = asyncio.create_task(r.chat(USER, USER))
        await until(lambda: len(r.speaker.requests) == 2)
        r.speaker.gate.set()
        r.rollout.complete("ready")
        assert (await late)[0] == 409
        assert r.rollout.session.taken == 1


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


async def test_a_client_that_leaves_takes_nothing_from_another_that_has_its_turn(tok: Any) -> None:
    async with rig(tok) as r:
        mine = turns.Turns(r.server._gateway, r.rollout, r.server.places)
        ask = openai.read({"messages": [USER]}).ask
        r.speaker.gate.clear()
        async with AsyncExitStack() as stays:
            stayed = await stays.enter_async_context(mine.turn(ask, retry=False))
            with suppress(ConnectionError):
                async with mine.turn(ask, retry=True) as left:
                    assert left.turn is stayed.turn
                    r.speaker.gate.set()
                    await stayed.turn.task
                    mine.deliver(stayed, ask)
                    raise ConnectionResetError
        assert r.rollout.lost
        assert r.rollout.session.taken == 1
        assert r.rollout.conversation[-1]["content"] == "It is gold."


def test_what_two_clients_have_is_not_taken_back_when_one_leaves() -> None:
    one = a_rollout()
    one.session.turns = [None, None]  # type: ignore[list-item]
    one.session.unseen = {1, 3}
    one.answered("a", 1, [USER])
    one.answered("b", 3, [USER, USER])
    one.unanswered(3)
    assert one.conversation == [USER]
    assert one.session.taken == 1
    assert one.redacted(f"see {one.token}") == "see ..."
