"""Every route of every server of a job refuses a value out of bounds, and names it.

Sandboxes have their own test in `tests/unit/sandbox/test_every_sandbox_route.py`. The learner's ports have a
server of the standard library with a thread for each connection, which is tested at the end. A new route must
be added here, with its maximum body size or as a route without a body.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from memory import flat
from open_rollout import a_rollout
from role_servers import Served, Weights, serving
from weight_senders import sending

from headway_api import bounds
from headway_api.bounds import KIB, MIB
from headway_coordinator.gateway import bodies
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.learner_api import LearnerApi, Probes
from headway_rollout import agent, metrics_port
from headway_sandbox.broker import service
from headway_trainer.probes import Probes as Probing
from headway_wire import contents, threads

KEY = "the-job's"
BEARER = {"Authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def gateway() -> AsyncIterator[Served]:
    server = GatewayServer()
    backend: Any = None
    async with (
        server.open(a_rollout(), backend) as rollout,
        serving(server.app(), **{"X-Amzn-SageMaker-Trajectory-Id": rollout.rollout_id}) as one,
    ):
        yield one


def broker() -> web.Application:
    """The broker's routes without a pool. No body here is a valid request."""
    nothing: Any = SimpleNamespace(claim=None, grant=None)
    return service.Service(nothing, nothing, nothing, KEY).app()


SERVERS: dict[str, Callable[[], Any]] = {
    "gateway": gateway,
    "learner": lambda: serving(LearnerApi(KEY, lambda: b"").app(), **BEARER),
    "probes": lambda: serving(Probes(lambda: b"").app()),
    "weights": lambda: serving(agent.application(Weights(), KEY), **BEARER),
    "scrape": lambda: serving(metrics_port.application(lambda: None)),
    "broker": lambda: serving(broker(), **BEARER),
}
TAKES: dict[str, dict[str, int]] = {
    "gateway": {
        "POST /v1/chat/completions": bounds.CONVERSATION,
        "POST /chat/completions": bounds.CONVERSATION,
        "POST /v1/messages": bounds.CONVERSATION,
        "POST /v1/messages/count_tokens": bounds.CONVERSATION,
        "POST /v1/responses": bounds.CONVERSATION,
        "POST /responses": bounds.CONVERSATION,
        "POST /v1/completions": bounds.CONVERSATION,
        "POST /completions": bounds.CONVERSATION,
        "POST /v1/tools/{name}": bounds.ARGUMENTS,
        "POST /complete-rollout": bounds.CALL,
        "POST /update-reward": bounds.CALL,
    },
    "learner": {"POST /v1/steps": bounds.REPORT},
    "probes": {},
    "weights": {"POST /v1/weights": bounds.REPORT},
    "scrape": {},
    "broker": {"POST /v1/leases": service.MAX_BODY, "POST /v1/owners": service.MAX_BODY},
}
"""Route -> maximum bytes of its body."""
READS_NONE: dict[str, set[str]] = {
    "gateway": {
        "GET /v1/models",
        "GET /v1/models/{id}",
        "GET /models",
        "GET /models/{id}",
        "GET /v1/tools",
        "GET /openapi.json",
    },
    "learner": {"GET /v1/batch", "GET /healthz", "GET /readyz", "GET /metrics"},
    "probes": {"GET /healthz", "GET /readyz", "GET /metrics"},
    "weights": {"GET /v1/weights", "DELETE /v1/weights", "GET /healthz", "GET /readyz"},
    "scrape": {"GET /metrics"},
    "broker": {"DELETE /v1/leases/{lease}", "GET /v1/pool", "GET /healthz", "GET /readyz", "GET /metrics"},
}


def routes(app: web.Application) -> set[str]:
    """Method and path of each route. The gateway also has all of them below an episode's address."""
    found = set()
    for route in app.router.routes():
        assert route.resource is not None
        if route.method != "HEAD":
            found.add(f"{route.method} {route.resource.canonical.removeprefix('/e/{token}')}")
    return found


@pytest.mark.parametrize("name", SERVERS)
async def test_every_route_is_known_here(name: str) -> None:
    async with SERVERS[name]() as served:
        assert routes(served.app) == {*TAKES[name], *READS_NONE[name]}


async def answered(served: Served, route: str, body: Any, **headers: str) -> tuple[int, Any]:
    method, path = route.split()
    async with (
        asyncio.timeout(30),
        aiohttp.ClientSession() as http,
        http.request(
            method, served.url + path.format(name="look_up"), data=body, headers=served.headers | headers
        ) as answer,
    ):
        found = json.loads(await answer.text())
        return answer.status, found.get("error", found)


