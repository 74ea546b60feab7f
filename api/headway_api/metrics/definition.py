"""What a metric is: its name, unit, kind, labels and help."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

MetricKind = Literal["gauge", "counter", "histogram"]
Unit = Literal["", "tokens", "seconds", "steps", "ratio", "nats", "usd"]


@dataclass(frozen=True)
class MetricFamily:
    """One metric, or several whose names differ only in the part in braces."""

    name: str
    """The name in MLflow; `{k}` or `{name}` is the part that varies."""
    help: str
    """What the number means, in one sentence."""
    unit: Unit = ""
    kind: MetricKind = "gauge"
    labels: tuple[str, ...] = ()
    """Prometheus labels, besides `JOB_LABELS`. For metrics of the operator, all labels."""

    def matches(self, name: str) -> bool:
        """Whether `name` belongs to this family."""
        return re.fullmatch(_PLACEHOLDER.sub("[A-Za-z0-9_]+", re.escape(self.name)), name) is not None


_PLACEHOLDER = re.compile(r"\\\{[a-z]+\\\}")
JOB_LABELS: Final = ("namespace", "job_name")
"""Labels of every metric. Metrics of the operator are an exception: they name all their labels themselves."""
OF_JOB: Final = ("kind", *JOB_LABELS)
"""Labels of the operator's metrics of one job. Jobs of both kinds may share a name."""
OF_SERVER: Final = ("server", "purpose")
"""Labels of a rollout server's metrics. The purpose is validation for the separate server of
`spec.evaluation.servers: Dedicated`, and train for all others."""
STATISTICS: Final = {"mean": "Mean", "std": "Standard deviation of", "min": "Smallest", "max": "Largest"}


def spread(
    prefix: str, what: str, *, only: str = "mean std min max", unit: Unit = ""
) -> Iterator[MetricFamily]:
    """A metric for each statistic of one quantity that `only` names."""
    for key in only.split():
        yield MetricFamily(f"{prefix}{key}", f"{STATISTICS[key]} {what}.", unit)
