"""Tries which addresses this pod reaches, since only the pod itself sees whether a NetworkPolicy works.

This module uses only the standard library, like the whole server.
"""

from __future__ import annotations

import _thread
import socket
import time

from headway_sandbox.http import HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DESTINATIONS = 8
"""Equal to `headway_api.sandbox_api.MAX_DESTINATIONS`."""
SECONDS = 2.0
"""Seconds after which an attempt ends. If a policy drops the packets, there is never an answer."""
QUERY = b"HD\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01"
"""A DNS query for the root's name servers (RFC 1035, section 4), to which every name server responds."""
SENDS = 2
"""Number of datagrams to send during `SECONDS`, since one may be lost."""
PROTOCOLS = ("TCP", "UDP")
AT_START = (("169.254.169.254", 80, "TCP"), ("1.1.1.1", 443, "TCP"), ("1.1.1.1", 53, "UDP"))
"""Destinations to try at the start: a node's metadata server, and hosts of the internet by address, since a
sandbox knows no name server."""
BEGAN = time.monotonic()
"""When this process began, which is also when its pod began."""


def probe(body: dict[str, Any]) -> dict[str, Any]:
    """Try each destination: over TCP with a connection, over UDP with a DNS query.

    Returns which of them answered, and how old the pod was then.

    Raises:
        HttpError: the body has no list of destinations, or too long a list.
    """
    wanted = body.get("destinations")
    if not isinstance(wanted, list) or len(wanted) > DESTINATIONS:
        text = (
            f"destinations is not a list of at most {DESTINATIONS}; write [{{address, port, protocol}}, ...]"
        )
        raise HttpError(400, "BadRequest", text)
    tried = Tried([_place(each) for each in wanted])
    found = {"reached": tried.reached(), "age": tried.age, "protocols": list(PROTOCOLS)}
    return found if STARTED is None else {**found, "start": STARTED.as_object()}


class Tried:
    """Destinations that are being tried, each in its own thread."""

    def __init__(self, places: list[tuple[str, int, str]]) -> None:
        self.places = places
        self.age = time.monotonic() - BEGAN
        """Age of the pod at the start of the attempt."""
        self._reached = [False] * len(places)
        self._over = [_thread.allocate_lock() for _ in places]
        for number, place in enumerate(places):
            self._over[number].acquire()
            _thread.start_new_thread(_try, (place, number, self._reached, self._over[number]))

    def reached(self) -> list[bool]:
        """Which destinations answered, once every attempt has ended."""
        for lock in self._over:
            lock.acquire()
            lock.release()
        return self._reached

    def as_object(self) -> dict[str, Any]:
        """The destinations, which of them answered once every attempt has ended, and the pod's age."""
        keys = ("address", "port", "protocol")
        places = [dict(zip(keys, place, strict=True)) for place in self.places]
        return {"destinations": places, "reached": self.reached(), "age": self.age}


STARTED: Tried | None = None
"""The attempts that began with this process; None if there were none."""


def begin(environ: Mapping[str, str]) -> None:
    """Try at the process's start what every cloud or cluster has, since a policy may take effect late."""
    global STARTED
    places = list(AT_START)
    if "KUBERNETES_SERVICE_HOST" in environ:
        port = environ.get("KUBERNETES_SERVICE_PORT", "443")
        places.append((environ["KUBERNETES_SERVICE_HOST"], int(port), "TCP"))
    STARTED = Tried(places)


def _place(one: Any) -> tuple[str, int, str]:
    address = one.get("address") if isinstance(one, dict) else None
    port = one.get("port") if isinstance(one, dict) else None
    if not isinstance(address, str) or type(port) is not int or not 0 < port < 65536:
        text = "a destination has no address, or no port from 1 to 65535; write {address, port}"
        raise HttpError(400, "BadRequest", text)
    protocol = one.get("protocol", "TCP")
    if protocol not in PROTOCOLS:
        raise HttpError(400, "BadRequest", "the protocol of a destination is neither TCP nor UDP")
    return address, port, protocol


def _try(place: tuple[str, int, str], number: int, reached: list[bool], over: _thread.LockType) -> None:
    try:
        address, port, protocol = place
        (_ask if protocol == "UDP" else _connect)(address, port)
        reached[number] = True
    except (OSError, ValueError, OverflowError):
        pass
    finally:
        over.release()


def _connect(address: str, port: int) -> None:
    """Return once a connection is open; raises OSError."""
    socket.create_connection((address, port), SECONDS).close()


def _ask(address: str, port: int) -> None:
    """Return once a name server has answered; raises OSError."""
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asking:
        asking.settimeout(SECONDS / SENDS)
        asking.connect(place)
        for left in reversed(range(SENDS)):
            asking.send(QUERY)
            try:
                asking.recv(512)
                return
            except TimeoutError:
                if not left:
                    raise
