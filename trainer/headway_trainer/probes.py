"""Answers Kubernetes' probes of a learner pod: liveness and readiness.

A learner is alive if its loop made progress within `STALL` seconds. So a learner whose collective hangs is
not alive. It is ready once the coordinator knows its step.
"""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler
from typing import Final

from headway_wire.threads import ThreadedServer

STALL: Final = 4 * 3600.0
"""Seconds without progress after which the learner is not alive.

It is longer than ranks wait for one another (`ranks.CONTROL_TIMEOUT`), and longer than a resumption with its
download and conversion. So slow work does not look like a hung process. Ranks that wait for a hung rank end
by themselves.
"""


class Probes:
    """Serves `/healthz` and `/readyz` from a thread."""

    def __init__(self, port: int) -> None:
        self.ready = False
        self._progressed = time.monotonic()
        probes = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                fine = {"/healthz": probes.alive, "/readyz": probes.ready}.get(self.path)
                self.send_response(404 if fine is None else 200 if fine else 503)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Do nothing: requests of probes need no line in the log."""

        self._server = ThreadedServer(port, Handler)
        self._server.start("probes")

    @property
    def port(self) -> int:
        """The port that the server listens on; useful after construction with port 0."""
        return self._server.port

    @property
    def alive(self) -> bool:
        """Whether there was progress within the last `STALL` seconds."""
        return time.monotonic() - self._progressed < STALL

    def record_progress(self) -> None:
        """Record that the loop made progress."""
        self._progressed = time.monotonic()

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
