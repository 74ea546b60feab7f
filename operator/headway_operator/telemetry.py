"""The operator's metrics, liveness and readiness; a thread serves them on one port."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from headway_api import metrics, names
from headway_api.document import Json
from headway_operator.cache import Cache
from headway_operator.config import DEFAULT_MANAGER
from headway_operator.kube import JOBS
from headway_operator.plan.reading import manager_of
from headway_operator.samples import labels_of, of_budget, samples, state_of
from headway_wire.threads import ThreadedServer

SUCCESS: Final = "success"
ERRORS: Final = ("ApiError", "Bug", "Unreadable")
"""Error results of a reconcile. Their counters exist from the start, or Prometheus could compute no rate for
the first error of each."""


BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)


class Telemetry:
    """The operator's metrics, named as in `headway_api.metrics`. A process has one; each test creates one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = Histogram(
            *_described("operator/reconcile_seconds"), buckets=BUCKETS, registry=self.registry
        )
        self._applies = Counter(*_described("operator/applies"), registry=self.registry)
        self._errors = Counter(*_described("operator/reconcile_errors"), registry=self.registry)
        for reason in ERRORS:
            self._errors.labels(reason=reason)
        self.depth = Gauge(*_described("operator/queue_depth"), registry=self.registry)
        self.leader = Gauge(*_described("operator/leader"), registry=self.registry)
        age = Gauge(*_described("operator/last_success_age_seconds"), registry=self.registry)
        age.set_function(lambda: time.monotonic() - self._succeeded)
        self._succeeded = time.monotonic()
        self._jobs: _Jobs | None = None

    def reconciled(self, seconds: float, result: str) -> None:
        """Count a reconcile, with its duration and its result: `success`, or the reason of the failure."""
        self._reconciles.observe(seconds)
        if result == SUCCESS:
            self._succeeded = time.monotonic()
        else:
            self._errors.labels(reason=result).inc()

    def applied(self, kind: str, result: str) -> None:
        """Count an object that was created, changed, deleted, or found unchanged."""
        self._applies.labels(kind=kind, result=result).inc()

    def count_jobs(self, cache: Cache, manager: str = DEFAULT_MANAGER) -> None:
        """Start to report the number of a manager's jobs by state, and the metrics of each job.

        A replica that does not lead has seen no job, so it reports none.
        """
        self._jobs = _Jobs(cache, manager)
        self.registry.register(self._jobs)

    def retire(self) -> None:
        """Stop reporting jobs: the next leader reports them."""
        self.leader.set(0)
        if self._jobs is not None:
            self.registry.unregister(self._jobs)
            self._jobs = None


def _described(name: str) -> tuple[str, str, tuple[str, ...]]:
    family = metrics.family(name)
    return metrics.prometheus_name(name), family.help, family.labels


class _Jobs:
    """Metrics of one manager's jobs and budgets, computed at each scrape: a count by state, and samples."""

    def __init__(self, cache: Cache, manager: str) -> None:
        self._cache = cache
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        known = [body for kind in JOBS for body in self._cache.of_kind(kind.kind)]
        jobs = [body for body in known if manager_of(body) == self._manager]
        yield _by_state(jobs)
        yield from _one_by_one(jobs)
        budgets = self._cache.of_kind(names.BUDGET_KIND)
        yield from _of_budgets([body for body in budgets if manager_of(body) == self._manager])


def _by_state(jobs: list[Json]) -> Metric:
    name, text, labels = _described("operator/jobs")
    gauge = GaugeMetricFamily(name, text, labels=labels)
    tally = Tally((*labels_of(body)[:2], state_of(body)) for body in jobs)
    for values, count in sorted(tally.items()):
        gauge.add_metric(values, count)
    return gauge


def _one_by_one(jobs: list[Json]) -> Iterator[Metric]:
    found = {known.name: _family(known) for known in metrics.JOBS}
    for body in jobs:
        by_name = {(sample.name, sample.more): sample.value for sample in samples(body)}
        for (name, more), value in by_name.items():
            found[f"job/{name}"].add_metric([*labels_of(body), *more], value)
    yield from found.values()


def _of_budgets(budgets: list[Json]) -> Iterator[Metric]:
    found = {known.name: _family(known) for known in metrics.SHARED_BUDGETS}
    for body in budgets:
        for sample in of_budget(body):
            values = [body["metadata"]["namespace"], *sample.more]
            found[f"namespace_budget/{sample.name}"].add_metric(values, sample.value)
    yield from found.values()


def _family(known: metrics.MetricFamily) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
    return kind(metrics.prometheus_name(known.name), known.help, labels=known.labels)


def serve(
    port: int, telemetry: Telemetry, healthy: Callable[[], str], ready: Callable[[], str]
) -> ThreadedServer:
    """Answer /metrics, /healthz and /readyz; `healthy` and `ready` return what is wrong, or an empty
    text."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(telemetry.registry), CONTENT_TYPE_PLAIN_0_0_4)
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
            """Log nothing: probes and scrapes are not worth a line."""

    server = ThreadedServer(port, Handler)
    server.start("telemetry")
    return server
