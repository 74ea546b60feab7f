"""Sends one request to a server of the job and reads its answer, in a process without an event loop.

The head has one deadline and the rest of the answer another. A server that sends single bytes slowly cannot
extend them. The client follows no redirect, which would carry the token to another host, and uses no proxy.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError

PART: Final = 64 * bounds.KIB


class NoResponseError(Exception):
    """No answer, or an answer that asks to try again."""


@dataclass(frozen=True)
class Request:
    """An HTTP request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass(frozen=True)
class ExchangeLimits:
    """How long an answer may take, in seconds, and how large it may be, in bytes."""

    head: float
    """Maximum seconds until the whole head has arrived."""
    silence: float
    """Maximum seconds between two pieces of the body."""
    whole: float
    """Maximum seconds from the end of the head to the end of the answer."""
    size: int
    """Maximum bytes of the body, below status 300. From status 300 on, at most `bounds.CALL` bytes are
    read."""


@dataclass(frozen=True)
class ExchangeResponse:
    """An HTTP answer."""

    status: int
    body: bytes


def exchange(url: str, request: Request, within: ExchangeLimits) -> ExchangeResponse:
    """Send a request to the server at `url` over a new connection. Only scheme, host and port of `url` count.

    Raises:
        NoResponseError: no HTTP answer arrived in time.
        OutOfBoundsError: the answer is larger than `within` allows.
    """
    place = urllib.parse.urlsplit(url)
    connection = _Connection(place.hostname or "", place.port or 80, timeout=within.silence)
    headers = {"Connection": "close", **request.headers}
    try:
        connection.limit(within.head, within.head)
        connection.request(request.method, request.path, request.body, headers)
        response = connection.getresponse()
        connection.limit(within.whole, within.silence)
        if response.status >= 300:
            return ExchangeResponse(response.status, response.read(bounds.CALL))
        return ExchangeResponse(response.status, _content(response, within.size))
    except (OSError, http.client.HTTPException) as error:
        raise NoResponseError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _content(response: http.client.HTTPResponse, maximum: int) -> bytes:
    """The body of an answer, not decompressed."""
    parts, size = [], 0
    while part := response.read1(PART):
        size += len(part)
        if size > maximum:
            raise OutOfBoundsError(f"more than {maximum} bytes")
        parts.append(part)
    if response.length:  # the connection ended before Content-Length bytes came
        raise http.client.IncompleteRead(b"")
    return b"".join(parts)


class _Connection(http.client.HTTPConnection):
    """A connection whose answers are limited in time."""

    until: float = 0.0
    silence: float = 0.0

    def limit(self, seconds: float, silence: float) -> None:
        """From now on, read for at most `seconds`, and wait at most `silence` for each piece."""
        self.until, self.silence = time.monotonic() + seconds, silence

    def connect(self) -> None:
        super().connect()
        self.response_class = self._response  # type: ignore[assignment]

    def _response(self, sock: socket.socket, *rest: Any, **more: Any) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(sock, *rest, **more)
        response.fp.close()
        response.fp = io.BufferedReader(_Until(self, sock))
        return response


class _Until(io.RawIOBase):
    """Reads a socket within the time limits of its connection."""

    def __init__(self, connection: _Connection, sock: socket.socket) -> None:
        self._connection = connection
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._connection.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not come in time")
        self._sock.settimeout(min(left, self._connection.silence))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
