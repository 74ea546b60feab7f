"""Turns over HTTP: sampling each once, delivery, back-pressure, and who is at fault when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from open_rollout import USER, Rig, a_rollout, rig, until
from scripted_model import ANSWER
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.sandbox_api import ToolReply
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.faults import InfraError
from headway_coordinator.gateway import openai, turns
from headway_coordinator.gateway import server as served
from headway_coordinator.gateway.rollouts import Status
from headway_coordinator.gateway.turns import TurnLimiter
from headway_coordinator.trajectory.linearize import linearize


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


async def test_a_turn_whose_client_left_is_sampled_once(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.gate.clear()
        await gone(r)
        again = asyncio.create_task(r.chat())
        await until(lambda: r.rollout.calls == 1)
        r.model.gate.set()
        status, answer = await again
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "It is gold.")
        assert len(r.model.requests) == 1
        # The turn is delivered now, so the same request gets another sample, unless it is marked as a retry.
        await r.chat()
        assert len(r.model.requests) == 2
        await r.post("/v1/chat/completions", {"messages": [USER]}, headers={"X-Stainless-Retry-Count": "1"})
        assert len(r.model.requests) == 2
    assert len(r.rollout.session.turns) == 2


async def test_two_clients_with_equal_requests_get_a_sample_each(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.gate.clear()
        both = [asyncio.create_task(r.chat()) for _ in range(2)]
        await until(lambda: len(r.model.requests) == 2)
        r.model.gate.set()
        ids = {answer["id"] for _, answer in await asyncio.gather(*both)}
        assert len(ids) == 2
    assert len({request.seed for request in r.model.requests}) == 2


async def test_two_equal_requests_whose_clients_left_get_a_sample_each(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.gate.clear()
        left = [asyncio.create_task(r.chat()) for _ in range(2)]
        await until(lambda: len(r.model.requests) == 2)
        for one in left:
            one.cancel()
        await until(lambda: r.rollout.calls == 0)
        r.model.gate.set()
        ids = {(await r.chat())[1]["id"] for _ in range(2)}
        assert len(ids) == 2
        assert len(r.model.requests) == 2


async def test_failed_turn_is_sampled_again_and_not_the_agents_fault(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.fault = InfraError("no server")
        status, answer = await r.chat()
        assert (status, answer["error"]["code"]) == (502, "platform_fault")
        assert r.rollout.fault == "no server"
        r.model.fault = None
        assert (await r.chat())[0] == 200
        assert r.rollout.fault is None


async def test_full_servers_answer_429(tok: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "QUEUE_SECONDS", 0.05)
    async with rig(tok, limit=1) as r:
        r.model.gate.clear()
        first = asyncio.create_task(r.chat())
        await until(lambda: len(r.model.requests) == 1)
        async with r.http.post(r.base + "/v1/chat/completions", json={"messages": [USER, USER]}) as answer:
            assert answer.status == 429
            assert int(answer.headers["Retry-After"]) > 0
            assert (await answer.json())["error"]["type"] == "rate_limit_error"
        assert r.rollout.fault is not None
        assert r.backend.places.refused == 1
        r.model.gate.set()
        assert (await first)[0] == 200
        assert (await r.chat(USER, USER))[0] == 200


@pytest.mark.parametrize("alike", [False, True])
async def test_an_agents_concurrent_requests_are_bounded(tok: Any, alike: bool) -> None:
    async with rig(tok, limit=100) as r:
        r.model.gate.clear()
        many = [
            asyncio.create_task(r.chat({"role": "user", "content": "0" if alike else str(n)}))
            for n in range(turns.AT_ONCE)
        ]
        await until(lambda: len(r.model.requests) == turns.AT_ONCE)
        status, answer = await r.chat()
        assert (status, answer["error"]["code"]) == (429, "too_many_turns")
        assert r.rollout.fault is None
        r.model.gate.set()
        assert {status for status, _ in await asyncio.gather(*many)} == {200}


async def test_the_end_of_an_episode_ends_its_turns(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.gate.clear()
        async with r.server.open(a_rollout("t0-000009-0-0"), r.backend) as other:
            r.rollout = other
            asked = asyncio.create_task(r.chat())
            await until(lambda: len(r.model.requests) == 1)
        status, answer = await asked
        assert (status, answer["error"]["code"]) == (409, "trajectory_status")
        status, answer = await r.post("/complete-rollout", {"Status": "ready"})
        assert (status, answer["error"]["code"]) == (409, "trajectory_status")
        assert other.status is Status.PENDING
        body = {"messages": [USER]}
        async with r.http.post(r.base + "/v1/chat/completions", json=body) as answered:
            # OpenAI's clients retry a 409 unless this header forbids it.
            assert (answered.status, answered.headers["X-Should-Retry"]) == (409, "false")


async def test_episode_end_ends_identical_turns_in_flight(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.gate.clear()
        async with r.server.open(a_rollout("t0-000009-0-0"), r.backend) as other:
            r.rollout = other
            asked = [asyncio.create_task(r.chat()) for _ in range(2)]
            await until(lambda: len(r.model.requests) == 2)
        assert [status for status, _ in await asyncio.gather(*asked)] == [409, 409]


async def gone(r: Rig, arrived: Callable[[], bool] | None = None, path: str = "/v1/chat/completions") -> None:
    """A client sends a request, and leaves without an answer once the turn or call has begun."""
    before = len(r.model.requests)
    asked = asyncio.create_task(r.post(path, {"messages": [USER]}))
    await until(arrived or (lambda: len(r.model.requests) > before))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: r.rollout.calls == 0)


async def test_an_undelivered_turn_is_not_trained_or_rewarded(tok: Any) -> None:
    async with rig(tok, "Lost words.<|im_end|>", ANSWER) as r:
        r.model.gate.clear()
        await gone(r)
        assert r.rollout.lost
        r.model.gate.set()
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


async def test_turn_still_running_at_completion_is_left_out(tok: Any) -> None:
    async with rig(tok) as r:
        await r.chat()
        r.model.gate.clear()
        late = asyncio.create_task(r.chat(USER, USER))
        await until(lambda: len(r.model.requests) == 2)
        assert (await r.post("/complete-rollout", {"Status": "ready"}))[0] == 200
        status, answer = await late
        assert (status, answer["error"]["code"]) == (409, "trajectory_status")
        r.model.gate.set()
        await asyncio.sleep(0.05)
        assert len(r.rollout.session.turns) == 1
        assert len(r.rollout.conversation) == 2


async def test_a_fault_remains_until_the_same_request_is_answered(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.fault = InfraError("no server")
        await r.chat()
        r.model.fault = None
        await r.chat(USER, USER)
        assert r.rollout.fault == "no server"
        await r.chat()
        assert r.rollout.fault is None


async def test_an_interrupted_tool_call_loses_the_episode(tok: Any) -> None:
    called = asyncio.Event()

    class Slow:
        async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
            called.set()
            await asyncio.sleep(60)
            raise AssertionError

    async with rig(tok) as r:
        r.rollout.sandbox = Slow()
        await gone(r, called.is_set, "/v1/tools/refund")
        await r.chat()
        assert r.rollout.fault == "the call of refund was cut short"


async def test_a_stream_that_waits_too_long_gets_an_error_status(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "QUEUE_SECONDS", 0.3)
    monkeypatch.setattr(served, "KEEP_ALIVE_SECONDS", 0.05)
    async with rig(tok, limit=1) as r:
        r.model.gate.clear()
        first = asyncio.create_task(r.chat())
        await until(lambda: len(r.model.requests) == 1)
        body = {"messages": [USER, USER], "stream": True}
        async with r.http.post(r.base + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 429
            assert "Retry-After" in answer.headers
        r.model.gate.set()
        await first


async def test_a_raised_limit_admits_waiting_requests(tok: Any) -> None:
    limiter = AdaptiveSemaphore(8)
    places = TurnLimiter(limiter.follower())
    limiter.limit = 1
    holding = asyncio.Event()

    async def hold() -> None:
        async with places.place():
            await holding.wait()

    tasks = [asyncio.create_task(hold()) for _ in range(8)]
    await until(lambda: places.taken == 1)
    limiter.limit = 8
    await until(lambda: places.taken == 8)
    holding.set()
    await asyncio.gather(*tasks)
    assert places.refused == 0


async def test_a_retry_of_a_refused_request_gets_a_new_sample(
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


async def test_a_retry_of_a_failed_equal_request_gets_a_new_sample(tok: Any) -> None:
    async with rig(tok, "one<|im_end|>", "two<|im_end|>") as r:
        r.model.fault = InfraError("no server")
        assert (await r.chat())[0] == 502
        r.model.fault = None
        assert (await r.chat())[1]["choices"][0]["message"]["content"] == "one"
        body, retry = {"messages": [USER]}, {"X-Stainless-Retry-Count": "1"}
        contents = [
            (await r.post("/v1/chat/completions", body, headers=retry))[1]["choices"][0]["message"]["content"]
            for _ in range(2)
        ]
        assert contents == ["two", "two"], "the retry of what failed, and a retry of that"


async def test_an_agent_that_goes_on_after_leaving_a_turn_lost_none(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.gate.clear()
        await gone(r)
        assert r.rollout.lost
        r.model.gate.set()
        assert (await r.chat(USER, USER))[0] == 200
        assert not r.rollout.lost


async def test_turns_whose_client_left_do_not_block_others(tok: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    async with rig(tok) as r:
        r.model.gate.clear()
        await gone(r)
        other = asyncio.create_task(r.chat(USER, USER))
        await until(lambda: len(r.model.requests) == 2)
        r.model.gate.set()
        assert (await other)[0] == 200


async def test_answer_that_arrives_at_completion_is_not_delivered(tok: Any) -> None:
    async with rig(tok) as r:
        await r.chat()
        r.model.gate.clear()
        late = asyncio.create_task(r.chat(USER, USER))
        await until(lambda: len(r.model.requests) == 2)
        r.model.gate.set()
        r.rollout.complete("ready")
        assert (await late)[0] == 409
        assert r.rollout.session.taken == 1


async def test_shared_turn_stays_delivered_after_one_client_leaves(tok: Any) -> None:
    async with rig(tok) as r:
        mine = turns.Turns(r.backend, r.rollout)
        ask = openai.read({"messages": [USER]}).ask
        r.model.gate.clear()
        async with AsyncExitStack() as stays:
            stayed = await stays.enter_async_context(mine.turn(ask, retry=False))
            with suppress(ConnectionError):
                async with mine.turn(ask, retry=True) as left:
                    assert left.turn is stayed.turn
                    r.model.gate.set()
                    await stayed.turn.task
                    mine.deliver(stayed, ask)
                    raise ConnectionResetError
        assert r.rollout.lost
        assert r.rollout.session.taken == 1
        assert r.rollout.conversation[-1]["content"] == "It is gold."


@pytest.mark.parametrize(
    ("sent", "drifts"),
    [
        ([[USER], [{"role": "user", "content": "Is it safe?"}]], {"content": 1}),
        ([[USER], [USER], [USER]], {"again": 2}),
        ([[{"role": "system", "content": "Guard."}, USER], [USER]], {"dropped": 1}),
    ],
)
async def test_turns_that_run_at_once_fork_with_a_reason(
    tok: Any, sent: list[list[dict[str, str]]], drifts: dict[str, int]
) -> None:
    async with rig(tok) as r:
        await at_once(r, sent)
        session = r.rollout.session
        assert {reason: each.count for reason, each in session.drifts.items()} == drifts
        rows = linearize(session.graph, session.untrained)
        assert (session.forks, len(rows)) == (len(sent) - 1, len(sent))
        assert not session.delivering


async def test_continuations_at_once_fork_with_a_reason(tok: Any) -> None:
    async with rig(tok) as r:
        _, answer = await r.chat()
        history = [USER, answer["choices"][0]["message"]]
        await at_once(r, [[*history, {"role": "user", "content": text}] for text in ("One?", "Two?")])
        assert r.rollout.session.forks == 1
        assert r.rollout.session.drifts["content"].count == 1


async def test_no_turn_forks_from_one_whose_client_left(tok: Any) -> None:
    async with rig(tok) as r:
        r.model.gate.clear()
        await gone(r)
        r.model.gate.set()
        await until(lambda: bool(r.rollout.session.turns))
        assert not r.rollout.session.delivering
        await r.chat({"role": "user", "content": "Is it safe?"})
        assert r.rollout.session.forks == 0


async def at_once(r: Rig, sent: list[list[dict[str, str]]]) -> None:
    """Send requests that are all sampled before any is answered."""
    r.model.gate.clear()
    known = len(r.model.requests)
    asked = [asyncio.create_task(r.chat(*messages)) for messages in sent]
    await until(lambda: len(r.model.requests) == known + len(sent))
    r.model.gate.set()
    assert [status for status, _ in await asyncio.gather(*asked)] == [200] * len(sent)


def test_a_turn_of_two_clients_stays_delivered_if_one_leaves() -> None:
    one = a_rollout()
    one.session.turns = [None, None]  # type: ignore[list-item]
    one.session.unseen = {1, 3}
    one.answered("a", 1, [USER])
    one.answered("b", 3, [USER, USER])
    one.unanswered(3)
    assert one.conversation == [USER]
    assert one.session.taken == 1
    assert one.redacted(f"see {one.token}") == "see ..."
