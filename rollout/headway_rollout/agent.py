"""The weight agent's HTTP API: weights for the coordinator, with a key, and the kubelet's probes, without."""

from __future__ import annotations

import asyncio
import hmac
from typing import Final, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from pydantic import ValidationError

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within, shortened
from headway_api.keys import Key
from headway_api.model_names import POLICY, is_slot
from headway_api.record import explained
from headway_api.records import WeightsManifest, WeightsState
from headway_api.sandbox_api import Problem
from headway_rollout.weights.slots import SlotRefusedError
from headway_wire.contents import BodyTimeoutError, BodyTooLargeError, body
from headway_wire.listening import known

RETRY_SECONDS: Final = 5
BODY_SECONDS: Final = 30.0
"""Maximum seconds for a manifest to arrive."""
SHOWN_CHARACTERS: Final = 500
"""Maximum characters of an answer that describe a manifest's error."""
UNAUTHORIZED: Final = f"send this job's key {Key.COORDINATOR_TO_ROLLOUT} as Authorization: Bearer"
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})


class Server(Protocol):
    """The methods of the rollout server that the routes call."""

    def state(self, slot: str) -> WeightsState:
        """The weights that a slot of the engine holds."""

    async def take(self, slot: str, manifest: WeightsManifest) -> WeightsState | None:
        """Load weights into a slot, and return its state; None while vLLM still loads the base model.

        Raises:
            SlotRefusedError: the engine has no room for another slot, or cannot have this one.
        """

    def release(self, slot: str) -> None:
        """Release a slot once no request uses its weights.

        Raises:
            SlotRefusedError: the slot is reserved for the trained policy.
        """

    def alive(self) -> bool:
        """Whether vLLM runs, or has not been started yet."""

    async def ready(self) -> bool:
        """Whether the engine answers and can still be trusted."""


def application(server: Server, key: str) -> web.Application:
    """The weight agent's routes; all but the probes need `Authorization: Bearer <key>`.

        POST   /v1/weights?slot=NAME   load the manifest in the body; 200 with the slot's state afterwards
        GET    /v1/weights?slot=NAME   200 with the slot's state
        DELETE /v1/weights?slot=NAME   release the slot once no request uses it; 200 with its new state

    The default of `slot` is the trained policy's slot.
    """

    async def put_weights(request: web.Request) -> web.Response:
        try:
            raw = await body(request, bounds.REPORT, BODY_SECONDS)
            found = await asyncio.to_thread(json_within, raw, bounds.REPORT)
            manifest = WeightsManifest.model_validate(found)
        except BodyTooLargeError as error:
            return _problem(413, "BodyTooLarge", f"the manifest has {error}")
        except BodyTimeoutError as error:
            return _problem(408, "BodyTooSlow", f"{error}; send it at once")
        except ValidationError as error:
            return _problem(400, "InvalidManifest", f"this is not a manifest: {explained(error)}")
        except (OutOfBoundsError, web.RequestPayloadError) as error:
            why = shortened(str(error), SHOWN_CHARACTERS)
            return _problem(400, "InvalidManifest", f"the manifest cannot be read: {why}")
        try:
            state = await server.take(_slot(request), manifest)
        except SlotRefusedError as error:
            return _problem(409, "SlotRefused", str(error))
        if state is None:
            return _problem(503, "EngineStarting", "vLLM is still loading the base model; ask again")
        return _state(state)

    async def get_weights(request: web.Request) -> web.Response:
        return _state(server.state(_slot(request)))

    async def delete_weights(request: web.Request) -> web.Response:
        try:
            server.release(_slot(request))
        except SlotRefusedError as error:
            return _problem(409, "SlotRefused", str(error))
        return _state(server.state(_slot(request)))

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(status=200 if server.alive() else 503)

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(status=200 if await server.ready() else 503)

    app = web.Application(middlewares=[_authorize(key), _named])
    app.add_routes(
        [
            web.post("/v1/weights", put_weights),
            web.get("/v1/weights", get_weights),
            web.delete("/v1/weights", delete_weights),
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
        ]
    )
    return app


def _authorize(key: str) -> Middleware:
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if request.path not in OPEN_PATHS and not hmac.compare_digest(given, expected):
            return _problem(401, "Unauthorized", UNAUTHORIZED)
        if request.path not in OPEN_PATHS:
            known(request)
        return await handler(request)

    return middleware


@web.middleware
async def _named(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not is_slot(_slot(request)):
        return _problem(400, "InvalidSlot", "slot is not a DNS label: write a-z, 0-9 and -, 63 at most")
    return await handler(request)


def _slot(request: web.Request) -> str:
    return request.query.get("slot", POLICY)


def _state(state: WeightsState) -> web.Response:
    return web.Response(text=state.model_dump_json(), content_type="application/json")


def _problem(status: int, reason: str, message: str) -> web.Response:
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None
    text = Problem(reason=reason, message=message).model_dump_json()
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)
