"""Has a sandbox try addresses that it must not reach, as evidence that the network isolates sandboxes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from headway_analysis.preflight.evidence import Probe
from headway_api import logs
from headway_api.sandbox_api import Destination, ProbedAtStart
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.faults import InfraError
from headway_coordinator.sandboxes import Broker

METADATA: Final = Destination(name="metadata address", address="169.254.169.254", port=80)
INTERNET: Final = Destination(name="internet", address="1.1.1.1", port=443)
INTERNET_DNS: Final = Destination(name="DNS of the internet", address="1.1.1.1", port=53, protocol="UDP")
RESOLVER: Final = Path("/etc/resolv.conf")
_log = logging.getLogger(__name__)


def destinations(environ: Mapping[str, str] = os.environ, resolver: Path = RESOLVER) -> list[Destination]:
    """The addresses that a sandbox tries: of the cloud, of the internet, and of the cluster's own services.

    The addresses of the cluster are those that this process uses.
    """
    found = [METADATA]
    if (api := environ.get("KUBERNETES_SERVICE_HOST")) is not None:
        port = int(environ.get("KUBERNETES_SERVICE_PORT", "443"))
        found.append(Destination(name="API server", address=api, port=port))
    try:
        lines = [line.split() for line in resolver.read_text().splitlines()]
    except OSError:
        lines = []
    servers = [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver"]
    for server in servers[:1]:
        found.append(Destination(name="DNS", address=server, port=53))
        found.append(Destination(name="DNS over UDP", address=server, port=53, protocol="UDP"))
    return [*found, INTERNET, INTERNET_DNS]


async def probe(
    spec: RLTrainingJobSpec, broker: Broker, lease: str, wanted: list[Destination]
) -> list[Probe]:
    """The addresses that one sandbox tried, each with whether the sandbox reached it.

    The list is empty if the sandbox cannot report, for example because its image has an older server. A
    server that knows only TCP reports nothing about UDP.

    Raises:
        JobError: `Superseded`: another coordinator has claimed the sandboxes.
    """
    seconds, limit = spec.environment.sandbox.deadline_seconds, spec.rollout.timeout_seconds
    try:
        async with asyncio.timeout(limit), broker.lease(lease, seconds, limit) as sandbox:
            probed = await sandbox.probe(wanted)
    except (InfraError, TimeoutError) as fault:
        logs.event(_log, "not-probed", level=logging.WARNING, error=str(fault))
        return []
    found = [
        Probe(each.name, f"{each.address}:{each.port}", hit, probed.age)
        for each, hit in zip(wanted, probed.reached, strict=False)
        if each.protocol in probed.protocols
    ]
    return found if probed.start is None else [*_at_start(probed.start, wanted), *found]


def _at_start(probed: ProbedAtStart, wanted: list[Destination]) -> Iterator[Probe]:
    """The addresses that the sandbox tried at its start, under the names that this process uses."""
    known = {(one.address, str(one.port), str(one.protocol)): one.name for one in wanted}
    for one, hit in zip(probed.destinations, probed.reached, strict=False):
        address, port, protocol = (str(one.get(name)) for name in ("address", "port", "protocol"))
        name = known.get((address, port, protocol), protocol)
        yield Probe(name, f"{address}:{port}", hit, probed.age)
