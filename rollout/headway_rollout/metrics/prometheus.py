"""The coordinator's `/metrics`: a projection of what is known when it is read, and a few histograms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headway_api.metrics import JOB_LABELS, family, prometheus_name

Labels = Mapping[str, str]
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True)
class Sample:
    """One number now."""

    name: str
    """As in `headway_api.metrics`."""
    value: float
    labels: Labels = field(default_factory=dict)


class Exporter:
    """Registry of one job. `read` yields the current samples; each name must have a family."""

    def __init__(self, namespace: str, job: str, read: Callable[[], Iterable[Sample]]) -> None:
        self._job = {"namespace": namespace, "job": job}
        self._read = read
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._seconds = self._histogram("episodes/seconds", "outcome")

    def episode(self, outcome: str, seconds: float) -> None:
        """An episode ended."""
        self._seconds.labels(**self._job, outcome=outcome).observe(seconds)

    def text(self) -> bytes:
        """What `/metrics` answers."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry: every sample, one family after the other."""
        found: dict[str, list[Sample]] = {}
        for sample in self._read():
            found.setdefault(sample.name, []).append(sample)
        for name, samples in found.items():
            yield self._metric(name, samples)

    def describe(self) -> Iterable[Metric]:
        """Nothing is known in advance."""
        return []

    def _metric(self, name: str, samples: list[Sample]) -> Metric:
        known = family(name)
        kind = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
        metric = kind(prometheus_name(name), known.help, labels=[*JOB_LABELS, *known.labels])
        for sample in samples:
            labels = {**self._job, **sample.labels}
            metric.add_metric([labels[key] for key in (*JOB_LABELS, *known.labels)], sample.value)
        return metric

    def _histogram(self, name: str, *labels: str) -> Histogram:
        known = family(name)
        return Histogram(
            prometheus_name(name),
            known.help,
            labelnames=[*JOB_LABELS, *labels],
            buckets=SECONDS,
            registry=self._registry,
        )
