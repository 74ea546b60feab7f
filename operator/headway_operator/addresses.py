"""Decides to which hosts a job may make the platform's processes send requests. Pure.

These functions judge only the text of an address. A host name is resolved later, and may then lead elsewhere.
The network has to guard against that (docs/security.md).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from headway_api.bounds import shortened

METADATA: Final = frozenset(
    ipaddress.ip_address(address)
    for address in ("100.100.100.200", "168.63.129.16", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254")
)
"""Addresses of the clouds' metadata servers, besides the link-local ones."""
METADATA_NAMES: Final = frozenset(
    {
        *("metadata", "metadata.goog", "metadata.google.internal", "metadata.azure.internal"),
        *("instance-data", "instance-data.ec2.internal"),
    }
)
API_SERVER: Final = re.compile(r"kubernetes(\.default(\.svc(\..+)?)?)?")
LOOPBACK_NAMES: Final = re.compile(r"(.+\.)?localhost|localhost\.localdomain|ip6-(localhost|loopback)")
NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""The well-known prefix that precedes an IPv4 address (RFC 6052)."""
LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
"""The prefix of a network's own translators (RFC 8215). The translators choose how many bits
precede the address."""
UNCLEAR_STEPS: Final = re.compile(r"%25|%5c", re.IGNORECASE)
"""A doubly escaped character or an escaped backslash in a path. Servers disagree on what these mean."""
PORTS: Final = {"http": 80, "https": 443}
WILD: Final = "*."
"""Prefix of a pattern's host that matches any subdomain."""
PATTERN: Final = re.compile(r"https?://((\*\.)?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[^*?#\s]*)?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Url:
    """The parts of a URL that decide where it leads."""

    scheme: str
    host: str
    port: int
    path: str


def read(url: str) -> Url | None:
    """Parse a URL. The result is None if two parsers might disagree on its host."""
    if not url.isascii() or re.search(r"[\\\s\x00-\x1f\x7f]", url):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or "%" in host or parts.scheme not in PORTS:
        return None
    return Url(parts.scheme, host.rstrip("."), port or PORTS[parts.scheme], parts.path or "/")


def check_pattern(pattern: str) -> str:
    """Validate a pattern of addresses that jobs may name: scheme, host, port and the beginning of the path.

    Raises:
        ValueError: the text is not a pattern. The message says what to write.
    """
    if PATTERN.fullmatch(pattern) is None or _of_pattern(pattern) is None:
        raise ValueError(
            f"{shortened(pattern, 200)} is not a pattern of addresses; write http(s)://HOST[:PORT][/PATH], "
            f"where HOST may begin with {WILD}"
        )
    return pattern


def matches(pattern: str, url: Url) -> bool:
    """Whether a URL matches a pattern in scheme, host and port, and its path is the pattern's or below it."""
    known = _of_pattern(pattern)
    if known is None or (known.scheme, known.port) != (url.scheme, url.port):
        return False
    below = url.host.endswith(f".{known.host}") if is_wild(pattern) else url.host == known.host
    start = known.path.rstrip("/")
    return below and not _climbs(url.path) and (url.path == start or url.path.startswith(f"{start}/"))


def _climbs(path: str) -> bool:
    """Whether some server may resolve a path to a place outside its prefix."""
    # A servlet container drops everything after a semicolon in a segment: it reads /v1/..;/x as /x.
    steps = (step.partition(";")[0] for step in unquote(path).split("/"))
    return UNCLEAR_STEPS.search(path) is not None or ".." in steps


def is_wild(pattern: str) -> bool:
    """Whether a pattern matches any subdomain of its host."""
    return f"//{WILD}" in pattern


def _of_pattern(pattern: str) -> Url | None:
    return read(pattern.replace(f"//{WILD}", "//", 1))


def forbidden(host: str, api_server: str = "") -> str | None:
    """Why no job may send requests to a host; None if a job may.

    Args:
        host: the host of a URL, in lower case.
        api_server: the API server's address in the cluster.
    """
    if API_SERVER.fullmatch(host) or host == api_server:
        return "the API server"
    if host in METADATA_NAMES:
        return "a node's metadata"
    if LOOPBACK_NAMES.fullmatch(host):
        return "a loopback address"
    found = _numbers(host)
    if found is None:
        return None
    server = _numbers(api_server) if api_server else None
    return next(filter(None, (_address_forbidden(one, server) for one in (found, *_embedded(found)))), None)


def _address_forbidden(address: Address, server: Address | None) -> str | None:
    if address == server:
        return "the API server"
    if address in METADATA:
        return "a node's metadata"
    if address.is_loopback or address.is_unspecified:
        return "a loopback address"
    return "a link-local address, as a node's metadata has" if address.is_link_local else None


def _numbers(host: str) -> Address | None:
    """The address that a host spells, in any form that a resolver accepts: 2852039166 is 169.254.169.254."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        pass
    try:
        found = ipaddress.IPv6Address(host)
    except ValueError:
        return None
    return found.ipv4_mapped or found.sixtofour or _translated(found) or found


def _translated(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address behind NAT64's well-known prefix (RFC 6052)."""
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else None


def _embedded(address: Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that a network's own translator may read in an address.

    They begin after 48, 56, 64 or 96 bits, and skip bits 64 to 71 (RFC 6052, 2.2).
    """
    if not isinstance(address, ipaddress.IPv6Address) or address not in LOCAL_NAT64:
        return []
    octets = address.packed
    kept = octets[:8] + octets[9:]
    parts = (kept[6:10], kept[7:11], kept[8:12], octets[12:])
    return [ipaddress.IPv4Address(part) for part in parts if any(part)]
