"""Starts jobs and finds them, on a cluster or on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, overload

from headway_api import names
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_cli.client import document
from headway_cli.client.document import Spec
from headway_cli.client.on_cluster import OnCluster
from headway_cli.client.on_machine import OnThisMachine
from headway_cli.client.places import JobPlace
from headway_cli.client.run import Run
from headway_cli.cluster import Cluster

JOBS: Final = names.LOCAL_JOBS
TrainingRun = Run[RLTrainingJobStatus]
EvaluationRun = Run[RLEvalJobStatus]


class TrainingClient:
    """Jobs of one namespace of a cluster, or of one folder of this machine."""

    def __init__(
        self,
        context: str | None = None,
        namespace: str | None = None,
        *,
        endpoint_url: str | None = None,
        local: bool = False,
        folder: str | Path = JOBS,
        modules: str | Path | None = None,
        prices: str | Path | None = None,
        secrets: Mapping[str, str | Path] | None = None,
    ) -> None:
        """
        Args:
            context: context of the kubeconfig; default: the current one.
            namespace: default: the context's.
            endpoint_url: address at which this machine reaches the S3-compatible store; default: the address
                in the job.
            local: run jobs on this machine, without a cluster (docs/local.md). The arguments below are for
                local jobs.
            folder: folder with a folder for each job.
            modules: folder of the environment's modules; default: the folder of the job's file.
            prices: file of the price book; default: the built-in price book.
            secrets: file with the token of each Secret that a job names, by the Secret's name.

        Raises:
            ClusterError: the kubeconfig cannot be read or has no such context.
            ValueError: both a cluster and `local` were given.
        """
        if local and (context or namespace or endpoint_url):
            raise ValueError("local=True: leave out context, namespace and endpoint_url")
        self._place: JobPlace
        if local:
            files = {name: Path(file) for name, file in (secrets or {}).items()}
            self._place = OnThisMachine(Path(folder), _path(modules), _path(prices), files)
        else:
            self._place = OnCluster(Cluster(context, namespace), endpoint_url)

    def train(
        self, spec: Spec, *, name: str | None = None, fresh: bool = False, **changes: Any
    ) -> TrainingRun:
        """Begin a training job.

        On this machine, a job of the same name continues where it stopped. The job ends with this Python
        process, and can be started again afterwards.

        Args:
            spec: a file with an RLTrainingJob, or the job as a mapping.
            name: a name for the job, instead of the name in `spec`.
            fresh: for jobs on this machine: delete what an earlier run of that name left.
            changes: fields of the job's `spec`, merged into it block by block: `schedule={"maxSteps": 3}`.

        Raises:
            ManifestError: the job is wrong, or already runs on this machine.
            ClusterError: the cluster refuses the job, or does not answer.
            RunFailedError: the process that should run the job on this machine has crashed.
        """
        job = document.made(spec, names.TRAINING_KIND, name, changes)
        return Run(self._place.begin(job, document.home(spec), fresh=fresh), RLTrainingJobStatus)

    def evaluate(
        self, spec: Spec, *, name: str | None = None, fresh: bool = False, **changes: Any
    ) -> EvaluationRun:
        """Begin an evaluation. Arguments and errors are those of `train`; `spec` has an RLEvalJob."""
        job = document.made(spec, names.EVAL_KIND, name, changes)
        return Run(self._place.begin(job, document.home(spec), fresh=fresh), RLEvalJobStatus)

    @overload
    def run(self, name: str, kind: Literal["training"] = "training") -> TrainingRun: ...
    @overload
    def run(self, name: str, kind: Literal["eval"]) -> EvaluationRun: ...
    def run(self, name: str, kind: Literal["training", "eval"] = "training") -> TrainingRun | EvaluationRun:
        """Find an existing job.

        Args:
            name: name of the job.
            kind: `training` or `eval`.

        Raises:
            ClusterError: the cluster has no job of this kind and name, or does not answer.
            RunNotFoundError: the client's folder has no job of this kind and name.
        """
        if kind == "eval":
            return Run(self._place.find(names.EVAL_KIND, name), RLEvalJobStatus)
        return Run(self._place.find(names.TRAINING_KIND, name), RLTrainingJobStatus)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
