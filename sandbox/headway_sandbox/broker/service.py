"""The broker's HTTP server: `headway_api.sandbox_api`, probes and metrics."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ValidationError

from headway_api.bounds import KIB, OutOfBoundsError, json_within, shortened
from headway_api.keys import Key
from headway_api.record import explained
from headway_api.sandbox_api import LeaseRequest, OwnerClaim, PoolState, Problem
from headway_sandbox.broker.kube import WATCH_SECONDS
from headway_sandbox.broker.leases import LeaseRefusedError, Leases
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.warm import NoSandboxError, WarmPool
from headway_wire.contents import BodyTimeoutError, BodyTooLargeError, body
from headway_wire.listening import known

MAX_BODY = 16 * KIB
"""Maximum bytes of a request's body."""
BODY_SECONDS = 10.0
DEPTH = 4
VALUES = 64
ERROR_CHARACTERS = 500
UNAUTHORIZED = f"send this job's key {Key.COORDINATOR_TO_BROKER} as Authorization: Bearer"
SILENCE_SECONDS = WATCH_SECONDS + 120.0
"""If the API server has been silent for this many seconds, this process is stuck: a watch ends sooner."""

Asked = TypeVar("Asked", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Service:
    """Routes over a pool and its leases."""

    def __init__(self, pool: WarmPool, leases: Leases, metrics: Metrics, key: str) -> None:
        self._pool = pool
        self._leases = leases
        self._metrics = metrics
        self._authorization = f"Bearer {key}".encode()

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.post("/v1/leases", self._lease),
                web.delete("/v1/leases/{lease}", self._release),
                web.post("/v1/owners", self._claim),
                web.get("/v1/pool", self._state),
                web.get("/healthz", self._alive),
                web.get("/readyz", self._ready),
                web.get("/metrics", self._exposition),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/"):
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, self._authorization):
                return answer(401, Problem(reason="Unauthorized", message=UNAUTHORIZED))
            known(request)
        try:
            return await handler(request)
        except NoSandboxError as error:
            return answer(409, error.problem)
        except LeaseRefusedError as error:
            headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
            return answer(error.status, error.problem, headers)

    async def _lease(self, request: web.Request) -> web.Response:
        asked = await asked_for(request, LeaseRequest)
        try:
            return answer(201, await self._leases.grant(asked))
        except asyncio.CancelledError:
            # A release or a new owner ended the wait. A cancelled handler would close the connection.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return answer(
                409, Problem(reason="LeaseReleased", message=f"{asked.lease} was released meanwhile")
            )

    async def _release(self, request: web.Request) -> web.Response:
        self._leases.release(request.match_info["lease"])
        return web.Response(status=204)

    async def _claim(self, request: web.Request) -> web.Response:
        self._leases.claim((await asked_for(request, OwnerClaim)).owner)
        return web.Response(status=204)

    async def _state(self, _: web.Request) -> web.Response:
        counts = self._pool.counts()
        state = PoolState(
            ready=counts.ready, starting=counts.starting, leased=counts.leased, problem=self._pool.problem
        )
        return answer(200, state)

    async def _alive(self, _: web.Request) -> web.Response:
        silence = time.monotonic() - self._pool.last_contact
        return web.Response(
            status=200 if silence < SILENCE_SECONDS else 503, text=f"silence {silence:.0f} s\n"
        )

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._pool.listed.is_set() else 503)

    async def _exposition(self, _: web.Request) -> web.Response:
        self._metrics.show(self._pool.counts())
        text = generate_latest(self._metrics.registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


async def asked_for(request: web.Request, record: type[Asked]) -> Asked:
    """The record in a request's body; raises LeaseRefusedError."""
    try:
        raw = await body(request, MAX_BODY, BODY_SECONDS)
        return record.model_validate(json_within(raw, MAX_BODY, depth=DEPTH, values=VALUES))
    except BodyTooLargeError as error:
        raise malformed(413, f"the body has {error}") from error
    except BodyTimeoutError as error:
        raise malformed(408, f"{error}; send it at once", permanent=False) from error
    except ValidationError as error:
        raise malformed(400, f"the body is not a valid {record.__name__}: {explained(error)}") from error
    except (OutOfBoundsError, web.RequestPayloadError) as error:
        why = shortened(str(error), ERROR_CHARACTERS)
        raise malformed(400, f"the body cannot be read: {why}") from error


def malformed(status: int, message: str, *, permanent: bool = True) -> LeaseRefusedError:
    """The refusal of a request's body."""
    return LeaseRefusedError(status, Problem(reason="MalformedRequest", message=message, permanent=permanent))


def answer(status: int, document: BaseModel, headers: dict[str, str] | None = None) -> web.Response:
    """A record as JSON."""
    return web.Response(
        status=status, text=document.model_dump_json(), content_type="application/json", headers=headers
    )
