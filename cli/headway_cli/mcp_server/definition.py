"""What a tool of the server is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from headway_api.document import Json
from headway_cli.mcp_server.workspace import Workspace


class Arguments(BaseModel):
    """Arguments of a tool. A field that the tool does not know is refused, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Asked = TypeVar("Asked", bound=Arguments)


@dataclass(frozen=True)
class Change:
    """What a tool does besides answering."""

    destructive: bool
    """Whether it may end or replace something."""
    repeatable: bool
    """Whether a second call with the same arguments changes nothing more."""


@dataclass(frozen=True)
class Tool(Generic[Asked]):
    """One tool."""

    name: str
    """The name of its verb."""
    title: str
    about: str
    """What it does, what it answers, how the answer is cut, and how to get more."""
    arguments: type[Asked]
    run: Callable[[Workspace, Asked], Json]
    """Blocks. Raises what the verbs raise."""
    change: Change | None = None
    """None: it only reads."""
    runs_code: bool = False
    """Whether it runs code of the project if the server may change things."""
