"""Connections of a server: their maximum number, and which one is closed for a new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headway_wire.connections import Connections


class Echo(asyncio.Protocol):
    """A protocol that echoes what it received. `made` lists the transports in order of creation."""

    def __init__(self, made: list[asyncio.Transport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._made.append(transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@dataclass
class Bench:
    connections: Connections
    port: int
    made: list[asyncio.Transport] = field(default_factory=list)

    async def open(self, peer: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from that address, and wait until the server has accepted or dropped it."""
        before = len(self.made) + self.connections.dropped
        found = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(peer, 0))
        async with asyncio.timeout(20):
            while len(self.made) + self.connections.dropped == before:
                await asyncio.sleep(0.001)
        return found


@asynccontextmanager
async def bench(descriptors: int) -> AsyncIterator[Bench]:
    connections = Connections(descriptors)
    found = Bench(connections, 0)
    server = await asyncio.get_running_loop().create_server(
        connections.guarded(lambda: Echo(found.made)), "127.0.0.1", 0
    )
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        for transport in found.made:
            transport.abort()


async def alive(pair: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    reader, writer = pair
    writer.write(b"x")
    async with asyncio.timeout(20):
        try:
            return await reader.read(1) == b"x"
        except ConnectionError:
            return False


async def test_a_flood_from_one_peer_ends_its_own_oldest() -> None:
    async with bench(128) as b:
        assert (b.connections.maximum, b.connections.max_of_a_peer) == (64, 32)
        others = [await b.open("127.0.0.2") for _ in range(3)]
        flood = [await b.open("127.0.0.1") for _ in range(40)]
        assert [await alive(one) for one in others] == [True] * 3
        assert [await alive(one) for one in flood] == [False] * 8 + [True] * 32


async def test_a_flood_from_many_peers_ends_the_largest_one() -> None:
    async with bench(128) as b:
        few = [await b.open("127.0.0.9") for _ in range(4)]
        for peer in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            for _ in range(30):
                await b.open(peer)
        assert [await alive(one) for one in few] == [True] * 4
        assert b.connections.dropped == 4 + 90 - 64


async def test_a_connection_with_a_known_request_is_kept() -> None:
    async with bench(64) as b:
        known = [await b.open("127.0.0.1") for _ in range(16)]
        for transport in b.made:
            b.connections.keep_open(transport)
        refused = await b.open("127.0.0.1")
        assert not await alive(refused)
        assert [await alive(one) for one in known] == [True] * 16
        b.connections.wait_again(b.made[3])
        assert await alive(await b.open("127.0.0.1"))
        assert [await alive(one) for one in known] == [n != 3 for n in range(16)]


async def test_a_connection_that_ends_frees_its_place() -> None:
    async with bench(64) as b:
        for _ in range(50):
            _, writer = await b.open("127.0.0.1")
            b.connections.keep_open(b.made[-1])
            writer.close()
            async with asyncio.timeout(20):
                while not b.made[-1].is_closing():
                    await asyncio.sleep(0.001)
        assert b.connections.dropped == 0
