"""The jobs and runs that a person may name: of this machine, of a store, and of a cluster."""

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
    """What a command or a server can reach."""

    jobs: Path
    """Folder with the folders of local jobs."""
    context: str | None = None
    """Context of the kubeconfig; None: the current one."""
    namespace: str | None = None
    """Namespace; None: the context's."""
    endpoint_url: str | None = None
    """Address of the S3-compatible store for this machine; None: spec.output.endpointUrl."""

    @property
    def names_a_cluster(self) -> bool:
        """Whether a person has chosen a cluster. If so, a name means one of its jobs, and no local one."""
        return self.context is not None or self.namespace is not None

    def place(self, word: str) -> RunPlace:
        """The place that a word means.

        Raises:
            RunNotFoundError: it is not a folder, an address or a name.
        """
        if self.names_a_cluster and NAME.fullmatch(word):
            return Named(word)
        return where.meant(word, self.jobs)

    def stored(self, word: str, kind: str | None = None) -> StoredRun:
        """The stored run of the job that a word names.

        Args:
            word: a folder, an address, or the name of a job.
            kind: kind of a job on the cluster; None: either, and a training job if both exist.
        Raises:
            RunNotFoundError, ClusterError: there is none, or its store cannot be used.
        """
        return self.opened(self.place(word), kind)

    def opened(self, place: RunPlace, kind: str | None = None) -> StoredRun:
        """The stored run at a place. See `stored`."""
        if isinstance(place, Named):
            return self.on_cluster(place.name, kind).stored()
        return stored_run.opened(place, self.endpoint_url)

    def on_cluster(self, name: str, kind: str | None = None) -> ClusterJob:
        """A job on the cluster; no local job has this name, or the cluster was chosen.

        Raises:
            ClusterError: the cluster was chosen, and lacks the job or does not answer.
            RunNotFoundError: neither this machine nor the cluster has the job; the message suggests similar
                names.
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
