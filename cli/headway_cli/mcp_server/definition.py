"""The classes that describe a tool of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from headway_api.document import Json
from headway_cli.mcp_server.workspace import Workspace


class Arguments(BaseModel):
    """Base class for the arguments of a tool. An unknown argument is refused, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Asked = TypeVar("Asked", bound=Arguments)


@dataclass(frozen=True)
class Change:
    """How a tool changes something."""

    destructive: bool
    """Whether the tool may end or replace something."""
    repeatable: bool
    """Whether a second call with the same arguments changes nothing more."""


@dataclass(frozen=True)
class Tool(Generic[Asked]):
    """One tool of the server."""

    name: str
    """The name of the tool, and of the command of `headway` that does the same."""
    title: str
    about: str
    """A description of what the tool does and answers, how the answer is cut, and how to get more."""
    arguments: type[Asked]
    run: Callable[[Workspace, Asked], Json]
    """Runs the tool and returns its answer. It blocks. An expected failure is InvalidToolCallError,
    RunFailedError or one of `EXPECTED_ERRORS`."""
    change: Change | None = None
    """How the tool changes something; None if it only reads."""
    runs_code: bool = False
    """Whether the tool runs code of the project, on a server that may change things."""
