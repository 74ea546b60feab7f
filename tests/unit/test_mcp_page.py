"""docs/mcp.md has each tool with its description and arguments, and each option of the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from headway_cli.commands.mcp import mcp
from headway_cli.mcp_server import bounds, catalogue
from headway_cli.mcp_server.definition import Tool

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mcp.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def row(tool: Tool[Any]) -> str:
    """A row of the page's table for a tool: its first sentence, and its arguments."""
    first = re.split(r"(?<=\.) ", tool.about.replace("|", r"\|"))[0]
    names = [field.alias or name for name, field in tool.arguments.model_fields.items()]
    return f"| `{tool.name}` | {first} | {', '.join(f'`{name}`' for name in names)} |"


@pytest.mark.parametrize(
    ("section", "changes"), [("Tools that read", False), ("Tools that change something", True)]
)
def test_the_page_has_every_tool(section: str, changes: bool) -> None:
    rows = [line for line in SECTIONS[section].splitlines() if line.startswith("| `")]
    assert rows == [row(tool) for tool in catalogue.TOOLS if (tool.change is not None) is changes]


def test_the_page_has_the_commands_options() -> None:
    command = typer.main.get_command(_app())
    documented = set(re.findall(r"`(--[a-z-]+|-n)\b", SECTIONS["Register it"]))
    known = {name for each in command.params for name in each.opts if name not in ("--namespace", "--help")}
    assert documented == known


def test_the_page_has_the_bound_of_an_answer() -> None:
    assert f"at most {bounds.MAX_CHARACTERS:,} characters" in PAGE


def test_the_snippet_starts_the_command() -> None:
    (snippet,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (server,) = json.loads(snippet)["mcpServers"].values()
    assert [server["command"], server["args"][0]] == ["headway", "mcp"]


def _app() -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(mcp)
    return app
