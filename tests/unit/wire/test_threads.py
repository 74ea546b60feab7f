"""The server with a thread for each connection: strangers occupy few of them, and none for long."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from headway_api.bounds import OutOfBoundsError
from headway_wire import threads
from headway_wire.threads import ThreadedServer, body

REFUSED = b"refused"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._say(b"fine")

    def do_POST(self) -> None:
        try:
            self._say(body(self, 10))
        except OutOfBoundsError:
            self._say(REFUSED)

    def _say(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def server() -> Iterator[ThreadedServer]:
    made = ThreadedServer(0, Handler)
    made.start("test")
    try:
        yield made
    finally:
        made.close()


def half(made: ThreadedServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", made.port), timeout=30)
    connection.sendall(b"GET / HTTP/1.0\r\nX: ")
    return connection


def ends(connection: socket.socket) -> bool:
    """Whether the other side closes the connection.

    A TimeoutError is raised if it does not.
    """
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def asked(made: ThreadedServer) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{made.port}/", timeout=30) as answer:
        return bytes(answer.read())


def test_a_head_that_arrives_too_slowly_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SECONDS", 0.5)
    with server() as made, half(made) as connection:
        over = threading.Event()

        def drip() -> None:
            while not over.wait(0.05):
                try:
                    connection.sendall(b"a")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert ends(connection)
        finally:
            over.set()
            dripping.join()


def test_many_incomplete_requests_block_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_CONNECTIONS", 4)
    before = threading.active_count()
    with server() as made:
        held = [half(made) for _ in range(20)]
        assert asked(made) == b"fine"
        assert all(ends(connection) for connection in held[:16])
        until = time.monotonic() + 30
        while threading.active_count() > before + 1 + 4 and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() <= before + 1 + 4
        for connection in held:
            connection.close()


@pytest.mark.parametrize("length", ["11", "-1", "1e9", "\u00b2", "9" * 400])
def test_a_body_of_no_length_that_is_taken_is_refused(length: str) -> None:
    with server() as made, socket.create_connection(("127.0.0.1", made.port), timeout=30) as connection:
        connection.sendall(f"POST / HTTP/1.0\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.endswith(REFUSED)
