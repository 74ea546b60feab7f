"""Jobs on a cluster: their objects in the API server, and what they have written to their stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway_api.document import Json
from headway_cli import bill, patches, stored_run
from headway_cli.bill import Bill
from headway_cli.client import outcome
from headway_cli.cluster import Cluster, JobNotFoundError
from headway_cli.local.manifest import ManifestError
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun
from headway_cli.where import Stored


@dataclass(frozen=True)
class OnCluster:
    """The jobs of a namespace."""

    cluster: Cluster
    endpoint_url: str | None = None
    """Address at which this machine reaches the S3-compatible store; None: spec.output.endpointUrl."""

    def begin(self, job: Json, home: Path | None, *, fresh: bool) -> ClusterJob:
        """Apply a job to the cluster. Arguments and errors are those of `places.JobPlace.begin`."""
        if fresh:
            raise ManifestError(
                "fresh: applies only to jobs on this machine; delete the job, or give another name"
            )
        kind, namespace, name = self.cluster.submit(job)
        there = (
            self.cluster if namespace == self.cluster.namespace else Cluster(self.cluster.context, namespace)
        )
        return ClusterJob(there, kind, name, self.endpoint_url)

    def find(self, kind: str, name: str) -> ClusterJob:
        """The existing job of this kind and name.

        Raises:
            ClusterError: there is no such job, or the cluster does not answer.
        """
        self.cluster.job(kind, name)
        return ClusterJob(self.cluster, kind, name, self.endpoint_url)

    def first(self, kinds: Sequence[str], name: str) -> ClusterJob:
        """The job of this name; of the first kind in `kinds`, if several kinds have one.

        Raises:
            JobNotFoundError: none of the kinds has a job of this name.
            ClusterError: the cluster refuses, or does not answer.
        """
        absent: JobNotFoundError | None = None
        for kind in kinds:
            try:
                return self.find(kind, name)
            except JobNotFoundError as error:
                absent = absent or error
        assert absent is not None
        raise absent


@dataclass(frozen=True)
class ClusterJob:
    """One job on a cluster. The methods are those of `places.Job`."""

    cluster: Cluster
    kind: str
    name: str
    endpoint_url: str | None

    def now(self) -> Json:
        """The job with its status, from the API server."""
        return self.cluster.job(self.kind, self.name)

    def job_if_stopped(self) -> Json | None:
        """The job if it has ended or is held; None while it runs."""
        job = self.now()
        return job if outcome.is_over(job) or outcome.is_held(job) else None

    def suspend(self) -> None:
        """Suspend the job, so that the operator deletes its pods."""
        self.cluster.change(self.kind, self.name, patches.SUSPENSION)

    def resume(self) -> None:
        """Resume the job, and end its pause."""
        self.cluster.change(self.kind, self.name, patches.resumption(self.now()))

    def stored(self) -> StoredRun:
        """The stored run at status.artifacts.uri.

        Raises:
            RunNotFoundError: the job has written nothing yet, or the store cannot be read.
        """
        job = self.now()
        uri = job.get("status", {}).get("artifacts", {}).get("uri")
        if uri is None:
            raise RunNotFoundError(f"{self.name}: the job has written nothing yet")
        endpoint = self.endpoint_url or job["spec"].get("output", {}).get("endpointUrl")
        try:
            return stored_run.opened(Stored(str(uri)), endpoint)
        except RunNotFoundError as error:
            raise RunNotFoundError(
                f"{error}; if this machine reaches the store at another address, write --endpoint-url"
            ) from error

    def bill(self) -> Bill:
        """The bill from the job's status."""
        return bill.from_status(self.now().get("status", {}))
