"""Answers that no honest server gives: a fixed list, random ones by a seed, and a server that sends them."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

MIB = 1024 * 1024
Parts = Callable[[], Iterable[bytes | float]]
"""Returns bytes to write, and seconds to wait between them."""


@dataclass(frozen=True)
class Evil:
    """One answer."""

    name: str
    parts: Parts
    slow: bool = False
    """The answer never ends by itself, so the client's deadline has to end it."""


def reply(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    """A whole HTTP answer."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {size}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def whole(name: str, body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> Evil:
    return Evil(name, lambda: [reply(body, status, *headers, length=length)])


@cache
def bomb(size: int) -> bytes:
    """`size` zero bytes as gzip, which are a thousandth of that size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join([*parts, packer.flush()])


def _endless() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"10000\r\n" + b"[" * 65536 + b"\r\n"


def _dripping() -> Iterator[bytes | float]:
    yield b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{"a": "'
    while True:
        yield 0.05
        yield b"a"


def _slow_head() -> Iterator[bytes | float]:
    yield b"HTTP/1.1 200 OK\r\nX: "
    while True:
        yield 0.05
        yield b"a"


def _early() -> Iterator[bytes | float]:
    while True:
        yield b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 10
        yield 0.01


def everywhere() -> list[Evil]:
    """Answers that every reader must refuse, whatever it requested."""
    wide = b"[" + b"{}," * (2 * MIB) + b"{}]"
    problem = {"reason": "X" * 5000, "message": "m" * 60_000, "field": "f" * 1000, "permanent": True}
    return [
        whole("no JSON", b"hello"),
        whole("a page", b"<!DOCTYPE html><html></html>"),
        whole("nothing", b""),
        whole("deep lists", b"[" * 90_000),
        whole("deep objects", b'{"a":' * 5000 + b"1" + b"}" * 5000),
        whole("wide", wide),
        whole("long", b'"' + b"a" * (9 * MIB) + b'"'),
        whole("a bomb", bomb(128 * MIB), "200 OK", "Content-Encoding: gzip"),
        whole("a bomb by another name", bomb(128 * MIB), "200 OK", "Content-Encoding: deflate"),
        whole("a bomb that refuses", bomb(128 * MIB), "500 Error", "Content-Encoding: gzip"),
        whole("gzip that nobody named", bomb(16 * MIB)),
        whole("an encoding that nobody knows", b"{}", "200 OK", "Content-Encoding: x-evil"),
        whole("cut short", b'{"a": 1', length=1000),
        whole("a promise of petabytes", b"{}", length=10**15),
        whole("no length", b"{}", "200 OK", "Content-Length: -1"),
        whole("NUL", b"\0\0\0"),
        whole("half a pair", b'{"a": "\\ud800"}'),
        whole("bytes that are not text", b'{"a": "\xff\xfe"}'),
        whole("an infinite number", b'{"a": 1e999}'),
        whole("no number", b'{"a": NaN}'),
        whole("an integer of many digits", b'{"a": ' + b"9" * 10_000 + b"}"),
        whole("a refusal of megabytes", b"x" * (9 * MIB), "500 Error"),
        whole("a refusal that is too much", json.dumps(problem).encode(), "409 Conflict"),
        whole("a refusal for ever", b"{}", "503 Busy", "Retry-After: 1e300"),
        whole("a refusal until never", b"{}", "429 Busy", "Retry-After: nan"),
        whole(
            "a date of many digits", b"{}", "503 Busy", f"Retry-After: Mon, 01 Jan {'9' * 20} 00:00:00 GMT"
        ),
        whole("a redirect", b"", "307 There", "Location: http://127.0.0.1:1/" + "a" * 5000),
        whole("a redirect to nowhere", b"", "302 There", "Location: \x7f://"),
        whole("a status that is none", b"{}", "999 What"),
        whole("heads without end", b"{}", "200 OK", *(f"X-{n}: {'a' * 50}" for n in range(5000))),
        whole("a head of a megabyte", b"{}", "200 OK", "X: " + "a" * MIB),
        Evil("no HTTP", lambda: [b"\x16\x03\x01 what is this\r\n\r\n"]),
        Evil("a line without end", lambda: [b"HTTP/1.1 200 " + b"a" * MIB]),
        Evil("silence", list),
        Evil("endless", _endless, slow=True),
        Evil("dripping", _dripping, slow=True),
        Evil("a slow head", _slow_head, slow=True),
        Evil("early hints for ever", _early, slow=True),
    ]


VALUES: tuple[Any, ...] = (
    *(None, True, "", "\0", "\ud83d", "text", "9" * 400, -1, 0, 2**63, 10**400, 1e200, -1e200, 1e999),
    *([], {}, [[]], [{}], {"": None}, [0] * 5000, "a" * 200_000, float("nan"), float("-inf")),
)


def grown(good: Any, seed: int, count: int) -> Iterator[Evil]:
    """Random answers: `good` with one to three places changed."""
    chance = random.Random(seed)
    for number in range(count):
        found = copy.deepcopy(good)
        for _ in range(chance.randint(1, 3)):
            found = changed(found, chance)
        body = json.dumps(found).encode()
        if chance.random() < 0.1:
            body = body[: chance.randrange(len(body) + 1)]
        yield whole(f"{number} of seed {seed}: {body[:120]!r}", body)


def changed(value: Any, chance: random.Random) -> Any:
    """`value` with one change: a part of it is replaced, removed, added or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if (way := chance.random()) < 0.1:
            return {name: one for name, one in value.items() if name != key}
        if way < 0.2:
            return value | {"surplus": chance.choice(VALUES)}
        return value | {key: changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        place = chance.randrange(len(value))
        if chance.random() < 0.15:
            return value * 2
        return [*value[:place], changed(value[place], chance), *value[place + 1 :]]
    return chance.choice(VALUES)


class Server:
    """Sends `evil` as the answer to each request, and closes the connection."""

    def __init__(self) -> None:
        self.evil = whole("nothing", b"")
        self.heads: list[bytes] = []
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if (length := re.search(rb"(?i)content-length: *([0-9]+)", head)) is not None:
                await reader.readexactly(int(length[1]))
            for part in self.evil.parts():
                if isinstance(part, float):
                    await asyncio.sleep(part)
                else:
                    writer.write(part)
                    await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def evil_server() -> AsyncIterator[Server]:
    """Run a `Server` on the loopback interface."""
    served = Server()
    listening = await asyncio.start_server(served._serve, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        listening.close()
