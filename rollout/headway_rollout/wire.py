"""Content of HTTP messages, read up to a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Final, Protocol

from headway_api.bounds import OutOfBounds

BODY_SECONDS: Final = 30.0
"""Longest that a request's body may take."""


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
