"""The part of HTTP/1.1 that one sandbox needs: keep-alive, Content-Length bodies, JSON in and out.

Importing `http.server` alone (email, html, urllib, datetime...) takes 45 ms of CPU. This whole server with
an environment takes 26 ms, interpreter included, and every episode pays for it. The server refuses what it
does not support: chunked bodies get 411, oversized ones 413. Anything that is not HTTP gets 400 and a closed
connection.

Anybody may connect to the port, such as the model's own code in the pod. Before a connection has shown the
lease's token, it has a few seconds for a head of 16 KiB. If there are too many such connections, the oldest
is closed for the next.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import socket
import time

from headway_sandbox import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reply = tuple[int, dict[str, Any] | None]
    Handler = Callable[[str, str, str, dict[str, Any]], Reply]
    """(method, path, bearer token, JSON body) -> (status, JSON body)."""
    Admit = Callable[[str, str, str], bool]
    """(method, path, bearer token) -> whether the token is the lease's; an HttpError ends the connection."""

MAX_HEAD = 16 * 1024
IDLE_SECONDS = 300.0
"""A connection without a new request for this many seconds is closed."""
HEAD_SECONDS = 10.0
"""Maximum seconds from the first byte of a head to its last."""
BODY_SECONDS = 60.0
SEND_SECONDS = 60.0
DRAIN_SECONDS = 1.0
DRAIN_PIECES = 64
MAX_UNAUTHENTICATED = 16
"""Maximum connections that have not shown the lease's token. With one more, the oldest of them is closed."""
CONNECTIONS = 64
"""Maximum connections at once. A further one is closed."""
PAUSE_SECONDS = 0.05
"""Seconds to pause after a connection that could not be accepted, because no descriptor was free."""
REASONS = {200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
           409: "Conflict", 411: "Length Required", 413: "Content Too Large",
           500: "Internal Server Error", 504: "Gateway Timeout"}  # fmt: skip


