"""A training job's run in MLflow."""

from __future__ import annotations

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.store import Store
from headway_coordinator.metrics import mlflow
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
