"""Decides what a server may read, and finds jobs: on this machine, on the cluster, or in a store.

The person who starts a server names the folder, the namespace and the stores that it may read. A model that
has read hostile text can choose among these places, and can name no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from headway_api import names
from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_cli import bill, stored_run, where
from headway_cli.bill import Bill
from headway_cli.client.on_cluster import ClusterJob
from headway_cli.client.on_machine import LocalRun
from headway_cli.cluster import Cluster, JobNotFoundError
from headway_cli.mcp_server.words import InvalidToolCallError
from headway_cli.pod_logs import PodLogs
from headway_cli.reach import Reach
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun
from headway_cli.where import LocalJob, Named, RunPlace

KINDS: Final = {"training": names.TRAINING_KIND, "eval": names.EVAL_KIND}
HERE: Final = "this machine"
S3: Final = "s3://"


class JobOrRun(Protocol):
    """A job, or the stored files of a job that is gone."""

    @property
    def kind(self) -> str:
        """`RLTrainingJob` or `RLEvalJob`."""

    @property
    def name(self) -> str: ...

    def now(self) -> Json:
        """The job with its status."""

    def stored(self) -> StoredRun:
        """The files that the job has written."""

    def bill(self) -> Bill:
        """The job's usage and its cost."""


@dataclass(frozen=True)
class StoredJob:
    """The stored files of a job, without the job itself."""

    run: StoredRun

    @property
    def kind(self) -> str:
        """The kind in the stored files; RLTrainingJob if they do not say."""
        return str(self.run.job.get("kind") or names.TRAINING_KIND)

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.run.name

    def now(self) -> Json:
        """Raise InvalidToolCallError, because stored files have no status."""
        raise InvalidToolCallError(f"job: {self.name} is a stored run, and has no status: call report")

    def stored(self) -> StoredRun:
        """The files that the job has written."""
        return self.run

    def bill(self) -> Bill:
        """The bill from the stored ledger."""
        return bill.read(self.run, None)


