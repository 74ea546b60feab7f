"""The broker's metrics, with the names and texts of `headway_api.metrics`."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headway_api import metrics as known
from headway_api.config import Identity
from headway_sandbox.broker.pool import Counts

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

FAILURES: Final = ("PodGone", "SandboxDeleted", "SandboxEnded", "SandboxNotReady", "SandboxUnfit")
"""Reasons that the broker itself gives. Their counters exist from the start, or Prometheus could compute no
rate for the first failure of each."""


class Metrics:
    """The metrics of one broker, and their registry."""

    def __init__(self, config: Identity) -> None:
        self.registry = CollectorRegistry()
        self._job = (config.namespace, config.name)
        self._pool = Gauge(*self._described("sandbox/pool_size"), registry=self.registry)
        self._waiting = Gauge(*self._described("sandbox/waiting"), registry=self.registry)
        self._leases = Histogram(
            *self._described("sandbox/lease_seconds"), buckets=SECONDS, registry=self.registry
        )
        self._starts = Histogram(
            *self._described("sandbox/start_seconds"), buckets=SECONDS, registry=self.registry
        )
        self._created = Counter(*self._described("sandbox/created"), registry=self.registry)
        self._destroyed = Counter(*self._described("sandbox/destroyed"), registry=self.registry)
        self._failures = Counter(*self._described("sandbox/failures"), registry=self.registry)
        for reason in FAILURES:
            self._failures.labels(*self._job, reason)

    @staticmethod
    def _described(name: str) -> tuple[str, str, tuple[str, ...]]:
        family = known.family(name)
        return known.prometheus_name(name), family.help, (*known.JOB_LABELS, *family.labels)

    def show(self, counts: Counts) -> None:
        """Report the current pool."""
        for state in ("starting", "ready", "leased"):
            self._pool.labels(*self._job, state).set(getattr(counts, state))
        self._waiting.labels(*self._job).set(counts.waiting)

    def created(self) -> None:
        """Count a created pod."""
        self._created.labels(*self._job).inc()

    def started(self, seconds: float) -> None:
        """Count a pod that answered `seconds` after its creation."""
        self._starts.labels(*self._job).observe(seconds)

    def destroyed(self, reason: str) -> None:
        """Count a pod that is being deleted."""
        self._destroyed.labels(*self._job, reason).inc()

    def failed(self, reason: str) -> None:
        """Count a pod that could not be created, or was lost."""
        self._failures.labels(*self._job, reason).inc()

    def leased(self, seconds: float, warm: bool) -> None:
        """Count an episode that got its sandbox after `seconds`; `warm` if one was ready."""
        self._leases.labels(*self._job, "warm" if warm else "cold").observe(seconds)
