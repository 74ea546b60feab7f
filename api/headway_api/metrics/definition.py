"""What a metric is: its name, unit, kind, labels and help."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

MetricKind = Literal["gauge", "counter", "histogram"]
Unit = Literal["", "tokens", "seconds", "steps", "ratio", "nats", "usd"]


@dataclass(frozen=True)
class MetricFamily:
    """One metric, or several that differ in a number or name written in braces."""

    name: str
    """As MLflow shows it; `{k}` or `{name}` is the part that varies."""
    help: str
    """What the number says, in one sentence."""
    unit: Unit = ""
    kind: MetricKind = "gauge"
    labels: tuple[str, ...] = ()
    """Prometheus labels, besides `JOB_LABELS`. For metrics of the operator, all labels."""

    def matches(self, name: str) -> bool:
        """Whether `name` belongs to this family."""
        return re.fullmatch(_PLACEHOLDER.sub("[A-Za-z0-9_]+", re.escape(self.name)), name) is not None


_PLACEHOLDER = re.compile(r"\\\{[a-z]+\\\}")
JOB_LABELS: Final = ("namespace", "job_name")
"""Labels of every metric, except those of the operator, which list all their labels below."""
OF_JOB: Final = ("kind", *JOB_LABELS)
"""Labels of the operator's metrics of one job. Jobs of both kinds may share a name."""
OF_SERVER: Final = ("server", "purpose")
"""Labels of a rollout server. Its purpose is train, or validation for the one of spec.evaluation.servers:
Dedicated."""
STATISTICS: Final = {"mean": "Mean", "std": "Standard deviation of", "min": "Smallest", "max": "Largest"}


def spread(
    prefix: str, what: str, *, only: str = "mean std min max", unit: Unit = ""
) -> Iterator[MetricFamily]:
    """The statistics `only` of one quantity."""
    for key in only.split():
        yield MetricFamily(f"{prefix}{key}", f"{STATISTICS[key]} {what}.", unit)
