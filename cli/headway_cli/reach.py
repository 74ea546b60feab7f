"""Finds the job or run that an argument names: on this machine, in a store, or on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway_api import names
from headway_cli import near_names, stored_run, where
from headway_cli.client.on_cluster import ClusterJob, OnCluster
from headway_cli.cluster import Cluster, ClusterError, JobNotFoundError
from headway_cli.local.manifest import NAME
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun
from headway_cli.where import Named, RunPlace


@dataclass(frozen=True)
class Reach:
    """The places in which a command or a server looks for jobs and runs."""

    jobs: Path
    """Folder with the folders of local jobs."""
    context: str | None = None
    """Context of the kubeconfig; None for the current one."""
    namespace: str | None = None
    """Namespace of the cluster; None for the context's."""
    endpoint_url: str | None = None
    """Address at which this machine reaches the S3-compatible store; None: spec.output.endpointUrl."""

    @property
    def names_a_cluster(self) -> bool:
        """Whether a context or namespace was named. If so, a name means a job on the cluster only."""
        return self.context is not None or self.namespace is not None

    def place(self, word: str) -> RunPlace:
        """The place that an argument names.

        Raises:
            RunNotFoundError: the argument is no folder, no URI of a store and no valid name of a job.
        """
        if self.names_a_cluster and NAME.fullmatch(word):
            return Named(word)
        return where.place_named(word, self.jobs)

    def stored(self, word: str, kind: str | None = None) -> StoredRun:
        """The stored run of the job that an argument names.

        Args:
            word: a folder, the URI of a stored run, or the name of a job.
            kind: kind of a job on the cluster; None for either kind, a training job first.

        Raises:
            RunNotFoundError, ClusterError: there is no such job or run, or its store cannot be used.
        """
        return self.opened(self.place(word), kind)

    def opened(self, place: RunPlace, kind: str | None = None) -> StoredRun:
        """The stored run at a place. `kind` and errors are those of `stored`."""
        if isinstance(place, Named):
            return self.on_cluster(place.name, kind).stored()
        return stored_run.opened(place, self.endpoint_url)

    def on_cluster(self, name: str, kind: str | None = None) -> ClusterJob:
        """The job of this name on the cluster.

        Call it for a name that no local job has, or if a context or namespace was named.

        Raises:
            ClusterError: a context or namespace was named, and the cluster lacks the job or does not answer.
            RunNotFoundError: no place was named, and neither this machine nor the cluster has the job. The
                message suggests similar names.
        """
        kinds = tuple(names.PLURALS) if kind is None else (kind,)
        try:
            return OnCluster(Cluster(self.context, self.namespace), self.endpoint_url).first(kinds, name)
        except ClusterError as error:
            if self.names_a_cluster:
                raise
            near = near_names.clause(name, (each.name for each in where.local_jobs(self.jobs)))
            there = "" if isinstance(error, JobNotFoundError) else "of a cluster: "
            raise RunNotFoundError(f"{self.jobs} has no job {name}{near}; {there}{error}") from error
