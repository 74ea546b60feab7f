"""Tools that read one job, or list them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final

from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_api.records import Purpose
from headway_cli import artifact_list, bill, episodes, job_logs, progress, run_contents, task_rows
from headway_cli.client.on_cluster import ClusterJob
from headway_cli.client.on_machine import LocalRun
from headway_cli.cluster import ClusterError
from headway_cli.episodes import Filter, Shown
from headway_cli.log_lines import Line, Wanted
from headway_cli.mcp_server import bounds
from headway_cli.mcp_server.arguments import JobsAsked, LogsAsked, OfJob, StatusAsked, TrajectoriesAsked
from headway_cli.mcp_server.words import InvalidToolCallError
from headway_cli.mcp_server.workspace import HERE, KINDS, JobOrRun, Workspace, in_words
from headway_cli.stored_run import StoredRun
from headway_cli.where import LocalJob

MAX_LINE: Final = 2000
"""Maximum characters of a log line."""
ROOM: Final = bounds.MAX_CHARACTERS - 2 * bounds.RESERVED
"""Maximum characters of an answer's lines or episodes. The remaining characters are for its other parts."""


def jobs(workspace: Workspace, asked: JobsAsked) -> Json:
    """Local jobs, then jobs on the cluster, each the newest first."""
    notes: list[str] = []
    rows = [] if workspace.names_a_cluster else _local_rows(workspace, notes)
    try:
        there = workspace.cluster()
        found = [each for kind in KINDS.values() for each in there.jobs(kind)]
        found.sort(key=lambda each: str(each["metadata"].get("creationTimestamp", "")), reverse=True)
        rows += [row(each, in_words(there)) for each in found]
    except ClusterError as error:
        if workspace.names_a_cluster:
            raise
        notes.append(f"no jobs of a cluster are listed: {error}")
    chosen = [each for each in rows if asked.state in (None, each["state"])]
    if left := chosen[asked.limit :]:
        notes.append(f"{len(left)} more; write a higher limit, or a state")
    return {"jobs": chosen[: asked.limit], "notes": notes}


def _local_rows(workspace: Workspace, notes: list[str]) -> list[Json]:
    """The rows of local jobs. A job that cannot be read becomes a note, and does not hide the others."""
    rows = []
    for each in workspace.local_jobs():
        try:
            rows.append(row(JobFolder(each).whole(), HERE))
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            notes.append(f"{each.name} cannot be read: {type(error).__name__}; check {each}/job.json")
    return rows


def row(job: Json, at: str) -> Json:
    """A job as an entry of the list of jobs. `at` says where the job is."""
    status = job.get("status") or {}
    usage = status.get("usage") or {}
    return {
        "job": job["metadata"]["name"],
        "kind": job.get("kind"),
        "at": at,
        "state": status.get("state", "Pending"),
        "reason": status.get("reason"),
        "progress": status.get("progress"),
        "reward": (status.get("reward") or {}).get("mean"),
        "heldOut": progress.held_out(status.get("validation") or {}),
        "totalTokens": usage.get("totalTokens"),
        "cost": usage.get("cost"),
        "created": job["metadata"].get("creationTimestamp"),
    }


def status(workspace: Workspace, asked: StatusAsked) -> Json:
    """A job's present status, in full and as one line of text."""
    found = workspace.find(asked.job, asked.kind)
    job = found.now()
    answer = {**head(workspace, found), "line": progress.line(job)}
    if asked.spec:
        answer["spec"] = job.get("spec")
    return {**answer, "status": job.get("status") or {}}


def logs(workspace: Workspace, asked: LogsAsked) -> Json:
    """The last log lines of a job's processes, the newest last."""
    found, notes = workspace.find(asked.job, asked.kind), list[str]()
    kept: deque[Json] = deque()
    used = left = 0
    for line in _lines(workspace, found, Wanted(asked.role, asked.tail), notes):
        kept.append({"writer": line.writer, "text": line.text[:MAX_LINE]})
        used += bounds.size(kept[-1])
        if len(line.text) > MAX_LINE:
            notes.append(f"a line of {line.writer} is cut: {MAX_LINE} of {len(line.text)} characters")
        while used > ROOM:
            used -= bounds.size(kept.popleft())
            left += 1
    if left:
        notes.append(f"{left} earlier lines were left out; write a role, or a smaller tail")
    if not kept:
        notes.append("no such process has written anything")
    return {**head(workspace, found), "lines": [*kept], "notes": notes[-bounds.MAX_LISTED :]}


