"""`headway mcp`: serves the commands of `headway` as tools of an MCP server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from headway_cli.commands.common import Context, EndpointUrl, Namespace, wrong
from headway_cli.mcp_server.workspace import Workspace


def mcp(
    project: Annotated[
        Path, typer.Option(help="Folder with jobs' files and .headway; tools read no file elsewhere.")
    ] = Path(),
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes", help="Also change jobs, and run the project's code."),
    ] = False,
    store: Annotated[
        list[str] | None,
        typer.Option(metavar="URI", help="Runs below this address may be read by address: s3://bucket/runs."),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Serve the verbs to an MCP client over stdin and stdout; read-only by default."""
    try:
        # The protocol's library takes a second to import, which no other command needs.
        from headway_cli.mcp_server import server
    except ModuleNotFoundError as error:
        raise wrong(f"{error.name} is not installed: pip install headway[cli]") from error
    try:
        os.chdir(project)
    except OSError as error:
        raise wrong(f"--project {project}: {error.strerror}: name the folder of your project") from error
    stores = tuple(each.rstrip("/") for each in store or ())
    for each in stores:
        if not each.startswith(("s3://", "file:///")):
            raise wrong(f"--store {each}: write an address, such as s3://bucket/runs")
    workspace = Workspace(Path.cwd(), context, namespace, endpoint_url, stores, allow_changes)
    server.served(workspace)
