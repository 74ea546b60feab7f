"""Expressions in PromQL over Headway's families, by the names of `headway_api.metrics`, and over vLLM's.

Every function returns text. `$...` are variables of the dashboards, or Grafana's own.
"""

from __future__ import annotations

import re
from typing import Final

from headway_api.metrics import family, prometheus_name

FLEET: Final = 'namespace=~"$namespace", kind=~"$kind"'
"""Chooses every job that the dashboard is asked for."""
NAMESPACE: Final = 'namespace=~"$namespace"'
"""Chooses every namespace that the dashboard is asked for."""
JOB: Final = f'{FLEET}, job_name=~"$job_name"'
SERVER: Final = f'{JOB}, purpose=~"$purpose", server=~"$server"'
BY_JOB: Final = "namespace, kind, job_name"
RATE: Final = "$__rate_interval"
"""The shortest time over which growth can be seen."""


def narrowed(where: str, **labels: str) -> str:
    """A choice of series, of which only those with these labels are left."""
    return ", ".join([where, *(f'{label}="{value}"' for label, value in labels.items())])


def of(name: str, where: str = JOB) -> str:
    """The series of a family; of one with a placeholder, those of every figure that it stands for."""
    return _selected(prometheus_name(name), where)


def _selected(metric: str, where: str) -> str:
    if "{" not in metric:
        return f"{metric}{{{where}}}"
    return f'{{__name__=~"{_pattern(metric)}", {where}}}'


def _pattern(metric: str) -> str:
    return re.sub(r"\{[a-z]+\}", ".+", metric)


def value(name: str, where: str = JOB) -> str:
    """A gauge of each job, as one series also when the pod that tells it is replaced by another."""
    return largest(of(name, where), *family(name).labels)


def shared(name: str) -> str:
    """A gauge of each limit of each namespace's budget."""
    return f"max by ({', '.join(family(name).labels)}) ({of(name, NAMESPACE)})"


def named(name: str, label: str, where: str = JOB) -> str:
    """The same of a family with a placeholder: what it stands for is in `label`."""
    wanted = re.sub(r"\{[a-z]+\}", "(.+)", prometheus_name(name))
    return largest(f'label_replace({of(name, where)}, "{label}", "$1", "__name__", "{wanted}")', label)


def largest(series: str, *labels: str) -> str:
    """Largest over the series of a job; over those that share these labels."""
    by = dict.fromkeys((*BY_JOB.split(", "), *labels))
    return f"max by ({', '.join(by)}) ({series})"


def vllm(name: str, where: str = SERVER) -> str:
    """The series of one of vLLM's own."""
    return f"vllm:{name}{{{where}}}"


def per_second(series: str) -> str:
    """Growth of counters."""
    return f"rate({series}[{RATE}])"


def total(series: str, *more: str) -> str:
    """Sum over the series of a job; over those that share the labels `more`, where there are some."""
    return summed(series, BY_JOB, *more)


def summed(series: str, *by: str) -> str:
    """Sum over everything but these labels."""
    return f"sum by ({', '.join(by)}) ({series})"


def quantile(share: float, name: str, *more: str) -> str:
    """Of a histogram family, by job."""
    return quantile_by(share, name, JOB, BY_JOB, *more)


def quantile_by(share: float, name: str, where: str, *by: str) -> str:
    """Of a histogram family, by these labels."""
    assert family(name).kind == "histogram", name
    buckets = per_second(f"{prometheus_name(name)}_bucket{{{where}}}")
    return f"histogram_quantile({share:g}, {summed(buckets, *by, 'le')})"


def counted(name: str, *more: str) -> str:
    """How many a second a histogram family observes."""
    assert family(name).kind == "histogram", name
    return total(per_second(f"{prometheus_name(name)}_count{{{JOB}}}"), *more)


def vllm_quantile(share: float, name: str) -> str:
    """Of one of vLLM's histograms, by server."""
    buckets = summed(per_second(vllm(f"{name}_bucket")), BY_JOB, "server", "le")
    return f"histogram_quantile({share:g}, {buckets})"


def growth(name: str, where: str = JOB, seconds: int = 3600) -> str:
    """What a gauge gains in so many seconds, at the pace it has now.

    A bill falls where groups are abandoned. A pace over its fall would be none, so there is none then.
    """
    series = of(name, where)
    pace = largest(f"deriv({series}[{RATE}]) unless resets({series}[{RATE}]) > 0")
    return f"clamp_min({seconds} * {pace}, 0)"