@dataclass(frozen=True)
class Workspace:
    """The places that one server may read and change."""

    project: Path
    """The project's folder, with jobs' files and local jobs (`.headway`). It is the current directory."""
    context: str | None = None
    """Context of the kubeconfig; None for the current one."""
    namespace: str | None = None
    """Namespace of the cluster; None for the context's."""
    endpoint_url: str | None = None
    """Address at which this machine reaches the S3-compatible store."""
    stores: tuple[str, ...] = ()
    """URIs below which stored runs may be read, besides the project's folder."""
    allows_changes: bool = False
    """Whether tools may change jobs and run the project's code."""

    @property
    def jobs(self) -> Path:
        """Folder with the folders of local jobs."""
        return self.project / names.LOCAL_JOBS

    @property
    def reach(self) -> Reach:
        """The same access to jobs and runs that the commands of `headway` have."""
        return Reach(self.jobs, self.context, self.namespace, self.endpoint_url)

    @property
    def names_a_cluster(self) -> bool:
        """Whether --context or --namespace was written. If so, a name means a job on the cluster only."""
        return self.reach.names_a_cluster

    def cluster(self) -> Cluster:
        """The cluster.

        Raises:
            ClusterError: no cluster is configured.
        """
        return Cluster(self.context, self.namespace)

    def pods(self) -> PodLogs:
        """The cluster's pods, to read their logs."""
        return PodLogs(self.context, self.namespace)

    def file(self, word: str, argument: str = "file") -> Path:
        """The path of a file of the project.

        Args:
            word: the path that the call has.
            argument: name of the call's argument, for errors.

        Raises:
            InvalidToolCallError: the file is outside of the project, or does not exist.
        """
        path = self._inside(Path(word), argument)
        if not path.is_file():
            raise InvalidToolCallError(
                f"{argument}: {word} does not exist: name a file inside {self.project}"
            )
        return path

    def local_jobs(self) -> Iterator[Path]:
        """Folders of local jobs, the newest first."""
        found = where.local_jobs(self.jobs)
        return iter(sorted(found, key=lambda each: -(each / "job.json").stat().st_mtime))

    def find(self, word: str, kind: str | None) -> JobOrRun:
        """Find a job.

        Args:
            word: a job's name, a folder of the project, or a URI below one of `stores`.
            kind: `training` or `eval`, for a job on the cluster; None for either kind.

        Raises:
            InvalidToolCallError, RunNotFoundError, ClusterError: there is no such job, or the server may not
                read it.
        """
        if word.startswith(where.ADDRESSES):
            self._require_reachable(word)
        elif not word.strip():
            raise InvalidToolCallError("job: write a name; call jobs to see them")
        place = self._place_named(word)
        if isinstance(place, Named):
            return self._on_cluster(place.name, kind)
        if isinstance(place, LocalJob):
            self._inside(place.folder, "job", link=self.jobs)
            return _local(place.folder, kind)
        if not place.uri.startswith(S3) and not self._is_store(place.uri):
            self._inside(Path(place.uri.removeprefix("file://")), "job")
        return StoredJob(stored_run.opened(place, self.endpoint_url))

    def place_of(self, found: JobOrRun) -> str:
        """Where a job is, as text."""
        if isinstance(found, ClusterJob):
            return in_words(found.cluster)
        return found.run.layout.root if isinstance(found, StoredJob) else HERE

    def _place_named(self, word: str) -> RunPlace:
        try:
            return self.reach.place(word)
        except (OSError, ValueError) as error:  # a name that no file system allows
            raise InvalidToolCallError(
                f"job: {word!r} is not the name of a job: call jobs to see them"
            ) from error

    def _on_cluster(self, name: str, kind: str | None) -> ClusterJob:
        try:
            return self.reach.on_cluster(name, None if kind is None else KINDS[kind])
        except (RunNotFoundError, JobNotFoundError) as error:
            raise InvalidToolCallError(f"job: {error}") from error

    def _require_reachable(self, address: str) -> None:
        if self._is_store(address) or (not address.startswith(S3)):
            return
        known = f"write an address below {', '.join(self.stores)}" if self.stores else "write a job's name"
        raise InvalidToolCallError(
            f"job: {address} is not an address that this server reads: {known}, or start it with --store"
        )

    def _is_store(self, address: str) -> bool:
        steps = address.rstrip("/").split("/")
        for store in self.stores:
            begins = store.rstrip("/").split("/")
            if steps[: len(begins)] == begins and ".." not in steps:
                return True
        return False

    def _inside(self, path: Path, argument: str, link: Path | None = None) -> Path:
        """A path of the project, resolved.

        Args:
            path: the path.
            argument: name of the call's argument, for errors.
            link: a folder of the project that may be a symbolic link to another place, which is then allowed.

        Raises:
            InvalidToolCallError: the path is outside of the project, or cannot be resolved.
        """
        try:
            found = (self.project / path).resolve()
            found.is_file()
        except (OSError, ValueError, RuntimeError) as error:  # a circular link raises the last of these
            raise InvalidToolCallError(
                f"{argument}: {str(path)!r} cannot be read: write another path"
            ) from error
        homes = [self.project.resolve(), *([] if link is None else [link.resolve()])]
        if not any(found.is_relative_to(home) for home in homes):
            raise InvalidToolCallError(
                f"{argument}: {path} is outside of {self.project}: write a path below it"
            )
        return found


def _local(folder: Path, kind: str | None) -> LocalRun:
    raw = JobFolder(folder).whole()
    found = str(raw.get("kind", names.TRAINING_KIND))
    if kind is not None and found != KINDS[kind]:
        raise InvalidToolCallError(f"kind: {folder.name} is an {found}: leave kind out")
    return LocalRun(folder, found, str(raw["metadata"]["name"]), None, ())


def in_words(cluster: Cluster) -> str:
    """The cluster and its namespace, as text."""
    return f"namespace {cluster.namespace} of context {cluster.context}"
