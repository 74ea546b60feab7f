"""Parts of a request, and which of their fields are not applied: refused by name, or listed. Pure.

`unapplied.py` does the same for a request's own fields. Each part declares its fields, because one name means
different things in different parts.
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
"""Where a value is in a request: names of fields, and positions in lists."""
LEAVE_OUT: Final = "leave it out, or set spec.agent.lenient: true"
EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
"""Values of unknown fields that say nothing. Clients send answers back, with fields that are empty there."""


@dataclass(frozen=True)
class Unread:
    """Fields of a part that are not applied."""

    refused: Table = field(default_factory=dict)
    listed: Table = field(default_factory=dict)
    """Fields that are never refused. Unknown fields are listed, too."""
    inert: tuple[str, ...] = ()
    """Fields that would change neither what is sampled nor what the answer says."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Why a field of `refused` is not applied, and what to do instead, if that is not `LEAVE_OUT`."""
    closed: bool = False
    """Whether unknown fields are refused."""
    kind: str = "type"
    """The field that says what kind of part this is."""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Kind -> the fields that are read in parts of that kind alone. They are listed in parts of others."""


class Block(BaseModel):
    """A part of a request, such as a message, a tool, or a part of a message's content."""

    model_config = ConfigDict(extra="allow")

    UNREAD: ClassVar[Unread] = Unread()


def unread(body: BaseModel, *, lenient: bool) -> tuple[str, ...]:
    """The fields of a request's parts that are ignored: each once, and without positions in lists.

    Raises:
        GatewayError: 400 `unsupported_parameter`, for the first that is refused, if `lenient` is false.
    """
    found: dict[str, None] = {}
    _visit(body, (), lenient, found)
    return bounded(found)


def _visit(part: BaseModel, path: Path, lenient: bool, found: dict[str, None]) -> None:
    """Add the fields of all parts within a part to `found`."""
    for name in sorted(_places(type(part)).within & part.model_fields_set):
        value = getattr(part, name)
        if isinstance(value, Block):
            _add([value], (*path, name), lenient, found, listed=False)
        elif value and isinstance(value, list):
            _add(value, (*path, name), lenient, found, listed=True)


def _add(blocks: Sequence[Block], path: Path, lenient: bool, found: dict[str, None], *, listed: bool) -> None:
    """Add the fields of parts of one kind. `listed`: they are a list in the request."""
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

    `of_others` are its fields that only parts of other kinds have.
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
    """Fields that may have parts."""
    unread: frozenset[str]
    """Known fields that are not applied."""
    kind: str
    """See `Unread`."""
    reads: Mapping[str, frozenset[str]]
    """See `Unread`."""
    of_kinds: frozenset[str]
    """All fields that `reads` names."""

    def of_others(self, block: Block, sent: Set[str]) -> Set[str]:
        """The fields in a part that only parts of other kinds have."""
        found = self.of_kinds & sent
        return found - self.reads.get(getattr(block, self.kind), frozenset()) if found else found


@cache
def _places(kind: type[BaseModel]) -> _Places:
    """Where to look in parts of one kind. Requests have thousands of parts, so this is found once."""
    fields = kind.model_fields.items()
    within = frozenset(name for name, about in fields if any(_parts(about.annotation)))
    unread = kind.UNREAD if issubclass(kind, Block) else Unread()
    reads = {kind: frozenset(names) for kind, names in unread.reads.items()}
    of_kinds = frozenset[str]().union(*reads.values())
    return _Places(within, frozenset((*unread.refused, *unread.listed)), unread.kind, reads, of_kinds)


def _parts(hint: Any) -> Iterator[type[Block]]:
    """The kinds of parts that a field of this type may have."""
    if isinstance(hint, type) and issubclass(hint, Block):
        yield hint
    for one in get_args(hint):
        yield from _parts(one)
