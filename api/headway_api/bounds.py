"""Bounds on values from outside (size, depth, count, magnitude), and how to read values within them.

A value is from outside if another user, program or machine wrote it. Examples are a custom resource, a
request or an answer, a dataset row, an object in the store, and a termination message. Every reader takes its
bounds from here and reads JSON with `json_within`. So a bad value ends in one `OutOfBoundsError`, and harms
nothing else.

Each bound is a maximum. This module needs only the standard library, because sandboxes import it before an
episode. Readers handle decompression, timeouts and authentication themselves, before they use it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

KIB: Final = 1024
MIB: Final = 1024 * KIB

DEPTH: Final = 32
"""Levels of lists and objects in one JSON value; Kubernetes' own deepest objects have about 20."""
VALUES: Final = 1_000_000
"""Lists, objects, and the values in them, in one JSON value."""
MAGNITUDE: Final = 1e12
"""Largest magnitude of a metric: greater numbers overflow when they are squared and summed."""
SCORE: Final = 1e6
"""Largest magnitude of a reward or an external score, whatever `spec.reward.range` allows."""


CALL: Final = 64 * KIB
"""Bytes of one call of the agents' protocol, and of a refusal's text."""
SCHEMA: Final = 32 * KIB
"""Bytes of a JSON schema that a turn must follow."""
ARGUMENTS: Final = MIB
"""Bytes of one tool call's arguments."""
CONVERSATION: Final = 8 * MIB
"""Bytes of one request for a turn: the whole conversation and the tools. A million tokens have about 4
MiB."""
CONVERSATION_DEPTH: Final = 64
CONVERSATION_VALUES: Final = 100_000
"""Values in a request for a turn. A thousand turns with tools have about 25,000."""
PROMPT_VALUES: Final = 200_000
"""Token ids of a prompt."""
MESSAGES: Final = 10_000
"""Messages of one conversation, and parts of one message."""
TOOLS: Final = 512
"""Tools of one conversation, and calls of one message."""
ANSWER: Final = 8 * MIB
"""Bytes of one answer of a sandbox, an agent, a broker or a weight agent."""
ANSWER_VALUES: Final = 100_000
REPORT: Final = 8 * MIB
"""Bytes of a learner's report, or of a manifest of weights."""
METRICS: Final = 1_000
"""Named numbers of one episode, or of one step."""
NAME: Final = 200
"""Characters of a name from outside."""
PART: Final = 255
"""Bytes of one part of a path."""
ROW: Final = MIB
"""Bytes of one row of a dataset, as JSON."""
ROWS: Final = 5_000_000
"""Rows of one dataset."""
DATASET: Final = 1024 * MIB
"""Bytes of one dataset, as its file and as the rows in it."""
OBJECT: Final = 256 * MIB
"""Bytes of one object of the store that is read whole."""
UNPACKED: Final = 1024 * MIB
"""Bytes of one group, decompressed."""
CONTAINERS: Final = 2_000_000
"""Lists and objects of one group. A turn has about ten."""
KEYS: Final = 5_000_000
"""Objects of one listing."""
LISTING: Final = 1024 * MIB
"""Characters of all names of one listing."""
WAIT_SECONDS: Final = 60.0
"""Longest pause, in seconds, that another process may ask for."""

_HALF: Final = "not JSON in UTF-8: it has half of a surrogate pair"
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_REST: Final = bytes(set(range(256)) - set(b"{}[],"))
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_KEY: Final = re.compile(rb"\s*+(" + _STRING + rb")\s*+:\s*+", re.DOTALL)
_SCALAR: Final = re.compile(_STRING + rb"|[^\s,{}\[\]\"]++", re.DOTALL)
_BRACKETS: Final = re.compile(_STRING + rb"|[{\[]++|[}\]]++", re.DOTALL)
_BETWEEN: Final = re.compile(rb"\s*+([,}\]])\s*+")
_BLANK: Final = re.compile(rb"\s*+")
_CONTAINERS: Final = (dict, list, tuple)
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
"""Exact types of most values: a lookup here is faster than `isinstance`."""
_SLICE: Final = 64 * KIB
"""Bytes that one call scans. Other threads wait during the call."""
_FEW_BRACKETS: Final = 500
"""A text with at most this many opening brackets is safe to parse, however deep it is nested."""
MEMBERS: Final = 10_000
"""Members of one object, or elements of one list, that `json_members` and `json_elements` accept."""


class OutOfBoundsError(ValueError):
    """A value from outside is malformed, or exceeds a bound of its reader. The message says which."""


