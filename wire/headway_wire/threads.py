"""The standard library's server with bounds, one thread a connection; for processes without an event loop.

It keeps at most `MAX_CONNECTIONS` connections, each for at most `SECONDS`, even if bytes still arrive. A
further connection replaces the oldest. Its handlers answer one request a connection (HTTP/1.0).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from headway_api import names
from headway_api.bounds import OutOfBoundsError

MAX_CONNECTIONS: Final = 64
"""Maximum connections, and so threads, at once. There are only a few probes and scrapes a minute."""
SECONDS: Final = 30.0
"""Maximum seconds of a connection, from its start to the end of its answer."""
LENGTH_DIGITS: Final = 12
POLL_SECONDS: Final = 0.5
"""Seconds between checks for connections that have taken too long."""


class ThreadedServer(ThreadingHTTPServer):
    """Serves `handler` on the address in `ENV_BIND_ADDRESS`, or on every address of this machine."""

    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._deadlines: dict[socket.socket, float] = {}
        """Deadline of each connection, the oldest first."""
        self._changing = threading.Lock()
        super().__init__((os.environ.get(names.ENV_BIND_ADDRESS, ""), port), handler)

    @property
    def port(self) -> int:
        """The port on which the server listens: the chosen port if port 0 was requested."""
        return int(self.server_address[1])

    def start(self, name: str) -> None:
        """Serve from a thread called `name` until `close`."""
        threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), name=name, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            if len(self._deadlines) >= MAX_CONNECTIONS:
                self._end(next(iter(self._deadlines)))
            self._deadlines[request] = time.monotonic() + SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._changing:
            for connection in [one for one, until in self._deadlines.items() if until < now]:
                self._end(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a peer that left; report any other error as the standard library does."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _end(self, connection: socket.socket) -> None:
        """Make the thread of a connection end."""
        del self._deadlines[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def body(handler: BaseHTTPRequestHandler, limit: int) -> bytes:
    """The body of the request that `handler` answers.

    Raises:
        OutOfBoundsError: the request announces more than `limit` bytes, or its length is not in digits.
    """
    text = handler.headers.get("Content-Length", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= LENGTH_DIGITS):
        raise OutOfBoundsError("not of a length that Content-Length says in digits")
    if int(text) > limit:
        raise OutOfBoundsError(f"more than {limit} bytes")
    return handler.rfile.read(int(text))
