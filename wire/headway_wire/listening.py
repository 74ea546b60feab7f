"""Serves with aiohttp, with a bounded number of connections and deadlines for the heads of requests."""

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
"""Maximum seconds that a client may take to send a request's head, and that an idle connection is kept."""
LINGER_SECONDS: Final = 2.0
"""Seconds for reading the rest of a refused body: a client that still writes would not read the answer."""
DRAIN_SECONDS: Final = 2.0
"""Seconds that requests may take to finish after the process stops listening."""
CONNECTIONS: Final = web.AppKey("connections", Connections)

_log = logging.getLogger("headway_wire.requests")


class _Malformed(logging.Filter):
    """Drops log records about bytes that are not HTTP. The answer is 400, and tracebacks would fill the
    logs."""

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
    """Serve `app` on `host`, else on the address in `ENV_BIND_ADDRESS`, else on every address.

    With `leave_with_client`, a request ends when its client is gone; otherwise it runs to its end. At
    shutdown, requests have `drain` seconds.

    Raises:
        OSError: the port is taken.
    """
    host = host or os.environ.get(names.ENV_BIND_ADDRESS)
    connections = app[CONNECTIONS] = Connections(raise_descriptors())
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
            connections.guarded(runner.server), host, port, backlog=connections.backlog
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
        request.config_dict[CONNECTIONS].wait_again(request.transport)


def known(request: web.Request) -> None:
    """Mark a request as that of a known client. Until its answer, no other connection replaces its own."""
    connections = request.config_dict.get(CONNECTIONS)
    if connections is not None:
        connections.keep_open(request.transport)


def on_reset(request: web.Request, call: Callable[[], None]) -> None:
    """Call `call` if the client closes the connection without reading the answer, before its next request."""
    connections = request.config_dict.get(CONNECTIONS)
    if connections is not None:
        connections.on_reset(request.transport, call)
