"""Reads the content of an aiohttp request or response, up to a size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Final, Protocol

from aiohttp import web

from headway_api.bounds import OutOfBoundsError

BODY_SECONDS: Final = 60.0
"""Maximum seconds that a request's body may take, if its route sets no other limit."""


class BodyTooLargeError(OutOfBoundsError):
    """A request or a response has more bytes than its reader accepts."""


class BodyTimeoutError(Exception):
    """A body did not arrive in time."""


class _Stream(Protocol):
    def iter_any(self) -> AsyncIterable[bytes]: ...


class Message(Protocol):
    """A request or a response."""

    @property
    def content(self) -> _Stream: ...


async def content(message: Message, limit: int) -> bytes:
    """The whole content of a message, decompressed if aiohttp decompresses it.

    Raises:
        BodyTooLargeError: the content has more than `limit` bytes.
    """
    data = bytearray()
    async for part in message.content.iter_any():
        data += part
        if len(data) > limit:
            raise BodyTooLargeError(f"more than {limit} bytes")
    return bytes(data)


async def start(message: Message, limit: int) -> bytes:
    """The first `limit` bytes of a message's content, for an error."""
    data = bytearray()
    async for part in message.content.iter_any():
        data += part
        if len(data) >= limit:
            break
    return bytes(data[:limit])


async def body(request: web.Request, limit: int, seconds: float | None = None) -> bytes:
    """A request's body.

    Raises:
        BodyTooLargeError: the body has, or announces, more than `limit` bytes.
        BodyTimeoutError: it did not arrive within `seconds`, by default `BODY_SECONDS`.
        web.RequestPayloadError: the body does not match the request's headers.
    """
    seconds = BODY_SECONDS if seconds is None else seconds
    if (request.content_length or 0) > limit:
        raise BodyTooLargeError(f"more than {limit} bytes")
    try:
        async with asyncio.timeout(seconds):
            return await content(request, limit)
    except TimeoutError as error:
        raise BodyTimeoutError(f"the body did not come within {seconds:g} s") from error
