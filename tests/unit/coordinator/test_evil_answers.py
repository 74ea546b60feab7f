"""The coordinator's clients turn hostile answers into typed faults, in bounded memory.

A failure prints its seed. HOSTILE_SEED=n repeats it, and HOSTILE_CASES=n generates more answers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from evil_replies import Evil, Server, everywhere, evil_server, grown
from memory import flat, kept
from pydantic import ValidationError

from headway_api.records import PolicyVersion, WeightsManifest
from headway_api.sandbox_api import GroupEpisode, GroupRequest, Lease
from headway_api.spec.candidate import CandidateEndpoint
from headway_coordinator.endpoint.caller import Caller
from headway_coordinator.endpoint.refused import Verdict
from headway_coordinator.endpoint.reply import Reply
from headway_coordinator.engines import vllm, weights
from headway_coordinator.faults import InfraError
from headway_coordinator.http import PeerUnreachableError, UpstreamError, call
from headway_coordinator.sandboxes import Broker, Sandbox

pytestmark = pytest.mark.hostile

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
CASES = int(os.environ.get("HOSTILE_CASES", "40"))
SECONDS = 0.5
"""Seconds that each client waits at most."""
HANGS = 20.0
"""Seconds after which the test assumes that a client hangs."""
MAX_MEMORY = 64 * 1024 * 1024
VERSION = PolicyVersion(incarnation=0, step=1)
ZERO = PolicyVersion(incarnation=0, step=0)

Ask = Callable[[aiohttp.ClientSession, str], Awaitable[Any]]


@dataclass(frozen=True)
class Client:
    """A client of the coordinator that reads a server's answers."""

    ask: Ask
    faults: tuple[type[Exception], ...]
    good: Any
    """An answer that the client accepts."""


def sandbox(http: aiohttp.ClientSession, url: str) -> Sandbox:
    lease = Lease(lease="t0-000000-0-0", pod="pod-0", url=url, token="t", waited_seconds=0.0)
    return Sandbox(http, lease, SECONDS)


def caller(http: aiohttp.ClientSession, url: str) -> Caller:
    return Caller(http, CandidateEndpoint(url=url, model="m"), "token")


async def completed(http: aiohttp.ClientSession, url: str) -> Any:
    """Ask as `EndpointChat` does, with a deadline around the call."""
    async with asyncio.timeout(SECONDS):
        found = await caller(http, url).complete({"messages": []})
    assert isinstance(found, Reply | Verdict)
    return found


async def listed(http: aiohttp.ClientSession, url: str) -> Any:
    async with asyncio.timeout(SECONDS):
        return await caller(http, url).listed()


async def generated(http: aiohttp.ClientSession, url: str) -> Any:
    request = vllm.Request([1, 2], 64, 1.0, 1.0, 7, [0])
    found = await vllm.generate(http, url, "policy", VERSION, request, SECONDS)
    assert all(type(token) is int for token in found.tokens)
    assert all(-9999 < value <= 1e-3 for value in found.logprobs)
    return found


