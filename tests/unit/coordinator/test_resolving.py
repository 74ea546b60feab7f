"""A hosts file resolves the names of Services instead of DNS."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from headway_api import names
from headway_coordinator.engines.discovery import by_dns
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.resolving import HostsResolver

HOST = "refunds-rollout.team.svc"


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "hosts"
    monkeypatch.setenv(names.ENV_HOSTS, str(file))
    return file


def listed(hosts: Path, *lines: str) -> None:
    hosts.write_text("".join(f"{line}\n" for line in lines))


def endpoint(ip: str) -> Endpoint:
    return Endpoint(f"http://{ip}:8000", f"http://{ip}:8001")


async def test_servers_are_those_that_the_file_lists_now(hosts: Path) -> None:
    discover = by_dns(HOST)
    listed(hosts, f"127.9.0.2 {HOST}", f"127.9.0.3 {HOST}", "127.9.0.4 other.team.svc")
    assert await discover() == {endpoint("127.9.0.2"), endpoint("127.9.0.3")}
    listed(hosts, "127.9.0.4 other.team.svc")
    assert await discover() == set()


async def test_unreadable_file_leaves_the_servers_unchanged(hosts: Path) -> None:
    discover = by_dns(HOST)
    listed(hosts, f"127.9.0.2 {HOST}")
    before = await discover()
    os.unlink(hosts)
    assert await discover() == before


async def test_a_connection_goes_where_the_file_says(hosts: Path) -> None:
    listed(hosts, f"127.9.0.2 {HOST}")
    resolver = HostsResolver(hosts)
    try:
        (found,) = await resolver.resolve(HOST, 80)
        assert (found["host"], found["port"], found["family"]) == ("127.9.0.2", 80, socket.AF_INET)
        (found, *_) = await resolver.resolve("localhost", 80)
        assert found["host"] == "127.0.0.1"
    finally:
        await resolver.close()
