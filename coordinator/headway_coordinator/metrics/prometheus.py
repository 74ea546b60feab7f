"""The coordinator's `/metrics`: a projection of the state at each read, and a few histograms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headway_api.metrics import JOB_LABELS, MetricFamily, UnknownMetricError, family, prometheus_name

Labels = Mapping[str, str]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

HISTOGRAMS = ("episodes/seconds", "sandbox/tool_call_seconds", "weights/sync_seconds")
"""Histograms whose values this process observes one by one."""


@dataclass(frozen=True)
class Sample:
    """The current value of one metric."""

    name: str
    """The metric's name, as `headway_api.metrics` declares it."""
    value: float
    labels: Labels = field(default_factory=dict)


class Exporter:
    """The registry of one job. `read` yields the current samples; each name must have a family."""

    def __init__(self, namespace: str, job: str, read: Callable[[], Iterable[Sample]]) -> None:
        self._job = {"namespace": namespace, "job_name": job}
        self._read = read
        self._largest: dict[tuple[str, ...], float] = {}
        """The highest value of each counter, by its name and labels."""
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._histograms = {name: self._histogram(name) for name in HISTOGRAMS}

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Add a duration to one of `HISTOGRAMS`."""
        self._histograms[name].labels(**self._job, **labels).observe(seconds)

    def text(self) -> bytes:
        """The text of `/metrics`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every sample for the registry, one family after the other."""
        found: dict[str, list[Sample]] = {}
        for sample in self._read():
            found.setdefault(sample.name, []).append(sample)
        for name, samples in found.items():
            yield self._metric(name, samples)

    def describe(self) -> Iterable[Metric]:
        """Nothing, because no sample is known in advance."""
        return []

    def _metric(self, name: str, samples: list[Sample]) -> Metric:
        known = family(name)
        kind = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
        metric = kind(prometheus_name(name), known.help, labels=[*JOB_LABELS, *known.labels])
        for sample in samples:
            labels = {**self._job, **sample.labels}
            values = [labels[key] for key in (*JOB_LABELS, *known.labels)]
            metric.add_metric(values, self._counted(known, values, sample.value))
        return metric

    def _counted(self, known: MetricFamily, labels: Sequence[str], value: float) -> float:
        """`value`, or for a counter the highest value so far.

        Prometheus treats a falling counter as a restarted one, and counts all of it once more. A bill may
        fall, because billed tokens can be withdrawn.
        """
        if known.kind != "counter":
            return value
        which = (known.name, *labels)
        self._largest[which] = max(value, self._largest.get(which, value))
        return self._largest[which]

    def _histogram(self, name: str) -> Histogram:
        known = family(name)
        return Histogram(
            prometheus_name(name),
            known.help,
            labelnames=[*JOB_LABELS, *known.labels],
            buckets=SECONDS,
            registry=self._registry,
        )


def is_metric(name: str) -> bool:
    """Whether `/metrics` may show a number from the learner. MLflow gets all of them."""
    try:
        family(name)
    except UnknownMetricError:
        return False
    return True