def _lines(workspace: Workspace, found: JobOrRun, wanted: Wanted, notes: list[str]) -> Iterator[Line]:
    if isinstance(found, LocalRun):
        return job_logs.of_local_job(LocalJob(found.folder), wanted, follow=False)
    if isinstance(found, ClusterJob):
        asked = job_logs.LogOptions(wanted, False, workspace.endpoint_url, notes.append)
        return job_logs.of_cluster(workspace.pods(), found.kind, found.name, asked)
    return job_logs.of_run(found.stored(), wanted)


def trajectories(workspace: Workspace, asked: TrajectoriesAsked) -> Json:
    """A page of episodes with their conversations.

    Raises:
        InvalidToolCallError: the call has both `failed` and `outcome`.
    """
    if asked.failed and asked.outcome is not None:
        raise InvalidToolCallError("failed: write failed or outcome, not both")
    found = workspace.find(asked.job, asked.kind)
    run = found.stored()
    purpose = asked.purpose or run.purpose
    task = None if asked.task is None else task_rows.task(run, purpose, asked.task, "task")
    wanted = Filter(asked.step, asked.outcome, asked.row, asked.disagree, asked.failed, task)
    shown = _page(run, purpose, wanted, asked.offset, asked.limit + 1)
    rows, cut = [], list[str]()
    for number, each in enumerate(shown[: asked.limit]):
        made, shortened = bounds.fitted(episodes.row(each), ROOM, asked.characters)
        rows.append(made)
        cut += [f"episodes/{number}/{line}" for line in shortened]
    kept = bounds.first_that_fit(rows, ROOM)
    goes_on = len(kept) < len(shown)
    return {
        **head(workspace, found),
        "purpose": purpose.value,
        "episodes": kept,
        "next": asked.offset + len(kept) if goes_on else None,
        "notes": _page_notes(kept, cut, goes_on=goes_on, purpose=purpose),
    }


def _page_notes(kept: list[Json], cut: list[str], *, goes_on: bool, purpose: Purpose) -> list[str]:
    numbers = tuple(f"episodes/{number}/" for number in range(len(kept)))
    notes = [f"cut: {line}; write more characters" for line in cut if line.startswith(numbers)]
    if goes_on:
        notes.append("there are more: write next as offset")
    if not kept:
        notes.append(f"no episode of {purpose.value} matches")
    return notes[-bounds.MAX_LISTED :]


def _page(run: StoredRun, purpose: Purpose, wanted: Filter, offset: int, many: int) -> list[Shown]:
    """At most `many` of the matching episodes, from number `offset`. Groups are read one at a time."""
    found = (each for group in run.groups(purpose, lost=wanted.lost) for each in wanted.of([group]))
    if wanted.disagree:
        return nlargest(offset + many, found, key=lambda each: each.gap)[offset:]
    return [*islice(found, offset, offset + many)]


def cost(workspace: Workspace, asked: OfJob) -> Json:
    """A job's usage so far, and its cost."""
    found = workspace.find(asked.job, asked.kind)
    return {**head(workspace, found), **bill.as_json(found.bill())}


def artifacts(workspace: Workspace, asked: OfJob) -> Json:
    """The objects that a run has written, by kind, with counts and sizes."""
    found = workspace.find(asked.job, asked.kind)
    run = found.stored()
    return {
        **head(workspace, found),
        **artifact_list.as_json(*run_contents.read(run, run_contents.keys(run))),
    }


def head(workspace: Workspace, found: JobOrRun) -> Json:
    """The fields of an answer that name its job: name, kind and place."""
    return {"job": found.name, "kind": found.kind, "at": workspace.place_of(found)}
