"""What Kubernetes may ask a learner pod: is it alive, is it ready.

Alive means that something was finished within `STALL` seconds; a collective that hangs for good is not
alive. Ready means that the coordinator knows the step this learner is at.
"""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

STALL: Final = 4 * 3600.0
"""Longer than ranks wait for one another (`ranks.CONTROL_TIMEOUT`), and than a resumption with its download
and its conversion, so that slow work is no hung process; ranks that wait for a hung one end by themselves."""


class Probes:
    """Serves `/healthz` and `/readyz` from a thread."""

    def __init__(self, port: int) -> None:
        self.ready = False
        self._beaten = time.monotonic()
        probes = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                fine = {"/healthz": probes.alive, "/readyz": probes.ready}.get(self.path)
                self.send_response(404 if fine is None else 200 if fine else 503)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line."""

        self._server = ThreadingHTTPServer(("", port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="probes", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens; of use when asked for port 0."""
        return int(self._server.server_address[1])

    @property
    def alive(self) -> bool:
        """Was there a beat lately."""
        return time.monotonic() - self._beaten < STALL

    def beat(self) -> None:
        """Something was finished."""
        self._beaten = time.monotonic()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
