"""A training job's run in MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.run_files import RunFiles
from headway_api.store import ObjectNotFoundError, Store
from headway_coordinator.metrics import mlflow, sample
from headway_coordinator.metrics.parameters import parameters, tags


def tracker_of(job: JobConfig, store: Store, layout: Layout) -> mlflow.Mlflow | None:
    """The logger for MLflow, not started yet; None if the spec does not ask for it."""
    wanted = job.spec.tracking.mlflow
    if wanted is None:
        return None
    about = mlflow.About(
        name=f"{job.name}-{job.uid[:8]}", parameters=parameters(job.spec), tags=tags(job, "RLTrainingJob")
    )
    experiment = wanted.experiment or f"{job.namespace}/{job.name}"
    return mlflow.connect(wanted.uri, store, layout, experiment, about)


def final_artifacts(job: JobConfig, store: Store, layout: Layout) -> mlflow.Ending:
    """What the job adds to its MLflow run when it ends: its files, and the traces of some of its episodes."""
    return mlflow.Ending(
        job.uid,
        lambda: dict(_files(store, layout)),
        lambda: sample.episodes(RunFiles(store, layout), job.spec),
    )


def _files(store: Store, layout: Layout) -> Iterator[tuple[str, bytes]]:
    """The job's own files. A job that fails has no report."""
    for uri in (layout.page, layout.report, layout.job):
        with suppress(ObjectNotFoundError):
            yield uri.rpartition("/")[2], store.get(uri)
