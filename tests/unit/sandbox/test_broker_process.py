"""The broker as a process: who may hold its connections, and for how long."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pods_api
import pytest
from ports import free_port
from role_keys import KEYS, TO_BROKER
from sandbox_broker import SMALL, job_config

from headway_api import names
from headway_sandbox.broker import __main__ as process
from headway_sandbox.broker import pods
from headway_sandbox.broker.kube import Credentials, Pods
from headway_wire import listening


@asynccontextmanager
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Run a broker that creates no pod. Yields its port."""
    api, port = pods_api.PodsApi([]), free_port()
    async with pods_api.served(api.app(), "127.0.0.1", 0) as server:

        def here(http: aiohttp.ClientSession, namespace: str) -> Pods:
            return Pods(http, server, namespace, ssl.create_default_context(), Credentials(None))

        monkeypatch.setattr(Pods, "in_cluster", here)
        monkeypatch.setattr(names, "PORT_BROKER", port)
        kind = pods.SandboxKind(
            job_config("team", "image", "u-1", sandbox={"warmPool": {"min": 0, "max": 1}})
        )
        running = asyncio.create_task(process.serve(kind, pods.Platform({}, SMALL, []), KEYS))
        try:
            await opened(port, running)
            yield port
        finally:
            running.cancel()
            await asyncio.wait([running])


async def opened(port: int, running: asyncio.Task[None]) -> None:
    async with asyncio.timeout(30):
        while True:
            assert not running.done(), running.exception()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


async def half(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/leases HTTP/1.1\r\nContent-Le")
    return reader, writer


async def over(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closes the connection without an answer.

    Raises:
        TimeoutError: The connection is still open after 20 s.
    """
    async with asyncio.timeout(20):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def test_the_broker_does_not_wait_for_a_late_request_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.3)
    async with broker(monkeypatch) as port:
        reader, writer = await half(port)
        assert await over(reader)
        writer.close()


async def test_half_requests_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has so few descriptors that it can serve only 32 connections."""
    monkeypatch.setattr(listening, "raise_descriptors", lambda: 64)
    async with broker(monkeypatch) as port:
        strangers = [await half(port) for _ in range(40)]
        headers = {"Authorization": f"Bearer {TO_BROKER}"}
        async with (
            asyncio.timeout(20),
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}/v1/pool", headers=headers) as answer,
        ):
            found: Any = await answer.json()
        assert found["leased"] == 0
        assert await over(strangers[0][0]), "the one that waited longest"
        for _, writer in strangers:
            writer.close()
