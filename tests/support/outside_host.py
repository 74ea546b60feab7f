"""A host that is outside the cluster for its pods: a network namespace on the node, which is routed to.

Its address is one for documentation (RFC 5737), so no real network has it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "headway-outside"
LINK = "headway-out"
NODE_SIDE, ADDRESS, PORT = "198.51.100.1", "198.51.100.2", 8080
LISTEN = """
import signal, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
signal.pause()
"""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _listening(*, deadline_s: float) -> None:
    ends = time.monotonic() + deadline_s
    while True:
        try:
            socket.create_connection((ADDRESS, PORT), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < ends, f"nothing listens on {ADDRESS} after {deadline_s:.0f} s"
            time.sleep(0.1)


@contextmanager
def outside_host() -> Iterator[tuple[str, int]]:
    """Address and port of a server on that host, which accepts every connection. Needs root on the node."""
    for leftover in (("link", "delete", LINK), ("netns", "delete", NAME)):  # from a run that was killed
        subprocess.run(["ip", *leftover], check=False, capture_output=True)
    _ip("netns", "add", NAME)
    try:
        _ip("link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", NAME)
        _ip("address", "add", f"{NODE_SIDE}/30", "dev", LINK)
        _ip("link", "set", LINK, "up")
        for command in (
            ("address", "add", f"{ADDRESS}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", NODE_SIDE),
        ):
            _ip("-n", NAME, *command)
        with subprocess.Popen(
            ["ip", "netns", "exec", NAME, sys.executable, "-c", LISTEN, ADDRESS, str(PORT)]
        ) as server:
            try:
                _listening(deadline_s=10)
                yield ADDRESS, PORT
            finally:
                server.terminate()
    finally:
        # The link would disappear with the namespace too, but only some time later.
        subprocess.run(["ip", "link", "delete", LINK], check=False)
        _ip("netns", "delete", NAME)
