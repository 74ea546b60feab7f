"""What a Prometheus of the tests has scraped of jobs, kept to be asked again when they are gone."""

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
    """Of whom a record is, and of when."""

    begun: float
    """Unix time, as that of the end."""
    ended: float
    training: str
    """Name of the training job."""
    evaluation: str
    """Name of the evaluation of its checkpoints."""


def keep(home: Path, record: Path, about: About) -> None:
    """Copy what a Prometheus that has ended left in its folder, in the place of an earlier record."""
    shutil.rmtree(record, ignore_errors=True)
    shutil.copytree(home / DATA, record / DATA)
    (record / ABOUT).write_text(json.dumps(asdict(about)) + "\n")


@contextmanager
def replayed(record: Path) -> Iterator[tuple[Prometheus, About]]:
    """A Prometheus that knows what was recorded, and scrapes nothing. The record stays as it is."""
    about = About(**json.loads((record / ABOUT).read_text()))
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(record / DATA, Path(place) / DATA)
        with prometheus_server(Path(place), [], {"groups": []}) as prometheus:
            yield prometheus, about


def seen(prometheus: Prometheus, series: str, about: About, step: float = 1.0) -> tuple[float, float]:
    """When series of a name were there first and last."""
    span = {"start": f"{about.begun}", "end": f"{about.ended}", "step": f"{step}"}
    found = prometheus.ask("query_range", query=f"count({series})", **span)["result"]
    assert found, f"the record has no {series}"
    moments = [float(at) for at, _ in found[0]["values"]]
    return moments[0], moments[-1]
