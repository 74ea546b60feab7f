"""How a process listens with aiohttp: a bounded number of connections, and deadlines for their heads."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from headway_api import names
from headway_wire.connections import Connections, raise_descriptors

HEAD_SECONDS: Final = 30.0
"""Longest that a connection may take to bring a request's head; so long an idle one is kept as well."""
LINGER_SECONDS: Final = 2.0
"""Longest that the rest of a refused body is read: a client that still writes would not read the answer."""
DRAIN_SECONDS: Final = 2.0
"""How long requests have to end by themselves when the process stops to listen."""
HELD: Final = web.AppKey("held", Connections)

_log = logging.getLogger("headway_wire.requests")


class _Malformed(logging.Filter):
    """What is no HTTP is its sender's affair: it is answered 400, and tracebacks would fill the logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_log.addFilter(_Malformed())


@asynccontextmanager
async def listening(
    app: web.Application,
    port: int,
    *,
    host: str | None = None,
    drain: float = DRAIN_SECONDS,
    leave_with_client: bool = False,
) -> AsyncIterator[asyncio.Server]:
    """Serve `app` on `host`, or where `ENV_BIND_ADDRESS` says, or on every address.

    With `leave_with_client` a request ends when its client has gone; without, it is carried through. At the
    end requests have `drain` seconds.

    Raises:
        OSError: the port is taken.
    """
    host = host or os.environ.get(names.ENV_BIND_ADDRESS)
    held = app[HELD] = Connections(raise_descriptors())
    app.middlewares.insert(0, _rests)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_log,
        shutdown_timeout=drain,
        handler_cancellation=leave_with_client,
        keepalive_timeout=HEAD_SECONDS,
        lingering_time=LINGER_SECONDS,
    )
    await runner.setup()
    try:
        assert runner.server is not None, "setup makes it"
        server = await asyncio.get_running_loop().create_server(
            held.guarded(runner.server), host, port, backlog=held.backlog
        )
        try:
            yield server
        finally:
            server.close()
    finally:
        await runner.cleanup()


@web.middleware
async def _rests(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    finally:
        request.config_dict[HELD].rest(request.transport)


def known(request: web.Request) -> None:
    """The request is somebody's who may ask: its connection makes no room for others until it is answered."""
    held = request.config_dict.get(HELD)
    if held is not None:
        held.hold(request.transport)


def on_reset(request: web.Request, call: Callable[[], None]) -> None:
    """Call if the client closes the connection without having read the answer, before it asks again."""
    held = request.config_dict.get(HELD)
    if held is not None:
        held.on_reset(request.transport, call)