CHAT = {
    "choices": [
        {
            "message": {
                "content": "hi",
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
}
SAMPLED = {
    "choices": [
        {
            "finish_reason": "stop",
            "token_ids": [5, 6],
            "logprobs": {"content": [{"token_id": 5, "logprob": -0.5}, {"token_id": 6, "logprob": -1.5}]},
            "weight_versions": [{"start": 0, "end": 2, "version": "0.1"}],
        }
    ],
    "usage": {"prompt_tokens_details": {"cached_tokens": 1}},
}
QUESTION = {"id": 0, "name": "style", "messages": [{"role": "user"}], "schema": {"type": "number"}}
GROUP = GroupRequest(
    row={}, seed=0, episodes=[GroupEpisode(messages=[], truncated=False, turns=1, reward=0.0)]
)
STATE = {"version": {"incarnation": 0, "step": 1}, "ready": True, "error": None, "canary_error": 1e-4}
MANIFEST = WeightsManifest(version=ZERO, kind="base", uri="s3://b/m", files=[])
BROKER = (UpstreamError, PeerUnreachableError)
WEIGHTS = (UpstreamError, PeerUnreachableError, ValidationError)

CLIENTS = {
    "reset": Client(
        lambda http, url: sandbox(http, url).reset({"prompt": "p"}, 1),
        (InfraError,),
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
    ),
    "tool": Client(
        lambda http, url: sandbox(http, url).tool("f", {}), (InfraError,), {"content": "gold", "done": False}
    ),
    "agent": Client(
        lambda http, url: sandbox(http, url).agent(["a"], {}, {}),
        (InfraError,),
        {"running": True, "exit_code": None, "output": "x"},
    ),
    "agent_wait": Client(
        lambda http, url: sandbox(http, url).agent_wait(0.1),
        (InfraError,),
        {"running": False, "exit_code": 0, "output": "x"},
    ),
    "finish": Client(
        lambda http, url: sandbox(http, url).finish([], False),
        (InfraError,),
        {"reward": 0.5, "score": 1.0, "metrics": {"a": 1.0}, "turn_rewards": [0.25, 0.25]},
    ),
    "questions": Client(
        lambda http, url: sandbox(http, url).questions(0.1), (InfraError,), {"questions": [QUESTION]}
    ),
    "judge_answer": Client(lambda http, url: sandbox(http, url).answer(0, 0.5), (InfraError,), {}),
    "group": Client(
        lambda http, url: sandbox(http, url).group(GROUP),
        (InfraError,),
        {"rewards": [{"reward": 0.5, "metrics": {"a": 1.0}, "turn_rewards": [0.5]}]},
    ),
    "pool": Client(
        lambda http, url: asyncio.wait_for(Broker(http, url, "t", "me").pool(), SECONDS),
        (*BROKER, TimeoutError),
        {"ready": 1, "starting": 0, "leased": 0, "problem": {"reason": "R", "message": "m"}},
    ),
    "weights": Client(
        lambda http, url: asyncio.wait_for(weights.state(http, url, "t"), SECONDS),
        (*WEIGHTS, TimeoutError),
        STATE,
    ),
    "load": Client(
        lambda http, url: asyncio.wait_for(weights.load(http, url, "t", MANIFEST), SECONDS),
        (*WEIGHTS, TimeoutError),
        STATE,
    ),
    "engine": Client(generated, (InfraError, vllm.ServerLostError), SAMPLED),
    "agent_post": Client(
        lambda http, url: call(http, "POST", url, timeout=SECONDS, body={}), BROKER, {"errorType": "x"}
    ),
    "endpoint": Client(completed, (TimeoutError,), CHAT),
    "models": Client(listed, (TimeoutError,), {"data": [{"id": "m"}]}),
}


async def answered(client: Client, server: Server, evil: Evil) -> Exception | None:
    """Let the client ask once. Returns the fault with which the call ended."""
    server.evil = evil
    async with asyncio.timeout(HANGS), aiohttp.ClientSession() as http:
        try:
            await client.ask(http, server.url)
        except client.faults as fault:
            return fault
    return None


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_evil_answer_is_a_typed_fault_and_costs_little(name: str) -> None:
    client = CLIENTS[name]
    async with evil_server() as server:
        # The first answer also imports modules, so it is not measured.
        await answered(client, server, next(grown({}, 0, 1)))
        with kept(MAX_MEMORY):
            for evil in everywhere():
                with flat(MAX_MEMORY):
                    fault = await answered(client, server, evil)
                assert name in ("endpoint", "models") or fault is not None, f"{evil.name} is not an answer"
                assert len(str(fault)) < 8000, evil.name


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_mutated_good_answer_is_accepted_or_a_typed_fault(name: str) -> None:
    client = CLIENTS[name]
    async with evil_server() as server:
        with flat(MAX_MEMORY):
            for evil in grown(client.good, SEED, CASES):
                try:
                    await answered(client, server, evil)
                except Exception as error:
                    raise AssertionError(f"HOSTILE_SEED={SEED}: {evil.name}") from error


async def test_clients_ask_for_uncompressed_answers() -> None:
    async with evil_server() as server:
        for name in ("tool", "engine", "endpoint"):
            await answered(CLIENTS[name], server, next(grown(CLIENTS[name].good, 0, 1)))
        assert all(b"Accept-Encoding: identity\r\n" in head for head in server.heads)


async def test_a_requested_pause_has_a_limit() -> None:
    async with evil_server() as server:
        for server.evil in (evil for evil in everywhere() if evil.name.startswith("a refusal")):
            async with aiohttp.ClientSession() as http:
                with pytest.raises(UpstreamError) as caught:
                    await call(http, "POST", server.url, timeout=5.0, body={})
            assert caught.value.retry_after is None or 0 <= caught.value.retry_after <= 60
            assert caught.value.problem.reason.isalnum()
            assert len(str(caught.value)) < 3000
