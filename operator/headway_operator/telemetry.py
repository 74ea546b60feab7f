"""What the operator says of itself: metrics, liveness, readiness; served on one port from a thread."""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from headway_operator.cache import Cache
from headway_operator.kube import JOB

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Telemetry:
    """The operator's metrics. One a process; tests make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "headway_operator_reconcile_seconds",
            "Time of one reconcile of one job.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15),
            registry=self.registry,
        )
        self.errors = Counter(
            "headway_operator_reconcile_errors_total",
            "Reconciles that failed and are tried again, by what stood in the way.",
            ["reason"],
            registry=self.registry,
        )
        self.depth = Gauge(
            "headway_operator_queue_depth",
            "Jobs that wait for a worker or have one.",
            registry=self.registry,
        )
        self.leader = Gauge(
            "headway_operator_leader",
            "1 while this replica holds the Lease.",
            registry=self.registry,
        )
        self.success_age = Gauge(
            "headway_operator_last_success_age_seconds",
            "Seconds since a reconcile last succeeded.",
            registry=self.registry,
        )
        self._succeeded = time.monotonic()
        self.success_age.set_function(lambda: time.monotonic() - self._succeeded)

    def succeeded(self) -> None:
        """A reconcile went well."""
        self._succeeded = time.monotonic()

    def count_jobs(self, cache: Cache) -> None:
        """Report jobs by state from now on."""
        self.registry.register(_Jobs(cache))


class _Jobs:
    """Jobs by namespace and state, counted when asked."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "headway_operator_jobs", "Training jobs by namespace and state.", labels=["namespace", "state"]
        )
        tally = Tally(
            (body["metadata"]["namespace"], body.get("status", {}).get("state") or "Pending")
            for body in self._cache.of_kind(JOB.kind)
        )
        for (namespace, state), count in sorted(tally.items()):
            family.add_metric([namespace, state], count)
        yield family


def serve(
    port: int, telemetry: Telemetry, healthy: Callable[[], str], ready: Callable[[], str]
) -> ThreadingHTTPServer:
    """Answer /metrics, /healthz and /readyz; `healthy` and `ready` return what is wrong, or nothing."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(telemetry.registry), CONTENT_TYPE)
            elif self.path in ("/healthz", "/readyz"):
                wrong = healthy() if self.path == "/healthz" else ready()
                self._answer(503 if wrong else 200, (wrong or "ok").encode(), "text/plain")
            else:
                self._answer(404, b"/metrics, /healthz or /readyz", "text/plain")

        def _answer(self, code: int, body: bytes, content_type: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes and scrapes are not worth a line."""

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="telemetry", daemon=True).start()
    return server
