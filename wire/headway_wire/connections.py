"""Limits how many connections a server keeps, and decides which one it closes when it is full.

A server that accepts connections until its process has no file descriptor left must reset every client. So a
server uses at most half of the process's descriptors for connections. If it is full, a new connection
replaces a waiting one, which has no request of a known client. The server closes the oldest waiting
connection of the peer that has most of them.

This module uses only the standard library. The server around it sets deadlines for heads and bodies.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

ENOUGH: Final = 65_536
"""Descriptors that a process asks for, if its hard limit allows that many."""
FEWEST: Final = 16
"""Lowest limit of connections."""
BACKLOG: Final = 128
"""Connections that the kernel completes before they are accepted."""


def raise_descriptors() -> int:
    """Raise this process's soft limit of descriptors as far as allowed and useful; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    maximum = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= maximum:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, hard))
    return maximum


class Connections:
    """The connections of one server."""

    def __init__(self, descriptors: int) -> None:
        """`descriptors`: how many the process may have. Half of them are for connections to this server. One
        peer may have half of these connections."""
        self.maximum = max(FEWEST, descriptors // 2)
        self.max_of_a_peer = max(FEWEST, self.maximum // 2)
        self.backlog = min(BACKLOG, max(FEWEST, self.maximum // 2))
        self.dropped = 0
        """Number of connections that were closed to make room for others, or refused for lack of room."""
        self._open: dict[asyncio.BaseTransport, Guard] = {}
        self._of_peer: Counter[str] = Counter()
        self._waiting: dict[Guard, None] = {}
        """Waiting connections, in the order in which they began to wait."""

    def guarded(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """The factory of a server's protocols, with each protocol in a guard."""
        return lambda: Guard(make(), self)

    def keep_open(self, transport: asyncio.BaseTransport | None) -> None:
        """Keep a connection with a known client's request, so that no other connection replaces it."""
        if transport is not None and (guard := self._open.get(transport)) is not None:
            self._waiting.pop(guard, None)
            guard.on_reset = None

    def on_reset(self, transport: asyncio.BaseTransport | None, call: Callable[[], None]) -> None:
        """Call `call` once if the other side resets this connection before its next request.

        The other side resets a connection if it closes it before it has read all bytes. Otherwise the
        connection ends without a reset.
        """
        if transport is not None and (guard := self._open.get(transport)) is not None:
            guard.on_reset = call

    def wait_again(self, transport: asyncio.BaseTransport | None) -> None:
        """Let a connection wait again after the answer to its request."""
        if transport is not None and (guard := self._open.get(transport)) is not None:
            self._waiting[guard] = None

    def admit(self, guard: Guard) -> bool:
        """Accept a new connection, and close another if necessary; returns whether there was room."""
        crowded = self._of_peer[guard.peer] >= self.max_of_a_peer
        if (crowded or len(self._open) >= self.maximum) and not self._made_room(
            guard.peer if crowded else None
        ):
            self.dropped += 1
            return False
        self._open[guard.transport] = guard
        self._of_peer[guard.peer] += 1
        self._waiting[guard] = None
        return True

    def forget(self, guard: Guard) -> None:
        """Forget a connection that is gone."""
        self._waiting.pop(guard, None)
        if self._open.pop(guard.transport, None) is not None:
            self._of_peer[guard.peer] -= 1
            if not self._of_peer[guard.peer]:
                del self._of_peer[guard.peer]

    def _made_room(self, peer: str | None) -> bool:
        """Close the oldest waiting connection of `peer`; if it is None, of the peer that has most of them."""
        if peer is None:
            maximum = Counter(guard.peer for guard in self._waiting).most_common(1)
            peer = maximum[0][0] if maximum else None
        oldest = next((guard for guard in self._waiting if guard.peer == peer), None)
        if oldest is None:
            return False
        self.dropped += 1
        self.forget(oldest)
        oldest.transport.abort()
        return True


class Guard(asyncio.Protocol):
    """One connection, passed to the server's own protocol if there is room for it."""

    transport: asyncio.Transport
    peer: str = ""
    """The other side's address."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self._admitted = False
        self.on_reset: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        name: Any = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) and name else ""
        self._admitted = self._connections.admit(self)
        if self._admitted:
            self._inner.connection_made(transport)
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._admitted:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._admitted else None

    def pause_writing(self) -> None:
        if self._admitted:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._admitted:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        if self._admitted:
            self._inner.connection_lost(exc)
        if exc is not None and self.on_reset is not None:
            self.on_reset()