def too_much(limit: int) -> dict[str, bytes]:
    """Bodies that a route with this limit must refuse."""
    return {
        "long": b'{"a": "' + b"a" * limit + b'"}',
        "deep": b"[" * 60_000,
        "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
        "wide": b"[" + b"{}," * (min(limit, 4 * MIB) // 3 - 2) + b"{}]",
        "half a pair": b'{"messages": "\\ud800"}',
        "an integer of many digits": b'{"a": ' + b"9" * 10_000 + b"}",
        "no text": b"\xff\xfe",
    }


PAIRS = [(name, route) for name, taken in TAKES.items() for route in taken]


@pytest.mark.parametrize(("name", "route"), PAIRS)
async def test_a_request_out_of_bounds_is_refused_by_name(name: str, route: str) -> None:
    async with SERVERS[name]() as served:
        for which, body in too_much(TAKES[name][route]).items():
            packed = gzip.compress(body, 1)
            for sent, headers in ((body, {}), (packed, {"Content-Encoding": "gzip"})):
                with flat(64 * MIB):
                    status, problem = await answered(served, route, sent, **headers)
                assert status in (400, 413), which
                assert problem.get("code") or problem.get("reason"), which
                assert len(problem["message"]) < 1000, which


@pytest.mark.parametrize(("name", "route"), PAIRS)
async def test_a_body_without_a_length_ends_at_the_bound(name: str, route: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1024):  # a GiB, if it were read
            yield b"[" * MIB

    async with SERVERS[name]() as served:
        with flat(64 * MIB):
            try:
                status, _ = await answered(served, route, endless())
                assert status in (400, 413)
            except aiohttp.ClientConnectionError:
                pass  # the server answered before the client had sent everything


@pytest.mark.parametrize(("name", "route"), PAIRS)
async def test_a_body_that_arrives_too_slowly_is_ended(
    name: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (contents, agent, service):
        monkeypatch.setattr(module, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(bodies, "CALL_SECONDS", 0.3)

    async def dripping() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    async with SERVERS[name]() as served:
        status, problem = await answered(served, route, dripping())
        assert status == 408
        assert problem.get("code") or problem.get("reason")


@pytest.mark.parametrize("name", SERVERS)
async def test_a_head_out_of_bounds_is_refused(name: str) -> None:
    async with SERVERS[name]() as served:
        path = served.url.removeprefix("http://").partition("/")[0]
        host, port = path.split(":")
        for head in (
            "GET /" + "a" * 64 * KIB + " HTTP/1.1\r\n\r\n",
            "GET /metrics HTTP/1.1\r\nX: " + "a" * 64 * KIB + "\r\n\r\n",
            "GET /metrics HTTP/1.1\r\n" + "X: a\r\n" * 5000 + "\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head.encode())
            async with asyncio.timeout(20):
                assert (await reader.readline()).split()[1] == b"400"
            writer.close()


@contextmanager
def learner_port(name: str) -> Iterator[int]:
    if name == "probes":
        probes = Probing(0)
        try:
            yield probes.port
        finally:
            probes.close()
        return
    with sending(KEY) as sender:
        yield sender.port


def asked(port: int, request: bytes) -> bytes:
    """The whole response to a request, until the connection is closed."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        with suppress(OSError):  # the server may refuse it before it is sent
            connection.sendall(request)
        with suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                answer += piece
    return answer


LEARNERS_PORTS = ("probes", "direct")


@pytest.mark.parametrize("name", LEARNERS_PORTS)
def test_a_learners_port_refuses_a_head_out_of_bounds(name: str) -> None:
    with learner_port(name) as port, flat(64 * MIB):
        for head in (
            b"GET /" + b"a" * 70 * KIB + b" HTTP/1.1\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 70 * KIB + b"\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n" + b"X: a\r\n" * 5000 + b"\r\n",
        ):
            assert asked(port, head).split()[1] in (b"400", b"414", b"431")
        for method in (b"PUT", b"DELETE", b"PATCH", b"OPTIONS"):
            assert asked(port, method + b" /healthz HTTP/1.0\r\n\r\n").split()[1] == b"501"


@pytest.mark.parametrize("name", LEARNERS_PORTS)
@pytest.mark.parametrize("sent", [b"GET /healthz HT", b"POST /v1/weights/x/join HTTP/1.1\r\nContent-Le"])
def test_a_learners_port_ends_a_request_that_is_too_slow(
    name: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SECONDS", 0.3)
    with learner_port(name) as port:
        assert asked(port, sent) == b""


def test_a_stranger_sends_no_body_to_the_learner() -> None:
    """The body is never sent, so a server that waited for it would not answer."""
    with learner_port("direct") as port:
        head = b"POST /v1/weights/x/join HTTP/1.0\r\nContent-Length: 60000\r\n"
        assert asked(port, head + b"\r\n").split()[1] == b"401"
        key = f"Authorization: Bearer {KEY}\r\n\r\n".encode()
        assert asked(port, head + key).split()[1] == b"404"
