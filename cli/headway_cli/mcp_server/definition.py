"""What a tool of the server is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from headway_api.document import Json
from headway_cli.mcp_server.workspace import Workspace


class Arguments(BaseModel):
    """What a tool is asked. A field that no tool knows is refused, and not passed over."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Asked = TypeVar("Asked", bound=Arguments)


@dataclass(frozen=True)
class Change:
    """What a tool does beside answering."""

    destructive: bool
    """Whether it may end or replace something."""
    repeatable: bool
    """Whether a second call with the same arguments changes nothing more."""


@dataclass(frozen=True)
class Tool(Generic[Asked]):
    """One tool."""

    name: str
    """That of its verb."""
    title: str
    about: str
    """What it does, what it answers, how that is cut, and how to get more."""
    arguments: type[Asked]
    run: Callable[[Workspace, Asked], Json]
    """Blocks. Raises what the verbs raise."""
    change: Change | None = None
    """None: it only reads."""
    runs_code: bool = False
    """Whether it runs code of the project where the server may change things."""
