"""Reads log lines of a job's processes: of a local job, a job on a cluster, or a run in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_cli import log_lines, stored_run
from headway_cli.log_lines import Line, Wanted
from headway_cli.pod_logs import PodLogs
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun
from headway_cli.where import LocalJob, Stored


@dataclass(frozen=True)
class LogOptions:
    """Which lines of a job on a cluster to read, and how."""

    wanted: Wanted
    follow: bool
    """Continue with new lines until the job has ended."""
    endpoint_url: str | None
    """Address of the S3-compatible store; None: spec.output.endpointUrl."""
    note: Callable[[str], None]
    """Receives a message if the lines come from the store instead of from pods."""


def of_local_job(place: LocalJob, wanted: Wanted, follow: bool) -> Iterator[Line]:
    """Log lines of a local job; with `follow` also new lines, without end."""
    raw = JobFolder(place.folder).whole()
    begins = log_lines.stems(raw["kind"], raw["metadata"]["name"])
    read = log_lines.followed if follow else log_lines.of_folder
    return read(place.folder / "logs", begins, wanted)


def of_run(run: StoredRun, wanted: Wanted) -> Iterator[Line]:
    """Lines of the logs that a run's processes wrote to its store at their end."""
    return log_lines.of_store(run, log_lines.stems(run.job.get("kind"), run.name), wanted)


def of_cluster(there: PodLogs, kind: str, name: str, asked: LogOptions) -> Iterator[Line]:
    """Log lines of a job's pods. If the pods are gone, lines of the logs that they wrote to the store.

    Raises:
        ClusterError: the job does not exist, or the cluster refuses.
        RunNotFoundError: there is no pod, and the store cannot be read.
    """
    raw = there.job(kind, name)
    uid = raw["metadata"]["uid"]
    found = there.containers(uid, asked.wanted)
    if not found and (uri := raw.get("status", {}).get("artifacts", {}).get("uri")) is not None:
        kept = _kept(raw, uri, asked)
        if kept or not asked.follow:
            asked.note(
                f"{name} has no such pod now; these are the last logs that its processes kept in {uri}"
            )
            yield from kept
            return
    if asked.follow:
        yield from there.followed(kind, name, uid, asked.wanted)
    for each in () if asked.follow else found:
        yield from there.read(each, asked.wanted)


def _kept(raw: Json, uri: str, asked: LogOptions) -> list[Line]:
    """Lines of the logs that a job's processes wrote to the store at `uri`.

    Raises:
        RunNotFoundError: this machine cannot read the store.
    """
    url = asked.endpoint_url or raw["spec"].get("output", {}).get("endpointUrl")
    begins = log_lines.stems(raw["kind"], raw["metadata"]["name"])
    try:
        return [*log_lines.of_store(stored_run.opened(Stored(uri), url), begins, asked.wanted)]
    except RunNotFoundError as error:
        raise RunNotFoundError(
            f"there is no such pod now, and its last logs cannot be read: {error}; name a store that this "
            "machine reaches with --endpoint-url"
        ) from error
