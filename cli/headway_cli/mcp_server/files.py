"""Tools that take a job's file: one estimates the job's cost, and one checks the job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from headway_api.bounds import shortened
from headway_api.document import Json
from headway_cli.local import manifest
from headway_cli.mcp_server import verb
from headway_cli.mcp_server.arguments import CheckAsked, OfFile
from headway_cli.mcp_server.words import InvalidToolCallError
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
    if not workspace.allows_changes:
        _require_own_addresses(file, asked.set_)
    options += [f"--set={each}" for each in asked.set_]
    found: Json = json.loads(verb.output([name, "--output=json", *options, "--", str(file)], seconds))
    return found


def _require_own_addresses(file: Path, settings: Sequence[str]) -> None:
    """Refuse settings that add an address to a job: a server that only reads contacts those of the file.

    Raises:
        InvalidToolCallError: a setting adds an address.
    """
    job = manifest.read(file)
    own = set(_addresses(job))
    if new := next((each for each in _addresses(manifest.changed(job, settings)) if each not in own), None):
        raise InvalidToolCallError(
            f"set: {shortened(new, 60)} is not in the file: a person must write it there"
        )


def _addresses(value: object) -> Iterator[str]:
    """All addresses within a value, such as s3://BUCKET and http://HOST."""
    if isinstance(value, str) and "://" in value:
        yield value
    elif isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from _addresses(each)
    elif isinstance(value, list):
        for each in value:
            yield from _addresses(each)
