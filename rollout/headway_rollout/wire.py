"""HTTP within bounds: content up to a size, listening with deadlines and a bounded number of connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from headway_api.bounds import OutOfBounds
from headway_api.connections import Connections, raise_descriptors

HEAD_SECONDS: Final = 30.0
"""Longest that a connection may take to bring a request's head; so long an idle one is kept as well."""
LINGER_SECONDS: Final = 2.0
"""Longest that the rest of a refused body is read."""
HELD: Final = web.AppKey("held", Connections)
BODY_SECONDS: Final = 30.0
"""Longest that a request's body may take."""


_log = logging.getLogger("headway_rollout.requests")


class _Malformed(logging.Filter):
    """What is no HTTP is its sender's affair: it is answered 400, and tracebacks would fill the logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_log.addFilter(_Malformed())


@dataclass(frozen=True)
class Listening:
    """A served application."""

    runner: web.AppRunner
    server: asyncio.Server

    async def close(self) -> None:
        """Take no more connections, and end those there are."""
        self.server.close()
        await self.runner.cleanup()


async def listen(app: web.Application, address: str, port: int, drain: float) -> Listening:
    """Serve an application; at its end requests have `drain` seconds to end by themselves."""
    held = app[HELD] = Connections(raise_descriptors())
    app.middlewares.insert(0, _rests)
    runner = web.AppRunner(
        app,
        logger=_log,
        shutdown_timeout=drain,
        keepalive_timeout=HEAD_SECONDS,
        lingering_time=LINGER_SECONDS,
    )
    await runner.setup()
    assert runner.server is not None, "setup makes it"
    server = await asyncio.get_running_loop().create_server(
        held.guarded(runner.server), address, port, backlog=held.backlog
    )
    return Listening(runner, server)


@web.middleware
async def _rests(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    finally:
        request.config_dict[HELD].rest(request.transport)


def known(request: web.Request) -> None:
    """The request has the key: its connection makes no room for others until it is answered."""
    held = request.config_dict.get(HELD)
    if held is not None:
        held.hold(request.transport)


class _Stream(Protocol):
    def iter_any(self) -> AsyncIterable[bytes]: ...


class Message(Protocol):
    """A request or an answer of aiohttp."""

    @property
    def content(self) -> _Stream: ...


async def content(message: Message, most: int) -> bytes:
    """All of a message's content.

    Raises:
        OutOfBounds: it is more than `most` bytes.
    """
    data = bytearray()
    async for part in message.content.iter_any():
        data += part
        if len(data) > most:
            raise OutOfBounds(f"more than {most} bytes")
    return bytes(data)


async def start(message: Message, most: int) -> bytes:
    """The first `most` bytes of a message's content: what an error shows of it."""
    data = bytearray()
    async for part in message.content.iter_any():
        data += part
        if len(data) >= most:
            break
    return bytes(data[:most])


async def body(request: Message, most: int) -> bytes:
    """A request's body.

    Raises:
        OutOfBounds: it is more than `most` bytes.
        TimeoutError: it did not come in time.
    """
    async with asyncio.timeout(BODY_SECONDS):
        return await content(request, most)