def json_within(
    data: bytes | str,
    limit: int,
    *,
    depth: int = DEPTH,
    values: int = VALUES,
    halves: bool = False,
    finite: bool = True,
) -> Any:
    """Parse one JSON value whose text has at most `limit` bytes.

    Size and count are checked before anything is built, so a refusal needs memory in proportion to `limit`
    only. The depth of a text with few brackets is checked afterwards. NaN, infinities and text that UTF-8
    cannot represent are refused too. A reader that replaces such values itself accepts them by `finite=False`
    and `halves=True`.

    Raises:
        OutOfBoundsError: one of these limits is exceeded, or `data` is not JSON.
    """
    # A text has at most as many characters as bytes, so one that is too long need not be encoded.
    if len(data) > limit:
        raise OutOfBoundsError(f"more than {limit} bytes")
    try:
        raw = data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as error:
        raise OutOfBoundsError(_HALF) from error
    if len(raw) > limit:
        raise OutOfBoundsError(f"more than {limit} bytes")
    # Brackets and commas inside strings count too: leaving them out is slow, and the bound still holds.
    opened = raw.count(b"[") + raw.count(b"{")
    small = opened <= _FEW_BRACKETS and opened + raw.count(b",") <= values
    if not small:
        _check_structure(raw, depth, values)
    try:
        found = (_FINITE if finite else _ANY).decode(raw.decode())
        if small and opened > depth:
            nesting(found, depth, values)
    except (ValueError, RecursionError) as error:
        if isinstance(error, OutOfBoundsError):
            raise
        raise OutOfBoundsError(f"not JSON: {error}") from error
    if not halves and b"\\u" in raw:
        _check_text(found)
    return found


def containers_within(raw: bytes, limit: int) -> bytes:
    """Return `raw` unchanged if it has at most `limit` lists and objects. The caller parses it as JSON.

    It suits large values, because nothing is copied. It does not check that `raw` is JSON.

    Raises:
        OutOfBoundsError: `raw` has more lists and objects.
    """
    count = raw.count(b"[") + raw.count(b"{")
    if count > limit:
        for text in _STRINGS.finditer(raw):
            count -= raw.count(b"[", *text.span()) + raw.count(b"{", *text.span())
    if count > limit:
        raise OutOfBoundsError(f"more than {limit} lists and objects")
    return raw


def require_few_values(raw: bytes, limit: int) -> None:
    """Count the lists, objects and values of one or several JSON texts, without parsing them.

    Raises:
        OutOfBoundsError: they have more than `limit`.
    """
    if raw.count(b"[") + raw.count(b"{") + raw.count(b",") > limit:
        _check_structure(raw, len(raw), limit)


def json_members(raw: bytes, limit: int) -> dict[str, bytes]:
    """Name and text of each member of one JSON object. No member's value is parsed, however deep it is.

    So a reader can read an object without the one part that is out of bounds.

    Raises:
        OutOfBoundsError: `raw` has more than `limit` bytes or `MEMBERS` members, or is not an object.
    """
    found: dict[str, bytes] = {}
    for key, value in _parts(raw, limit, b"{"):
        name = json_within(key, len(key))
        found[str(name)] = value
    return found


def json_elements(raw: bytes, limit: int) -> list[bytes]:
    """Text of each element of one JSON list, within the bounds of `json_members`."""
    return [value for _, value in _parts(raw, limit, b"[")]


