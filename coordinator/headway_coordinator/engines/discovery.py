"""Finds the rollout servers by the addresses behind their Service."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from headway_api import names
from headway_coordinator import resolving
from headway_coordinator.engines.router import Endpoint

Discover = Callable[[], Awaitable[set[Endpoint]]]


def by_dns(host: str) -> Discover:
    """A function that finds the addresses behind a headless Service.

    If the name server cannot answer, the function returns the last known addresses.
    """
    known: set[Endpoint] = set()

    async def discover() -> set[Endpoint]:
        nonlocal known
        try:
            found = await resolving.addresses(host, resolving.hosts_file())
        except socket.gaierror as error:
            # An unavailable name server says nothing about the rollout servers, so their requests continue.
            known = known if error.errno == socket.EAI_AGAIN else set()
        else:
            known = {_endpoint(address) for address in found}
        return known

    return discover


def _endpoint(ip: str) -> Endpoint:
    host = f"[{ip}]" if ":" in ip else ip
    return Endpoint(f"http://{host}:{names.PORT_ENGINE}", f"http://{host}:{names.PORT_WEIGHTS}")
