"""How this process listens: bounded connections, deadlines for heads and bodies, bodies of a bounded size."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from headway_api.bounds import OutOfBounds
from headway_api.connections import Connections, raise_descriptors

HEAD_SECONDS: Final = 30.0
"""Longest that a connection may take to bring a request's head; so long an idle one is kept as well."""
BODY_SECONDS: Final = 60.0
"""Longest that a request's body may take."""
LINGER_SECONDS: Final = 2.0
"""Longest that the rest of a refused body is read: a client that still writes would not read the answer."""
SHUTDOWN_SECONDS: Final = 2.0
HELD: Final = web.AppKey("held", Connections)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger("headway_coordinator.requests")


class TooLarge(OutOfBounds):
    """A body has more bytes than its route takes."""


class TooSlow(Exception):
    """A body did not come in time."""


class _Malformed(logging.Filter):
    """What is no HTTP is its sender's affair: it is answered 400, and tracebacks would fill the logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_log.addFilter(_Malformed())


async def listen(
    stack: AsyncExitStack,
    app: web.Application,
    port: int,
    *,
    host: str | None = None,
    leave_with_client: bool = False,
) -> asyncio.Server:
    """Serve on every address, or on `host`, until `stack` ends. With `leave_with_client` a request ends when
    its client has gone; without, it is carried through."""
    held = app[HELD] = Connections(raise_descriptors())
    app.middlewares.insert(0, _rests)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_log,
        shutdown_timeout=SHUTDOWN_SECONDS,
        handler_cancellation=leave_with_client,
        keepalive_timeout=HEAD_SECONDS,
        lingering_time=LINGER_SECONDS,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None, "setup makes it"
    listening = await asyncio.get_running_loop().create_server(
        held.guarded(runner.server), host, port, backlog=held.backlog
    )
    stack.callback(listening.close)
    return listening


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


async def body(request: web.Request, most: int, seconds: float | None = None) -> bytes:
    """A request's body, decompressed.

    Raises:
        TooLarge: it has more than `most` bytes.
        TooSlow: it did not come within `seconds`, `BODY_SECONDS` where none are given.
        web.RequestPayloadError: it is not what its headers say.
    """
    seconds = BODY_SECONDS if seconds is None else seconds
    if (request.content_length or 0) > most:
        raise TooLarge(f"more than {most} bytes")
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.content.iter_any():
                data += part
                if len(data) > most:
                    raise TooLarge(f"more than {most} bytes")
    except TimeoutError as error:
        raise TooSlow(f"the body did not come within {seconds:g} s") from error
    return bytes(data)
