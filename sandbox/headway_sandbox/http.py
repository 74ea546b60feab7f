"""As much of HTTP/1.1 as one sandbox needs: keep-alive, Content-Length bodies, JSON in and out.

Importing `http.server` alone (email, html, urllib, datetime...) takes 45 ms of CPU; this whole server with
an environment takes 26 ms, interpreter included, and that is paid once an episode. What is left out is
refused, never guessed at: chunked bodies get 411, oversized ones 413, anything that is not HTTP gets 400
and a closed connection.
"""

from __future__ import annotations

import _thread
import json
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reply = tuple[int, dict[str, Any] | None]
    Handler = Callable[[str, str, str, dict[str, Any]], Reply]
    """(method, path, bearer token, JSON body) -> (status, JSON body)."""

MAX_HEAD = 16 * 1024
MAX_BODY = 32 * 1024 * 1024
IDLE_SECONDS = 300.0
"""A connection that sends nothing for this long is closed."""
REASONS = {200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
           409: "Conflict", 411: "Length Required", 413: "Content Too Large",
           500: "Internal Server Error"}  # fmt: skip


class Refusal(Exception):
    """Answered with `status` and a Problem document (`headway_api.sandbox_api.Problem`)."""

    def __init__(
        self, status: int, reason: str, message: str, *, field: str | None = None, permanent: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problem = {"reason": reason, "message": message, "field": field, "permanent": permanent}


class Malformed(Refusal):
    """The bytes on the wire are no request this server reads; the connection is closed after the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, "MalformedRequest", message)


def listen(port: int) -> socket.socket:
    """Listen on every address of the pod, IPv4 and IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=32, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=32)


def serve(listener: socket.socket, handler: Handler) -> None:
    """Answer for ever, one thread a connection, so that a slow tool does not hide `/healthz`."""
    while True:
        connection, _ = listener.accept()
        connection.settimeout(IDLE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _thread.start_new_thread(converse, (connection, handler))


def converse(connection: socket.socket, handler: Handler) -> None:
    """Answer one connection's requests until its peer leaves, falls silent or is not understood."""
    pending = b""
    with connection:
        while True:
            try:
                head, pending = read_head(connection, pending)
                if not head:
                    return
                method, path, headers = parse_head(head)
                body, pending = read_body(connection, pending, headers)
            except Malformed as refusal:
                connection.sendall(encode(refusal.status, refusal.problem, keep=False))
                return
            except OSError:  # the peer left in the middle of a request: nobody is there to be answered
                return
            keep = headers.get("connection", "").lower() != "close"
            answer = encode(*answer_to(handler, method, path, headers, body), keep=keep)
            try:
                connection.sendall(answer)
            except OSError:
                return
            if not keep:
                return


def answer_to(handler: Handler, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
    """Let the handler answer; a Refusal becomes its Problem."""
    try:
        try:
            document = json.loads(body) if body else {}
        except ValueError as error:
            raise Refusal(400, "MalformedRequest", f"body is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise Refusal(400, "MalformedRequest", "body is not a JSON object")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return handler(method, path, token if scheme.lower() == "bearer" else "", document)
    except Refusal as refusal:
        return refusal.status, refusal.problem


def read_head(connection: socket.socket, pending: bytes) -> tuple[bytes, bytes]:
    """Bytes up to the empty line, and what came behind it; empty where the peer closed between requests."""
    while (end := pending.find(b"\r\n\r\n")) < 0:
        if len(pending) > MAX_HEAD:
            raise Malformed(400, f"request head above {MAX_HEAD} bytes")
        received = connection.recv(65536)
        if not received:
            return b"", b""
        pending += received
    return pending[:end], pending[end + 4 :]


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, path without query, and headers by lower-case name."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise Malformed(400, "not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or (name.lower() in headers and is_framing(name)):
            raise Malformed(400, "malformed header")
        headers[name.lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers["connection"] = "close"
    return words[0], words[1].partition("?")[0], headers


def is_framing(name: str) -> bool:
    """Headers that decide where a request ends; two of them are an attempt to smuggle one."""
    return name.lower() in ("content-length", "transfer-encoding")


def read_body(connection: socket.socket, pending: bytes, headers: dict[str, str]) -> tuple[bytes, bytes]:
    """The body, and what came behind it."""
    if "transfer-encoding" in headers:
        raise Malformed(411, "send a Content-Length; chunked bodies are not read")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise Malformed(400, "Content-Length is not a number")
    length = int(text)
    if length > MAX_BODY:
        raise Malformed(413, f"body above {MAX_BODY} bytes")
    if headers.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    parts = [pending]
    have = len(pending)
    while have < length:
        received = connection.recv(min(1 << 20, length - have))
        if not received:
            raise ConnectionResetError("peer closed inside a body")
        parts.append(received)
        have += len(received)
    whole = b"".join(parts)
    return whole[:length], whole[length:]


def encode(status: int, body: dict[str, Any] | None, *, keep: bool) -> bytes:
    """An answer on the wire."""
    content = b"" if body is None else json.dumps(body, allow_nan=False).encode()
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\n"
    if status != 204:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n".encode() + content
