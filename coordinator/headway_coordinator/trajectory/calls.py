"""The content of a sampled turn: its text, and its tool calls, including malformed ones.

A model may write anything, above all during a collapse. A call that cannot be carried out, or cannot be
written as JSON again, has a `problem`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, nesting
from headway_api.records import MalformedKind

Message = dict[str, Any]
Tool = dict[str, Any]


UNCLOSED, NO_NAME, NO_ARGUMENTS = "unclosed block", "missing name", "arguments are not an object"
MISNAMED: Final = "arguments are missing, and the call has unknown keys"
BESIDE: Final = frozenset({"name", "tool_name", "id", "tool_call_id", "type"})
"""Keys that a call as JSON may have besides its arguments."""
STRUCTURE = "malformed structure"
CUT: Final = f"{STRUCTURE}: an unpaired closing tag follows, so the call may be cut off within a value"
NOT_JSON: Final = "an argument that must be an object or a list is not JSON"
UNREADABLE: Final = (ValueError, RecursionError, MemoryError)
"""Errors that Python's parsers raise for hostile text, such as very deep brackets or very long numbers."""
_SIGNS: tuple[tuple[MalformedKind, tuple[str, ...]], ...] = (
    ("unclosed", (UNCLOSED,)),
    ("no_name", (NO_NAME, "the name is not a string", "it names no function", "not addressed to a function")),
    ("not_json", ("not JSON", "invalid json", "as JSON", "JSONDecodeError", "RecursionError", "ValueError")),
    ("arguments", (NO_ARGUMENTS, "arguments")),
    ("structure", (STRUCTURE,)),
)
"""Kinds of problems, each with texts that occur in its messages. The first kind that matches counts."""


@dataclass(frozen=True)
class Call:
    """A tool call as the model wrote it."""

    raw: str
    """The text between the call's tags, as sampled."""
    name: str | None
    arguments: dict[str, Any] | None
    problem: str | None = None
    """Why the call cannot be carried out; None if it can."""
    tags: tuple[str, str] = ("", "")
    """The tags around `raw`. The second is empty if the call was cut off."""
    id: str | None = None
    """The model's own id of the call, or one of the gateway; `call_ids.py` sets it."""

    @property
    def kind(self) -> MalformedKind | None:
        """The kind of `problem`; None if the call has no problem."""
        if self.problem is None:
            return None
        return next((kind for kind, signs in _SIGNS if any(text in self.problem for text in signs)), "other")

    @property
    def written(self) -> str:
        """The call as the turn's text has it, with its tags."""
        return self.tags[0] + self.raw + self.tags[1]


@dataclass(frozen=True)
class Parsed:
    """The content of a sampled turn."""

    content: str
    reasoning: str | None = None
    calls: list[Call] = field(default_factory=list)


def kinds(calls: Sequence[Call]) -> dict[MalformedKind, int]:
    """Kind of problem -> the number of calls that cannot be carried out because of it."""
    return dict(Counter(call.kind for call in calls if call.kind is not None)) if calls else {}


def malformed(raw: str, problem: object, tags: tuple[str, str] = ("", "")) -> Call:
    """A call without name and arguments, for text that is an attempt at a call but cannot be parsed."""
    shown = f"{type(problem).__name__}: {problem}" if isinstance(problem, Exception) else str(problem)
    return Call(raw, None, None, shown, tags)


class DuplicateNameError(ValueError):
    """An object has two values for one name, so it is unknown which value the model means."""

    def __init__(self) -> None:
        super().__init__(f"{STRUCTURE}: an argument is given twice")


def as_json(text: str) -> Any:
    """The JSON value of a call's text.

    Raises:
        ValueError: the text is not JSON, or an object in it has a name twice.
    """
    return json.loads(text, object_pairs_hook=once)


def once(given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of the given names and values.

    Raises:
        DuplicateNameError: a name occurs twice.
    """
    found = dict(given)
    if len(found) < len(given):
        raise DuplicateNameError
    return found


def refused(call: Call, problem: str) -> Call:
    """The call with `problem`, so that it is not carried out. A call that has a problem already keeps it."""
    return call if call.problem else replace(call, arguments=None, problem=problem)


def judged(found: Any, tags: tuple[str, str] = ("", "")) -> Call:
    """A call that the `renderers` package found, with the reason if it cannot be carried out."""
    arguments, problem = found.arguments, None
    if str(found.status) != "ok":
        problem = str(found.status).replace("_", " ")
        tags = (tags[0], "" if str(found.status) == "unclosed_block" else tags[1])
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except UNREADABLE as error:
            problem = f"arguments are not JSON: {error}"
    problem = problem or _overlooked(found.raw, arguments)
    return called(found.raw, found.name, arguments, problem, tags)


def _overlooked(raw: object, arguments: object) -> str | None:
    """A problem of a JSON call that the package's parsers do not detect; None if there is none.

    These are a name that occurs twice, and unknown keys instead of the arguments.
    """
    try:
        call = as_json(raw if isinstance(raw, str) else "")
    except DuplicateNameError as error:
        return str(error)
    except UNREADABLE:
        return None
    return MISNAMED if not arguments and misnamed(call, ("arguments", "parameters")) else None


def misnamed(call: object, arguments: Sequence[str], name: str = "name") -> bool:
    """Whether an object has none of the keys in `arguments`, but has unknown keys that may be arguments."""
    return isinstance(call, dict) and not call.keys() & {*arguments} and bool(call.keys() - BESIDE - {name})


def called(
    raw: str,
    name: object,
    arguments: object,
    problem: str | None = None,
    tags: tuple[str, str] = ("", ""),
    identity: str | None = None,
) -> Call:
    """A call of `name` with `arguments`, with the reason if it cannot be carried out."""
    problem = problem or _unusable(name, arguments)
    usable = arguments if problem is None and isinstance(arguments, dict) else None
    return Call(raw, name if isinstance(name, str) else None, usable, problem, tags, identity)


def _unusable(name: object, arguments: object) -> str | None:
    if not isinstance(name, str):
        return "the name is not a string"
    if not isinstance(arguments, dict):
        return NO_ARGUMENTS
    try:
        # The gateway and the sandbox have the same bounds on depth and, below, on bytes.
        nesting(arguments, bounds.DEPTH, bounds.VALUES)
    except OutOfBoundsError as error:
        return f"arguments are out of bounds: {error}"
    try:
        # JSON's escapes can spell half a surrogate pair, and Python's parser accepts NaN. `dumps` and
        # `encode` refuse both.
        size = len(json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode())
    except UNREADABLE as error:
        return f"it cannot be written as JSON: {error}"
    if size > bounds.ARGUMENTS:
        return f"arguments are out of bounds: more than {bounds.ARGUMENTS} bytes"
    return None
