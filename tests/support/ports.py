"""Chooses free ports of this machine for servers that tests start.

A process may begin to listen only seconds after its port was chosen. So the ports lie outside the range that
the kernel gives to connections, and no two test processes hand out the same ports.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

FIRST: Final = 12_000
"""Above the ports of a control plane, and below node ports (30000) and the kernel's own range (32768)."""
SHARE: Final = 1_000
WORKERS: Final = 16
"""Maximum processes of pytest-xdist. Any other process uses the share after theirs."""


def share(worker: str | None) -> int:
    """First port of a process's share. `worker`: the process's name in pytest-xdist (gw0, gw1, ...)."""
    number = int(worker.removeprefix("gw")) if worker else WORKERS
    if number > WORKERS:
        raise ValueError(f"{worker}: there are ports for {WORKERS} workers")
    return FIRST + number * SHARE


_start: Final = os.getpid() % SHARE
_next = itertools.count(_start)


def free_port() -> int:
    """A port on which nothing listens, and which was not handed out for a long time.

    Raises:
        OSError: every port of this process's share is in use.
    """
    first = share(os.environ.get("PYTEST_XDIST_WORKER"))
    for offset in itertools.islice(_next, SHARE):
        port = first + offset % SHARE
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # its last server may have just ended
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of the ports {first} to {first + SHARE - 1} is free")
