"""Probes the health of the daemons, with a client certificate where a daemon requires one."""

from __future__ import annotations

import http.client
import socket
import ssl
from pathlib import Path

from .layout import API_PORT, NODE_IP, Layout

TIMEOUT_S = 5


def api_get(layout: Layout, path: str) -> tuple[int, bytes]:
    """HTTP status and body of a GET request to the API server, as the administrator."""
    context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
    connection = http.client.HTTPSConnection(NODE_IP, API_PORT, context=context, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def api_ready(layout: Layout) -> bool:
    """Whether the API server reports that it is ready."""
    try:
        return api_get(layout, "/readyz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def accepts(port: int) -> bool:
    """Whether a process listens on a loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S).close()
    except OSError:
        return False
    return True


def local_ready(port: int, *, tls: bool, authority: Path | None = None) -> bool:
    """Whether `/healthz` on a loopback port answers 200."""
    connection: http.client.HTTPConnection
    if tls:
        context = ssl.create_default_context(cafile=str(authority) if authority else None)
        if authority is None:
            # The component listens only on loopback, with a self-signed certificate. No verification is
            # needed.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=TIMEOUT_S)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
