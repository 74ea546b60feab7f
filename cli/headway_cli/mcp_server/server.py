"""Speaks the Model Context Protocol over stdin and stdout.

Only the protocol is written to standard output. Meanwhile the SDK redirects the process's own output to
standard error, so a stray `print` goes there. The end of standard input ends the process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn

import anyio
import anyio.to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as Listed
from pydantic import ValidationError

from headway_api.document import Json
from headway_cli import near_names
from headway_cli.client.outcome import RunFailedError
from headway_cli.expected_errors import EXPECTED_ERRORS
from headway_cli.mcp_server import bounds, catalogue, verb, words
from headway_cli.mcp_server.bounds import AnswerTooLongError
from headway_cli.mcp_server.definition import Tool
from headway_cli.mcp_server.words import InvalidToolCallError
from headway_cli.mcp_server.workspace import Workspace

Context = ServerRequestContext[dict[str, Any]]
AT_ONCE: Final = 4
"""Maximum calls that are answered at the same time; others wait."""
MAX_WORDS: Final = 4000
"""Maximum characters of an error message."""
INSTRUCTIONS: Final = (
    "Headway trains tool-using agents with reinforcement learning. Call jobs first, then status, report and "
    f"trajectories of a job by its name. {catalogue.LIMIT} {catalogue.UNTRUSTED}"
)
log = logging.getLogger(__name__)


def served(workspace: Workspace) -> NoReturn:
    """Serve one client until standard input ends or a signal arrives, and then end the process at once.

    The process does not wait for running calls: a call may wait minutes for a store or a cluster.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, _: _leave(128 + number))
    anyio.run(_serve, workspace)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End the processes that this one started, and then this process itself."""
    verb.end_all()
    sys.stderr.flush()
    os._exit(code)


async def _serve(workspace: Workspace) -> None:
    server = made(workspace)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def made(workspace: Workspace) -> Server[dict[str, Any]]:
    """Create the server of a workspace, independent of the transport."""
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        tools = catalogue.listed(allows_changes=workspace.allows_changes)
        return ListToolsResult(
            tools=[described(each, allows_changes=workspace.allows_changes) for each in tools]
        )

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = _named(params.name)
        if tool.change is not None and not workspace.allows_changes:
            return _error(
                f"{tool.name} is not offered here, because this server only reads: ask the person who set "
                "it up to start it with --allow-changes"
            )
        asked = verb.Call()
        verb.call.set(asked)
        ask = partial(answered, workspace, tool, params.arguments or {})
        try:
            return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=limiter)
        except anyio.get_cancelled_exc_class():
            asked.let_go()
            raise

    return Server(
        "headway",
        title="Headway",
        version=_version(),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _version() -> str:
    """Headway's version; empty in a checkout that is not installed."""
    try:
        return version("headway")
    except PackageNotFoundError:
        return ""


def _named(name: str) -> Tool[Any]:
    """The tool of this name.

    Raises:
        MCPError: there is no such tool.
    """
    known = {tool.name: tool for tool in catalogue.TOOLS}
    if name not in known:
        message = f"there is no tool {name[:60]!r}{near_names.clause(name[:60], known)}"
        raise MCPError(code=INVALID_PARAMS, message=message)
    return known[name]


def described(tool: Tool[Any], *, allows_changes: bool) -> Listed:
    """A tool in the protocol's form, for the client's list of tools."""
    reads = tool.change is None and not (tool.runs_code and allows_changes)
    return Listed(
        name=tool.name,
        title=tool.title,
        description=tool.about,
        input_schema=tool.arguments.model_json_schema(by_alias=True),
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=reads,
            destructive_hint=tool.change is not None and tool.change.destructive,
            idempotent_hint=tool.change is None or tool.change.repeatable,
            open_world_hint=False,
        ),
    )


def answered(workspace: Workspace, tool: Tool[Any], arguments: Json) -> CallToolResult:
    """Call a tool. Return its answer, or an error message for every exception."""
    try:
        asked = tool.arguments.model_validate(arguments)
    except ValidationError as error:
        return _error(words.of_arguments(error, tool.arguments))
    try:
        fitted, cut = bounds.fitted(tool.run(workspace, asked))
    except (InvalidToolCallError, RunFailedError, *EXPECTED_ERRORS) as error:
        return _error(str(error))
    except AnswerTooLongError:
        return _error(f"{tool.name}: the answer is too long: ask for less")
    except Exception:
        log.exception("%s failed", tool.name)
        return _error(f"{tool.name} failed inside Headway; the server's standard error shows where")
    answer = {**fitted, "cut": cut}
    text = TextContent(type="text", text=json.dumps(answer, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content=answer)


def _error(message: str) -> CallToolResult:
    made, _ = bounds.fitted({"error": message}, text=MAX_WORDS)
    return CallToolResult(content=[TextContent(type="text", text=made["error"])], is_error=True)
