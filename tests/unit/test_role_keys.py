"""Every server of a job accepts its own key, and refuses the keys of all other servers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from role_keys import KEYS
from role_servers import Weights, serving
from sandbox_broker import SMALL, job_config
from weight_senders import sending

from headway_api.keys import Key
from headway_coordinator.learner_api import LearnerApi
from headway_rollout import agent
from headway_sandbox.broker import pods, pool
from headway_sandbox.broker.kube import Credentials, Pods
from headway_sandbox.broker.leases import Leases
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.service import Service
from headway_sandbox.broker.warm import WarmPool


@asynccontextmanager
async def learner_api() -> AsyncIterator[str]:
    app = LearnerApi(KEYS[Key.LEARNER_TO_COORDINATOR], lambda: b"").app()
    async with serving(app) as served:
        yield f"{served.url}/v1/batch?step=1"


@asynccontextmanager
async def weight_agent() -> AsyncIterator[str]:
    async with serving(agent.application(Weights(), KEYS[Key.COORDINATOR_TO_ROLLOUT])) as served:
        yield f"{served.url}/v1/weights"


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    config = job_config("team", "image", "u-1")
    metrics = Metrics(config)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        over = Pods(http, "http://127.0.0.1:1", "team", ssl.create_default_context(), Credentials(None))
        kind, platform = pods.SandboxKind(config), pods.Platform({}, SMALL, [])
        warm = WarmPool(over, http, kind, platform, pool.Limits(1, 1, 1), metrics)
        leases = Leases(warm, http, KEYS[Key.LEASES], metrics)
        app = Service(warm, leases, metrics, KEYS[Key.COORDINATOR_TO_BROKER]).app()
        served = await stack.enter_async_context(serving(app))
        yield f"{served.url}/v1/pool"


@asynccontextmanager
async def sender() -> AsyncIterator[str]:
    with sending(KEYS[Key.ROLLOUT_TO_LEARNER]) as made:
        yield f"http://127.0.0.1:{made.port}/v1/weights/{'0' * 64}"


SERVERS: dict[Key, tuple[Callable[[], Any], int]] = {
    Key.LEARNER_TO_COORDINATOR: (learner_api, 503),
    Key.COORDINATOR_TO_ROLLOUT: (weight_agent, 200),
    Key.COORDINATOR_TO_BROKER: (broker, 200),
    Key.ROLLOUT_TO_LEARNER: (sender, 404),
}
"""Key -> the server that checks it, and its status code for a caller with the key. The coordinator has not
begun, and the learner has nothing to hand out."""


async def status(url: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
    sent = {} if authorization is None else {"Authorization": authorization}
    async with aiohttp.ClientSession() as http, http.get(url, headers=sent) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("wanted", SERVERS)
async def test_a_server_accepts_only_its_own_key(wanted: Key) -> None:
    serve, well = SERVERS[wanted]
    async with serve() as url:
        for key in Key:
            found, problem = await status(url, f"Bearer {KEYS[key]}")
            assert found == (well if key == wanted else 401), key
            if key != wanted:
                assert problem["reason"] == "Unauthorized"
                assert f"key {wanted} " in problem["message"]
                assert KEYS[wanted] not in problem["message"]


@pytest.mark.parametrize("wanted", SERVERS)
@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", "Bearer caf\u00e9", "{key}", "bearer-{key}"]
)
async def test_a_server_refuses_a_request_without_a_key(wanted: Key, given: str | None) -> None:
    serve, _ = SERVERS[wanted]
    async with serve() as url:
        sent = None if given is None else given.format(key=KEYS[wanted])
        assert (await status(url, sent))[0] == 401


@pytest.mark.parametrize("wanted", SERVERS)
async def test_a_server_refuses_a_key_that_is_not_text(wanted: Key) -> None:
    def answered(url: str) -> int:
        where = urlsplit(url)
        connection = HTTPConnection(str(where.hostname), where.port, timeout=30)
        connection.putrequest("GET", f"{where.path}?{where.query}")
        connection.putheader("Authorization", b"Bearer \xff\xfe")
        connection.endheaders()
        with connection.getresponse() as answer:
            return answer.status

    serve, _ = SERVERS[wanted]
    async with serve() as url:
        assert await asyncio.to_thread(answered, url) == 401
