"""Finds the fields of a request's parts that are not applied. They are refused by name, or listed. Pure.

A part is a nested object, such as a message or a tool. `unapplied.py` does the same for the fields at the top
of a request. Each kind of part declares its own fields, because one name has different meanings in different
parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Final, get_args

from pydantic import BaseModel, ConfigDict

from headway_api.records import MAX_IGNORED
from headway_coordinator.gateway.neutral import Table, bounded, neutral, shown
from headway_coordinator.gateway.refusals import UNSUPPORTED, GatewayError, bad

Path = tuple[str | int, ...]
"""The path to a value in a request: names of fields, and positions in lists."""
LEAVE_OUT: Final = "leave it out, or set spec.agent.lenient: true"
EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
"""Values at which an unknown field has no meaning. Clients send earlier answers back with empty fields."""


@dataclass(frozen=True)
class Unread:
    """The fields of one kind of part that are not applied."""

    refused: Table = field(default_factory=dict)
    """Fields that are refused unless the job is lenient."""
    listed: Table = field(default_factory=dict)
    """Fields that are never refused. Unknown fields are listed, too."""
    inert: tuple[str, ...] = ()
    """Fields that would change neither what is sampled nor what the answer says. They are not listed."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Field of `refused` -> why it is not applied, and what to do instead. The default is `LEAVE_OUT`."""
    closed: bool = False
    """Whether unknown fields are refused."""
    kind: str = "type"
    """The name of the field that says what kind of part this is."""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Kind -> the fields that only parts of that kind use. In parts of other kinds they are listed."""


class Block(BaseModel):
    """A part of a request, such as a message, a tool, or a part of a message's content."""

    model_config = ConfigDict(extra="allow")

    UNREAD: ClassVar[Unread] = Unread()


def unread(body: BaseModel, *, lenient: bool) -> tuple[str, ...]:
    """The paths of ignored fields in a request's parts: each once, and without positions in lists.

    Raises:
        GatewayError: 400 `unsupported_parameter` for the first refused field, if `lenient` is false.
    """
    found: dict[str, None] = {}
    _visit(body, (), lenient, found)
    return bounded(found)


def _visit(part: BaseModel, path: Path, lenient: bool, found: dict[str, None]) -> None:
    """Add the ignored fields of all parts within `part` to `found`."""
    for name in sorted(_places(type(part)).within & part.model_fields_set):
        value = getattr(part, name)
        if isinstance(value, Block):
            _add([value], (*path, name), lenient, found, listed=False)
        elif value and isinstance(value, list):
            _add(value, (*path, name), lenient, found, listed=True)


def _add(blocks: Sequence[Block], path: Path, lenient: bool, found: dict[str, None], *, listed: bool) -> None:
    """Add the ignored fields of `blocks`, parts of one class. `listed`: the request has them in a list."""
    places = _places(type(blocks[0]))
    for at, block in enumerate(blocks):
        sent = block.model_fields_set
        of_others = places.of_others(block, sent)
        if block.model_extra or of_others or not places.unread.isdisjoint(sent):
            for name, value, refused in _unapplied(block, of_others):
                if refused and not lenient:
                    raise _refusal(block, (*path, at) if listed else path, name, value)
                if len(found) <= MAX_IGNORED:
                    found[".".join([*(one for one in path if isinstance(one, str)), name[:60]])] = None
        if not places.within.isdisjoint(sent):
            _visit(block, (*path, at) if listed else path, lenient, found)


def _refusal(block: Block, path: Path, name: str, value: object) -> GatewayError:
    at = ".".join(map(str, (*path, name[:60])))
    return bad(at, f"{shown(value)} is not applied: {block.UNREAD.why.get(name, LEAVE_OUT)}", UNSUPPORTED)


def _unapplied(block: Block, of_others: Set[str]) -> Iterator[tuple[str, object, bool]]:
    """The fields of one part that are not applied, their values, and whether each is refused.

    `of_others` has the names of the part's fields that only parts of other kinds use.
    """
    unread, extra, sent = block.UNREAD, block.model_extra or {}, block.model_fields_set
    for table, refused in ((unread.refused, True), (unread.listed, False)):
        for name, values in table.items():
            if name in sent:
                value = extra[name] if name in extra else getattr(block, name)
                if not neutral(value, values):
                    yield name, value, refused
    for name in sorted(of_others):
        if not neutral(value := getattr(block, name), EMPTY):
            yield name, value, False
    for name, value in extra.items():
        known = name in unread.refused or name in unread.listed or name in unread.inert
        if not known and (unread.closed or not neutral(value, EMPTY)):
            yield name, value, unread.closed


@dataclass(frozen=True)
class _Places:
    within: frozenset[str]
    """Fields whose values may be parts."""
    unread: frozenset[str]
    """Known fields that are not applied."""
    kind: str
    """As `Unread.kind`."""
    reads: Mapping[str, frozenset[str]]
    """As `Unread.reads`."""
    of_kinds: frozenset[str]
    """All fields that `reads` names."""

    def of_others(self, block: Block, sent: Set[str]) -> Set[str]:
        """The fields of a part that only parts of other kinds use."""
        found = self.of_kinds & sent
        return found - self.reads.get(getattr(block, self.kind), frozenset()) if found else found


@cache
def _places(kind: type[BaseModel]) -> _Places:
    """The fields to examine in parts of one class. The result is cached: requests have thousands of parts."""
    fields = kind.model_fields.items()
    within = frozenset(name for name, about in fields if any(_parts(about.annotation)))
    unread = kind.UNREAD if issubclass(kind, Block) else Unread()
    reads = {kind: frozenset(names) for kind, names in unread.reads.items()}
    of_kinds = frozenset[str]().union(*reads.values())
    return _Places(within, frozenset((*unread.refused, *unread.listed)), unread.kind, reads, of_kinds)


def _parts(hint: Any) -> Iterator[type[Block]]:
    """The classes of parts that a field with this type hint may contain."""
    if isinstance(hint, type) and issubclass(hint, Block):
        yield hint
    for one in get_args(hint):
        yield from _parts(one)
