"""Tools that change jobs. A server lists and calls them only if it was started with --allow-changes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from headway_api import names
from headway_api.document import Json
from headway_cli import eval_job, job_file, patches
from headway_cli.client.on_cluster import ClusterJob
from headway_cli.client.on_machine import LocalRun
from headway_cli.eval_manifest import EvalOptions
from headway_cli.local import manifest
from headway_cli.mcp_server.arguments import EvalAsked, OfFile, OfJob
from headway_cli.mcp_server.jobs import head
from headway_cli.mcp_server.words import InvalidToolCallError
from headway_cli.mcp_server.workspace import Workspace


def submit(workspace: Workspace, asked: OfFile) -> Json:
    """Apply the job in a file to the cluster."""
    document = manifest.changed(manifest.read(workspace.file(asked.file)), asked.set_)
    job_file.checked(document)
    return _applied(workspace, document)


def suspend(workspace: Workspace, asked: OfJob) -> Json:
    """Stop a job's pods, or its processes on this machine."""
    found = workspace.find(asked.job, asked.kind)
    if not isinstance(found, ClusterJob | LocalRun):
        raise InvalidToolCallError(f"job: {asked.job} is a stored run: name a job")
    found.suspend()
    return {
        **head(workspace, found),
        "suspend": True,
        "notes": ["acknowledged work is kept; resume continues"],
    }


def resume(workspace: Workspace, asked: OfJob) -> Json:
    """Resume a job on the cluster."""
    found = workspace.find(asked.job, asked.kind)
    if isinstance(found, LocalRun):
        raise InvalidToolCallError(
            f"job: {found.name} is a job of this machine, which needs a terminal: write `headway run FILE "
            "--local --resume` there"
        )
    if not isinstance(found, ClusterJob):
        raise InvalidToolCallError(f"job: {asked.job} is a stored run: name a job on the cluster")
    patch = patches.resumption(found.now())
    found.cluster.change(found.kind, found.name, patch)
    paused = patch.get("metadata", {}).get("annotations", {}).get(names.ANNOTATION_RESUME)
    notes = [] if paused is None else [f"the pause of {paused} is over"]
    return {**head(workspace, found), "suspend": False, "notes": notes}


def evaluate(workspace: Workspace, asked: EvalAsked) -> Json:
    """Make an evaluation from options, and apply it to the cluster."""
    options = EvalOptions(
        name=asked.name,
        job=asked.job,
        models=asked.models,
        candidates=asked.candidates,
        data=asked.data,
        baseline=asked.baseline,
        must_beat=asked.must_beat,
        margin=asked.margin,
        max_rows=asked.max_rows,
        environment=asked.environment,
        image=asked.image,
        agent_turns=asked.agent_turns,
    )
    file = None if asked.from_ is None else workspace.file(asked.from_, "from")
    training = eval_job.training(file, asked.job, None, workspace.context, workspace.namespace)
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        text, document = eval_job.written(options, training, Path(folder) / "eval.yaml")
    return {**_applied(workspace, document), "manifest": text}


def _applied(workspace: Workspace, document: Json) -> Json:
    """Apply a job to the only namespace that this server may change.

    Raises:
        InvalidToolCallError: the job names another namespace.
    """
    there = workspace.cluster()
    asked = document["metadata"].get("namespace")
    if asked not in (None, there.namespace):
        raise InvalidToolCallError(
            f"metadata.namespace is {asked}, and this server changes only jobs of {there.namespace}: write "
            f"that, or start a server with -n {asked}"
        )
    kind, namespace, name = there.submit(document)
    return {"job": name, "kind": kind, "at": f"namespace {namespace} of context {there.context}"}
