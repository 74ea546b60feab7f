"""What a request or an answer of aiohttp holds, read up to a size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Final, Protocol

from aiohttp import web

from headway_api.bounds import OutOfBounds

BODY_SECONDS: Final = 60.0
"""Longest that a request's body may take, where its route does not say."""


class TooLarge(OutOfBounds):
    """A request or an answer has more bytes than its reader takes."""


class TooSlow(Exception):
    """A body did not come in time."""


class _Stream(Protocol):
    def iter_any(self) -> AsyncIterable[bytes]: ...


class Message(Protocol):
    """A request or an answer."""

    @property
    def content(self) -> _Stream: ...


async def content(message: Message, most: int) -> bytes:
    """All of a message's content, decompressed where the message is.

    Raises:
        TooLarge: it is more than `most` bytes.
    """
    data = bytearray()
    async for part in message.content.iter_any():
        data += part
        if len(data) > most:
            raise TooLarge(f"more than {most} bytes")
    return bytes(data)


async def start(message: Message, most: int) -> bytes:
    """The first `most` bytes of a message's content: what an error shows of it."""
    data = bytearray()
    async for part in message.content.iter_any():
        data += part
        if len(data) >= most:
            break
    return bytes(data[:most])


async def body(request: web.Request, most: int, seconds: float | None = None) -> bytes:
    """A request's body.

    Raises:
        TooLarge: it has, or announces, more than `most` bytes.
        TooSlow: it did not come within `seconds`, `BODY_SECONDS` where none are given.
        web.RequestPayloadError: it is not what its headers say.
    """
    seconds = BODY_SECONDS if seconds is None else seconds
    if (request.content_length or 0) > most:
        raise TooLarge(f"more than {most} bytes")
    try:
        async with asyncio.timeout(seconds):
            return await content(request, most)
    except TimeoutError as error:
        raise TooSlow(f"the body did not come within {seconds:g} s") from error
