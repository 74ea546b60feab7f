"""Builds PromQL expressions over vLLM's metrics, and over Headway's by their names in `headway_api.metrics`.

Every function returns an expression as text. `$...` are variables of the dashboards, or Grafana's own
variables.
"""

from __future__ import annotations

import re
from typing import Final

from headway_api.metrics import family, prometheus_name

FLEET: Final = 'namespace=~"$namespace", kind=~"$kind"'
"""Label matchers for the chosen namespaces and kinds."""
NAMESPACE: Final = 'namespace=~"$namespace"'
"""Label matcher for the chosen namespaces."""
JOB: Final = f'{FLEET}, job_name=~"$job_name"'
SERVER: Final = f'{JOB}, purpose=~"$purpose", server=~"$server"'
BY_JOB: Final = "namespace, kind, job_name"
RATE: Final = "$__rate_interval"
"""Grafana's variable for the shortest window over which a rate can be computed."""


def narrowed(where: str, **labels: str) -> str:
    """The label matchers `where`, with matchers for `labels` added."""
    return ", ".join([where, *(f'{label}="{value}"' for label, value in labels.items())])


def of(name: str, where: str = JOB) -> str:
    """The series of a metric family. A placeholder in its name, such as `{name}`, matches any text."""
    return _selected(prometheus_name(name), where)


def _selected(metric: str, where: str) -> str:
    if "{" not in metric:
        return f"{metric}{{{where}}}"
    return f'{{__name__=~"{_pattern(metric)}", {where}}}'


def _pattern(metric: str) -> str:
    return re.sub(r"\{[a-z]+\}", ".+", metric)


def value(name: str, where: str = JOB) -> str:
    """A gauge with one series for each job, even after another pod begins to report it."""
    return largest(of(name, where), *family(name).labels)


def shared(name: str) -> str:
    """A gauge with one series for each limit of each namespace's budget."""
    return f"max by ({', '.join(family(name).labels)}) ({of(name, NAMESPACE)})"


def named(name: str, label: str, where: str = JOB) -> str:
    """A gauge whose name has a placeholder. The label `label` gets the text at the placeholder."""
    wanted = re.sub(r"\{[a-z]+\}", "(.+)", prometheus_name(name))
    return largest(f'label_replace({of(name, where)}, "{label}", "$1", "__name__", "{wanted}")', label)


def largest(series: str, *labels: str) -> str:
    """The largest value among a job's series, for each combination of `labels`."""
    by = dict.fromkeys((*BY_JOB.split(", "), *labels))
    return f"max by ({', '.join(by)}) ({series})"


def vllm(name: str, where: str = SERVER) -> str:
    """The series of one of vLLM's metrics."""
    return f"vllm:{name}{{{where}}}"


def per_second(series: str) -> str:
    """Growth of counters per second."""
    return f"rate({series}[{RATE}])"


def total(series: str, *more: str) -> str:
    """The sum of a job's series, for each combination of the labels `more`."""
    return summed(series, BY_JOB, *more)


def summed(series: str, *by: str) -> str:
    """The sum of `series` for each combination of the labels `by`."""
    return f"sum by ({', '.join(by)}) ({series})"


def quantile(share: float, name: str, *more: str) -> str:
    """A quantile of a histogram family, by job and by the labels `more`."""
    return quantile_by(share, name, JOB, BY_JOB, *more)


def quantile_by(share: float, name: str, where: str, *by: str) -> str:
    """A quantile of a histogram family, by the labels `by`."""
    assert family(name).kind == "histogram", name
    buckets = per_second(f"{prometheus_name(name)}_bucket{{{where}}}")
    return f"histogram_quantile({share:g}, {summed(buckets, *by, 'le')})"


def counted(name: str, *more: str) -> str:
    """The number of observations of a histogram family per second."""
    assert family(name).kind == "histogram", name
    return total(per_second(f"{prometheus_name(name)}_count{{{JOB}}}"), *more)


def vllm_quantile(share: float, name: str) -> str:
    """A quantile of one of vLLM's histograms, by server."""
    buckets = summed(per_second(vllm(f"{name}_bucket")), BY_JOB, "server", "le")
    return f"histogram_quantile({share:g}, {buckets})"


def growth(name: str, where: str = JOB, seconds: int = 3600) -> str:
    """The growth of a gauge in `seconds`, at its present rate.

    A bill's cost falls when groups are abandoned. For a window with such a fall, the expression has no value.
    """
    series = of(name, where)
    pace = largest(f"deriv({series}[{RATE}]) unless resets({series}[{RATE}]) > 0")
    return f"clamp_min({seconds} * {pace}, 0)"
