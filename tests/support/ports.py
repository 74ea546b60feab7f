"""Ports of this machine for what tests start.

A process may listen seconds after its port was chosen. So the kernel gives none of these to a connection,
and no two processes of the tests hand out the same.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

FIRST: Final = 12_000
"""Above the ports of a control plane, and below those of node ports (30000) and of connections (32768)."""
SHARE: Final = 1_000
WORKERS: Final = 16
"""Maximum processes of pytest-xdist; any other process takes the share after theirs."""


def share(worker: str | None) -> int:
    """First port of what a process hands out. `worker`: its name at pytest-xdist (gw0, gw1, ...)."""
    number = int(worker.removeprefix("gw")) if worker else WORKERS
    if number > WORKERS:
        raise ValueError(f"{worker}: there are ports for {WORKERS} workers")
    return FIRST + number * SHARE


_start: Final = os.getpid() % SHARE
_next = itertools.count(_start)


def free_port() -> int:
    """A port that nothing listens on, and that was not handed out for long.

    Raises:
        OSError: every port of this process's share is in use.
    """
    first = share(os.environ.get("PYTEST_XDIST_WORKER"))
    for offset in itertools.islice(_next, SHARE):
        port = first + offset % SHARE
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of one that has just ended
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of the ports {first} to {first + SHARE - 1} is free")