def _parts(raw: bytes, limit: int, opens: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and text of each member of an object; for an element of a list, an empty name and its text."""
    if len(raw) > limit:
        raise OutOfBoundsError(f"more than {limit} bytes")
    place = _blank(raw, 0)
    if raw[place : place + 1] != opens:
        raise OutOfBoundsError(f"not JSON that begins with {opens.decode()}")
    place = _blank(raw, place + 1)
    closes = b"}" if opens == b"{" else b"]"
    if raw[place : place + 1] == closes:
        return
    for _ in range(MEMBERS):
        key = b""
        if opens == b"{":
            named = _KEY.match(raw, place)
            if named is None:
                raise OutOfBoundsError("not JSON: a member has no name")
            key, place = named.group(1), named.end()
        end = _end_of(raw, place)
        yield key, raw[place:end]
        following = _BETWEEN.match(raw, end)
        if following is None or following.group(1) not in (b",", closes):
            raise OutOfBoundsError("not JSON: neither a comma nor an end follows a value")
        if following.group(1) == closes:
            return
        place = following.end()
    raise OutOfBoundsError(f"more than {MEMBERS} values")


def _blank(raw: bytes, place: int) -> int:
    found = _BLANK.match(raw, place)
    return found.end() if found else place


def _end_of(raw: bytes, place: int) -> int:
    """Where the value that begins at `place` ends."""
    if raw[place : place + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(raw, place)
        if scalar is None:
            raise OutOfBoundsError("not JSON: a value is missing")
        return scalar.end()
    depth = 0
    for token in _BRACKETS.finditer(raw, place):
        text = token.group()
        if text[:1] in b"{[":
            depth += len(text)
        elif text[:1] in b"}]":
            if len(text) >= depth:
                return token.start() + depth
            depth -= len(text)
    raise OutOfBoundsError("not JSON: a list or an object does not end")


def nesting(value: Any, max_depth: int, max_values: int) -> None:
    """Check depth and count of a parsed value, without recursion.

    Raises:
        OutOfBoundsError: `value` is deeper, or has more values.
    """
    level, count = [value] if isinstance(value, _CONTAINERS) else [], 0
    for _ in range(max_depth):
        count += sum(map(len, level))
        if count > max_values:
            raise OutOfBoundsError(f"more than {max_values} values")
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if type(inner) not in _SCALARS and isinstance(inner, _CONTAINERS)
        ]
    if level:
        raise OutOfBoundsError(f"nested more than {max_depth} levels deep")


def _check_structure(raw: bytes, max_depth: int, max_values: int) -> None:
    """Check depth and count of a JSON text without parsing it. It does not check that the text is JSON."""
    structure = _structure(raw)
    opened = structure.count(b"[") + structure.count(b"{")
    if opened + structure.count(b",") > max_values:
        raise OutOfBoundsError(f"more than {max_values} values")
    if opened <= max_depth:
        return
    depth = 0
    for byte in structure.translate(None, b","):
        depth += 1 if byte in b"[{" else -1
        if depth > max_depth:
            raise OutOfBoundsError(f"nested more than {max_depth} levels deep")


def _structure(raw: bytes) -> bytes:
    """The brackets and commas outside of strings, in order."""
    found: list[bytes] = []
    start, inside = 0, False
    while start < len(raw):
        end = start + _SLICE
        piece = raw[start:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # what a backslash escapes belongs to the same slice
            end += 1
        pieces = raw[start:end].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        found.append(b"".join(pieces[inside::2]).translate(None, _REST))
        inside ^= not len(pieces) % 2
        start = end
    return b"".join(found)


def _check_text(value: Any) -> None:
    """Refuse text with half of a surrogate pair, which is valid JSON but cannot be stored as UTF-8."""
    left = [value]
    try:
        while left:
            one = left.pop()
            if isinstance(one, str):
                one.encode()
            elif isinstance(one, dict):
                left += one.keys()
                left += one.values()
            elif isinstance(one, list):
                left += one
    except UnicodeEncodeError as error:
        raise OutOfBoundsError(_HALF) from error


def _finite(text: str) -> float:
    """Parse a finite number: 1e999 is valid JSON, but infinite."""
    number = float(text)
    if not math.isfinite(number):
        raise OutOfBoundsError(f"{text[:32]} is not a finite number")
    return number


def _not_finite(name: str) -> NoReturn:
    raise OutOfBoundsError(f"{name} is not a finite number")


_FINITE: Final = json.JSONDecoder(parse_constant=_not_finite, parse_float=_finite)
_ANY: Final = json.JSONDecoder()


def within(number: float, limit: float) -> bool:
    """Whether a number is finite and its magnitude at most `limit`. It accepts integers of any length."""
    try:
        return abs(number) <= limit
    except OverflowError:
        return False


def clipped(number: float, limit: float) -> float:
    """The nearest number of magnitude at most `limit`. NaN and infinities stay as they are."""
    if within(number, limit) or number != number or number in (math.inf, -math.inf):
        return number
    return limit if number > 0 else -limit


def named_numbers(value: object) -> object:
    """Return `value` unchanged if the count of its entries and the length of their names are within bounds.

    Raises:
        OutOfBoundsError: it has more than `METRICS` entries, or a name of more than `NAME` characters.
    """
    if not few(value, METRICS):
        raise OutOfBoundsError(f"more than {METRICS} numbers")
    if isinstance(value, dict) and any(len(str(name)) > NAME for name in value):
        raise OutOfBoundsError(f"a name has more than {NAME} characters")
    return value


def shortened(text: str, limit: int) -> str:
    """Text from outside as a message or a log line shows it: at most `limit` characters, no control
    characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return "".join(character if character.isprintable() else " " for character in cut)


def few(value: object, limit: int) -> bool:
    """Whether a list or an object has at most `limit` entries. True for other values, which the reader
    refuses."""
    return not isinstance(value, list | dict) or len(value) <= limit


def is_below(name: str) -> bool:
    """Whether a name from outside, joined to a folder, stays below it. Its parts between slashes must not be
    empty, `.`, `..` or longer than a file name may be. It must have no NUL or backslash."""
    if "\0" in name or "\\" in name:
        return False
    return all(
        part not in ("", ".", "..") and len(part.encode(errors="replace")) <= PART for part in name.split("/")
    )
