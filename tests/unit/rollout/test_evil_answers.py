"""The rollout server's clients turn hostile answers of a learner or an engine into typed faults.

A failure prints its seed. HOSTILE_SEED=n repeats it, and HOSTILE_CASES=n generates more answers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from evil_replies import Evil, Server, everywhere, evil_server, grown
from memory import flat, kept
from role_keys import TO_LEARNER

from headway_api.bounds import MIB
from headway_api.records import DirectSource
from headway_api.weights_direct import DirectJoin
from headway_rollout import engine
from headway_rollout.engine import Engine, EngineError, LearnerNotMetError
from headway_rollout.weights import learner_client
from headway_rollout.weights.checks import UnusableManifestError
from headway_rollout.weights.learner_client import LearnerClient

pytestmark = pytest.mark.hostile

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
CASES = int(os.environ.get("HOSTILE_CASES", "40"))
SECONDS = 0.5
HANGS = 20.0

Ask = Callable[[aiohttp.ClientSession, str], Awaitable[Any]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_client, "ASK_SECONDS", SECONDS)
    for name in ("HEALTH_SECONDS", "SHORT_SECONDS", "LOAD_SECONDS", "JOIN_SECONDS"):
        monkeypatch.setattr(engine, name, SECONDS)


@dataclass(frozen=True)
class Client:
    ask: Ask
    faults: tuple[type[Exception], ...]
    good: Any


async def met(http: aiohttp.ClientSession, url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    source = DirectSource(host=host, port=int(port), header="0" * 64)
    who = LearnerClient(http, TO_LEARNER, DirectJoin(workers=1, accelerated=False))
    await who.meet(source, Path("/nowhere"), Engine(http, url), {})


CLIENTS = {
    "learner": Client(
        met, (LearnerNotMetError, UnusableManifestError), {"sha256": "0" * 64, "tensors": [], "layout": []}
    ),
    "adapter": Client(lambda http, url: Engine(http, url).load_adapter("a", "/f"), (EngineError,), {}),
    "unload": Client(lambda http, url: Engine(http, url).unload_adapter("a"), (EngineError,), {}),
    "in_use": Client(
        lambda http, url: asyncio.wait_for(Engine(http, url).adapters_in_use(), SECONDS),
        (EngineError, TimeoutError),
        "x",
    ),
    "logprob": Client(
        lambda http, url: Engine(http, url).next_logprob("m", [1], 2),
        (EngineError,),
        {"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token_id": 2, "logprob": -1.0}]}]}}]},
    ),
    "healthy": Client(lambda http, url: Engine(http, url).healthy(), (), {}),
    "exposition": Client(lambda http, url: Engine(http, url).exposition(SECONDS, MIB), (EngineError,), {}),
}


async def asked(client: Client, server: Server, evil: Evil) -> None:
    """Let the client ask once. It must accept the answer or raise a typed fault."""
    server.evil, message = evil, ""
    try:
        async with asyncio.timeout(HANGS), aiohttp.ClientSession() as http:
            await client.ask(http, server.url)
    except client.faults as fault:
        message = str(fault)
    except Exception as error:
        raise AssertionError(f"HOSTILE_SEED={SEED}: {evil.name}") from error
    assert len(message) < 8000, evil.name


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_evil_answer_is_a_typed_fault_and_costs_little(name: str) -> None:
    client = CLIENTS[name]
    async with evil_server() as server:
        await asked(client, server, next(grown({}, 0, 1)))  # the first answer also imports modules
        with kept(64 * MIB):
            for evil in everywhere():
                with flat(64 * MIB):
                    await asked(client, server, evil)
            with flat(64 * MIB):
                for evil in grown(client.good, SEED, CASES):
                    await asked(client, server, evil)
