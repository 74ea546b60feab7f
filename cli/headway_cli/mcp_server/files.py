"""Tools that take a job's file: one estimates the job's cost, and one checks the job."""

from __future__ import annotations

import json
from typing import Final

from headway_api.document import Json
from headway_cli.mcp_server import verb
from headway_cli.mcp_server.arguments import CheckAsked, OfFile
from headway_cli.mcp_server.workspace import Workspace

ESTIMATE_SECONDS: Final = 300.0
CHECK_SECONDS: Final = 900.0


def estimate(workspace: Workspace, asked: OfFile) -> Json:
    """Estimate a job's usage and cost: low, likely and high."""
    options = ["--episode" if workspace.allows_changes else "--no-episode"]
    options += [f"--namespace={workspace.namespace}"] if workspace.namespace is not None else []
    options += [f"--context={workspace.context}"] if workspace.context is not None else []
    return _output("estimate", workspace, asked, options, ESTIMATE_SECONDS)


def check(workspace: Workspace, asked: CheckAsked) -> Json:
    """Check a job and its environment without a model."""
    return _output("check", workspace, asked, [f"--rows={asked.rows}"], CHECK_SECONDS)


def _output(name: str, workspace: Workspace, asked: OfFile, options: list[str], seconds: float) -> Json:
    file = workspace.file(asked.file)
    options += [f"--set={each}" for each in asked.set_]
    found: Json = json.loads(verb.output([name, "--output=json", *options, "--", str(file)], seconds))
    return found
