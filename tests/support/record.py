"""Keeps what a Prometheus of the tests has scraped from jobs, to query it after the jobs are gone."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_server import Prometheus, prometheus_server

DATA, ABOUT = "data", "about.json"


@dataclass(frozen=True)
class About:
    """Which jobs a record is about, and its time span."""

    begun: float
    """Unix time of the begin; `ended` is the Unix time of the end."""
    ended: float
    training: str
    """Name of the training job."""
    evaluation: str
    """Name of the evaluation of its checkpoints."""


def keep(home: Path, record: Path, about: About) -> None:
    """Copy the data of a Prometheus that has ended. The copy replaces an earlier record."""
    shutil.rmtree(record, ignore_errors=True)
    shutil.copytree(home / DATA, record / DATA)
    (record / ABOUT).write_text(json.dumps(asdict(about)) + "\n")


@contextmanager
def replayed(record: Path) -> Iterator[tuple[Prometheus, About]]:
    """Run a Prometheus with a copy of the recorded data, which scrapes nothing."""
    about = About(**json.loads((record / ABOUT).read_text()))
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(record / DATA, Path(place) / DATA)
        with prometheus_server(Path(place), [], {"groups": []}) as prometheus:
            yield prometheus, about


def seen(prometheus: Prometheus, series: str, about: About, step: float = 1.0) -> tuple[float, float]:
    """Unix times of the first and the last sample of the series with a name."""
    span = {"start": f"{about.begun}", "end": f"{about.ended}", "step": f"{step}"}
    found = prometheus.ask("query_range", query=f"count({series})", **span)["result"]
    assert found, f"the record has no {series}"
    moments = [float(at) for at, _ in found[0]["values"]]
    return moments[0], moments[-1]