class HttpError(Exception):
    """Answered with `status` and a Problem document (`headway_api.sandbox_api.Problem`)."""

    def __init__(
        self, status: int, reason: str, message: str, *, field: str | None = None, permanent: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problem = {"reason": reason, "message": message, "field": field, "permanent": permanent}


class MalformedRequestError(HttpError):
    """The received bytes are not a valid request. The server closes the connection after its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, "MalformedRequest", message)


def listen(port: int, host: str = "") -> socket.socket:
    """Listen on every address of the pod, IPv4 and IPv6, or only on `host`. Port 0: any free port."""
    if host:
        return socket.create_server((host, port), backlog=32)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=32, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=32)


def inherited(descriptor: int) -> socket.socket:
    """The socket on which a parent process listens for this one, so that nobody has to guess a free port.

    Programs that this process starts do not inherit it.
    """
    found = socket.socket(fileno=descriptor)
    found.set_inheritable(False)
    return found


class Served:
    """The connections of one server."""

    def __init__(self, handler: Handler, admit: Admit = lambda method, path, token: True) -> None:
        self._handler = handler
        self._admit = admit
        self._open: set[socket.socket] = set()
        self._unauthenticated: dict[socket.socket, None] = {}
        """Connections that have not shown the lease's token, oldest first."""
        self._asking: dict[int, socket.socket] = {}
        """Connections by the thread that serves them. The thread that removes an entry must answer."""

    def serve(self, listener: socket.socket) -> None:
        """Serve until the process ends, one thread a connection, so a slow tool does not block `/healthz`."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # no descriptor is left, or the peer has gone already
                time.sleep(PAUSE_SECONDS)
                continue
            self._take_up(connection)

    def answer_for(self, thread: int, refusal: HttpError) -> bool:
        """Answer the request that `thread` handles, and end its connection; returns whether there was one."""
        connection = self._asking.pop(thread, None)
        if connection is not None:
            send(connection, encode(refusal.status, refusal.problem, keep=False))
            end(connection)
        return connection is not None

    def _take_up(self, connection: socket.socket) -> None:
        if len(self._open) >= CONNECTIONS:
            connection.close()
            return
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            self._unauthenticated.pop(oldest, None)
            end(oldest)
        self._open.add(connection)
        self._unauthenticated[connection] = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _thread.start_new_thread(self._converse, (connection,))
        except (OSError, RuntimeError):  # no thread is left
            self._let_go(connection)

    def _let_go(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        self._unauthenticated.pop(connection, None)
        connection.close()

    def _converse(self, connection: socket.socket) -> None:
        """Answer one connection's requests until its peer leaves, stops sending or sends invalid bytes."""
        pending, keep = b"", True
        try:
            while keep:
                keep, pending = self._one(connection, pending)
        except OSError:  # the peer left or stopped inside a request, so nobody reads an answer
            pass
        finally:
            self._let_go(connection)

    def _one(self, connection: socket.socket, pending: bytes) -> tuple[bool, bytes]:
        """Answer one request; returns whether there may be another, and its bytes received so far."""
        try:
            head, pending = read_head(connection, pending)
            if not head:
                return False, b""
            method, path, headers = parse_head(head)
            scheme, _, token = headers.get("authorization", "").partition(" ")
            token = token if scheme.lower() == "bearer" else ""
            length = length_of(headers, bounds.BODIES.get(path, bounds.SMALL))
            if self._admit(method, path, token):
                self._unauthenticated.pop(connection, None)
            body, pending = read_body(connection, pending, headers, length)
        except HttpError as refusal:
            refuse(connection, encode(refusal.status, refusal.problem, keep=False))
            return False, b""
        keep = headers.get("connection", "").lower() != "close"
        thread = _thread.get_ident()
        self._asking[thread] = connection
        answer = encode(*answer_to(self._handler, method, path, token, body), keep=keep)
        if self._asking.pop(thread, None) is None:
            return False, b""
        send(connection, answer)
        return keep, pending


def send(connection: socket.socket, answer: bytes) -> None:
    """Send the whole answer within `SEND_SECONDS`, or give up on a peer that does not read it."""
    connection.settimeout(SEND_SECONDS)
    with contextlib.suppress(OSError):
        connection.sendall(answer)


def refuse(connection: socket.socket, answer: bytes) -> None:
    """Send an answer and read some of the rest: closing a socket with unread bytes discards the answer."""
    send(connection, answer)
    deadline = time.monotonic() + DRAIN_SECONDS
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        for _ in range(DRAIN_PIECES):
            if not received(connection, MAX_HEAD, deadline):
                break


def end(connection: socket.socket) -> None:
    """Shut a connection down, so that the thread that serves it ends."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def received(connection: socket.socket, limit: int, deadline: float) -> bytes:
    """The next bytes, received before `deadline` (`time.monotonic`); raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    return connection.recv(limit)


def answer_to(handler: Handler, method: str, path: str, token: str, body: bytes) -> Reply:
    """Let the handler answer; an HttpError becomes its Problem."""
    try:
        try:
            document = bounds.parsed(body) if body else {}
        except ValueError as error:
            raise HttpError(400, "MalformedRequest", f"body is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise HttpError(400, "MalformedRequest", "body is not a JSON object")
        return handler(method, path, token, document)
    except HttpError as refusal:
        return refusal.status, refusal.problem


def read_head(connection: socket.socket, pending: bytes) -> tuple[bytes, bytes]:
    """Bytes up to the empty line, and the bytes after it; empty if the peer closed between requests."""
    deadline = time.monotonic() + (HEAD_SECONDS if pending else IDLE_SECONDS)
    began = bool(pending)
    while (end_of_head := pending.find(b"\r\n\r\n")) < 0:
        if len(pending) > MAX_HEAD:
            raise MalformedRequestError(400, f"request head above {MAX_HEAD} bytes")
        piece = received(connection, MAX_HEAD, deadline)
        if not piece:
            return b"", b""
        if not began:
            began, deadline = True, time.monotonic() + HEAD_SECONDS
        pending += piece
    return pending[:end_of_head], pending[end_of_head + 4 :]


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, path without query, and headers by lower-case name."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise MalformedRequestError(400, "not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or (name.lower() in headers and is_framing(name)):
            raise MalformedRequestError(400, "malformed header")
        headers[name.lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers["connection"] = "close"
    return words[0], words[1].partition("?")[0], headers


def is_framing(name: str) -> bool:
    """Whether a header decides where a request ends. Two of them are an attempt to smuggle a request."""
    return name.lower() in ("content-length", "transfer-encoding")


def length_of(headers: dict[str, str], limit: int) -> int:
    """Number of bytes of the body that a head announces, at most `limit`."""
    if "transfer-encoding" in headers:
        raise MalformedRequestError(411, "send a Content-Length; chunked bodies are not read")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise MalformedRequestError(413 if text.isdigit() else 400, "Content-Length is not a number of bytes")
    length = int(text)
    if length > limit:
        raise MalformedRequestError(413, f"body above {limit} bytes")
    return length


def read_body(
    connection: socket.socket, pending: bytes, headers: dict[str, str], length: int
) -> tuple[bytes, bytes]:
    """The body, and the bytes after it."""
    if headers.get("expect", "").lower() == "100-continue":
        send(connection, b"HTTP/1.1 100 Continue\r\n\r\n")
    parts = [pending]
    have = len(pending)
    deadline = time.monotonic() + BODY_SECONDS
    while have < length:
        piece = received(connection, min(1 << 20, length - have), deadline)
        if not piece:
            raise ConnectionResetError("peer closed inside a body")
        parts.append(piece)
        have += len(piece)
    whole = b"".join(parts)
    return whole[:length], whole[length:]


def encode(status: int, body: dict[str, Any] | None, *, keep: bool) -> bytes:
    """The bytes of an answer."""
    content = b"" if body is None else json.dumps(body, allow_nan=False).encode()
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\n"
    if status != 204:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n".encode() + content
