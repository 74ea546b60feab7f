"""Parsers for the text between a call's tags: JSON, a name and JSON, keys and values, Python, Gemma."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from headway_coordinator.trajectory import values
from headway_coordinator.trajectory.call_ids import sampled_id
from headway_coordinator.trajectory.calls import (
    MISNAMED,
    NO_NAME,
    NOT_JSON,
    STRUCTURE,
    UNREADABLE,
    Call,
    DuplicateNameError,
    as_json,
    called,
    malformed,
    misnamed,
    once,
)
from headway_coordinator.trajectory.values import Schemas

Tags = tuple[str, str]
Body = Callable[[str, Tags, Schemas], list[Call]]
"""The text between two tags -> the calls in it."""
SkipValues = Callable[[str, int, str], int]
"""Skips the values of a body, in which a closing tag may be text.

It takes a text, the position where the body begins, and the body's closing tag. It returns the position
before which no closing tag ends the body. That is the body's beginning if the notation does not show more.
"""
CALL_ID, ARGS = "[CALL_ID]", "[ARGS]"
"""The tags before a call's id, and before its arguments, in Mistral's templates."""
MAX_CALLS: Final = 128
"""The most calls of one turn that are parsed separately. Any further text is one malformed call."""


_BLANK, _DECODER = re.compile(r"\s*"), json.JSONDecoder()


def blank(text: str, at: int) -> int:
    """The position of the next character that is not white space."""
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def may_call(text: str) -> bool:
    """Whether text beside a call may be part of another call: whether it has a brace or an angle bracket."""
    return "{" in text or "<" in text


def skip_json(text: str, begin: int, closing: str) -> int:
    """A `SkipValues` for a body that begins with JSON."""
    try:
        return _DECODER.raw_decode(text, blank(text, begin))[1]
    except UNREADABLE:
        return begin


def skip_object(text: str, begin: int, closing: str) -> int:
    """A `SkipValues` for a body with a name and then a JSON object."""
    start = text.find("{", begin)
    end = skip_json(text, start, closing) if start >= 0 else start
    return end if end > start else begin


_STRING: Final = re.compile(r"""\"(?:[^"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'""", re.DOTALL)


def skip_python(text: str, begin: int, closing: str) -> int:
    """A `SkipValues` for a body in Python. Each of its strings must be on one line."""
    at, end = begin, text.find(closing, begin)
    while (found := _STRING.search(text, at)) is not None and found.start() < end:
        at = found.end()
        end = text.find(closing, at) if at > end else end
    return at


def skip_quoted(text: str, begin: int, closing: str) -> int:
    """A `SkipValues` for a body whose strings are between Gemma's quotation marks, `values.QUOTE`."""
    at, end = begin, text.find(closing, begin)
    while 0 <= (start := text.find(values.QUOTE, at)) < end:
        stop = text.find(values.QUOTE, start + len(values.QUOTE))
        if stop < 0:
            return at
        at = stop + len(values.QUOTE)
        end = text.find(closing, at) if at > end else end
    return at


def json_calls(name: str = "name", arguments: tuple[str, ...] = ("arguments", "parameters")) -> Body:
    """A parser for calls as JSON: one object, or a list of objects.

    Args:
        name: the key of the tool's name.
        arguments: the keys that the arguments may have; the first one in the object counts.
    """

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        try:
            found = as_json(raw.strip())
        except UNREADABLE as error:
            return [malformed(raw, error, tags)]
        if not isinstance(found, list):
            return [_of_object(found, raw, tags)]
        if not found or len(found) > MAX_CALLS:
            return [malformed(raw, f"{STRUCTURE}: no call, or more than {MAX_CALLS}", tags)]
        try:
            # Each call of a list gets its own JSON as text, because its place in the sampled text is unknown.
            parts = [raw if len(found) == 1 else json.dumps(one, ensure_ascii=False) for one in found]
        except UNREADABLE as error:
            return [malformed(raw, error, tags)]
        return [
            _of_object(one, part, tags if len(found) == 1 else ("", ""))
            for one, part in zip(found, parts, strict=True)
        ]

    def _of_object(found: object, raw: str, tags: Tags) -> Call:
        if not isinstance(found, dict):
            return malformed(raw, f"{STRUCTURE}: a call is not an object", tags)
        if not found.get(name):
            return malformed(raw, NO_NAME, tags)
        if misnamed(found, arguments, name):
            return malformed(raw, MISNAMED, tags)
        given: object = next((found[key] for key in arguments if key in found), {})
        if isinstance(given, str):
            try:
                given = as_json(given)
            except UNREADABLE as error:
                return malformed(raw, error, tags)
        return called(raw, found[name], given, None, tags, sampled_id(found.get("id")))

    return read


def named_json(separators: tuple[str, ...], *, fence: bool = False, prefix: str = "", cut: str = "") -> Body:
    """A parser for a call as a name, one of `separators`, and JSON.

    Args:
        separators: strings that end the name; the first one in the text counts.
        fence: whether the JSON is between ```json and ```, below a line with the name.
        prefix: the text before the name.
        cut: the separator between the name and a number. Prefix, name and number together are the call's id.
    """

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        places = [(place, mark) for mark in separators if (place := raw.find(mark)) >= 0]
        if not places:
            return [malformed(raw, f"{STRUCTURE}: nothing ends the name", tags)]
        place, mark = min(places)
        name, rest = raw[:place], raw[place + (0 if mark == "{" else len(mark)) :]
        identity = name if cut else None
        if mark == CALL_ID:
            identity, _, rest = rest.partition(ARGS)
        if fence:
            name, _, rest = rest.partition("\n")
            rest = rest.strip().removeprefix("```json").removesuffix("```")
        name = name.strip().removeprefix(prefix)
        if cut and cut in name:
            name = name.rpartition(cut)[0]
        if not name:
            return [malformed(raw, NO_NAME, tags)]
        try:
            given = as_json(rest.strip())
        except UNREADABLE as error:
            return [malformed(raw, error, tags)]
        return [called(raw, name, given, None, tags, sampled_id(identity))]

    return read


def without(tag: str, body: Body) -> Body:
    """A parser for text that may begin with a further tag, which is not part of the body."""

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        if not raw.startswith(tag):
            return body(raw, tags, tools)
        return body(raw.removeprefix(tag), (tag, tags[1]), tools)

    return read


MAX_KEY: Final = 256
"""The most characters of a tool's name before the tags, or of an argument's name between tags."""
_NO_NAME_HAS: Final = re.compile(r"""[\s{}<>"'`]""")


class Argument(NamedTuple):
    """An argument's name, and the positions in the text where its value begins and ends."""

    key: str
    start: int
    end: int


@dataclass
class Walk:
    """The state and the result of one pass through the body of a call."""

    at: int
    """The position after the last argument."""
    given: list[Argument] = field(default_factory=list)
    """The arguments that are complete."""
    open: re.Match[str] | None = None
    """The tags before the value in which the pass ended; None if it did not end within a value."""
    strays: bool = False
    """Whether the value of `open` has a closing tag of a call that does not begin in the value."""
    ended: bool = False
    """Whether the end of the call was found."""
    complete: bool = False
    """Whether the pass reached the end of the text."""


@dataclass(frozen=True)
class Pairs:
    """A parser for GLM's and Hy3's calls: the tool's name, and then keys and values in tags.

    A value may contain any text, even the tags of a call. So the tags are paired like brackets, in one pass
    through the text that stops at the end of the call.
    """

    key: str = "<arg_key>"
    key_end: str = "</arg_key>"
    value: str = "<arg_value>"
    value_end: str = "</arg_value>"
    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    section_end: str = ""
    """The tag that ends all calls of a turn; empty if there is none."""
    separator: str = ""
    """The tag that ends the tool's name. If empty, the first key, or the end of the call, ends the name."""

    def __call__(self, raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        begin = raw.find(self.separator or self.key)
        name = (raw if begin < 0 else raw[:begin]).strip()
        if not name:
            return [malformed(raw, NO_NAME, tags)]
        if _NO_NAME_HAS.search(name):
            return [malformed(raw, f"{STRUCTURE}: blanks, quotes or braces in a name", tags)]
        begin = len(raw) if begin < 0 else begin + len(self.separator)
        found, known = self._walk(raw, begin), tools.get(name, {})
        if found.open is not None:
            found = self._walk(raw, begin, known)
        if raw[found.at :].strip():
            return [malformed(raw, f"{STRUCTURE}: a key without a value", tags)]
        arguments = {
            one.key: values.typed(raw[one.start : one.end], known.get(one.key)) for one in found.given
        }
        twice = len(arguments) < len(found.given)
        problem = f"{STRUCTURE}: an argument is given twice" if twice else None
        if any(values.broken(value, known.get(key)) for key, value in arguments.items()):
            problem = NOT_JSON
        return [called(raw, name, arguments, problem, tags)]

    @cached_property
    def ends(self) -> re.Pattern[str]:
        """Finds the tags around values; see `grammar.Blocks.ends`."""
        return re.compile(
            f"(?P<parameter_end>{re.escape(self.value_end)})|(?P<parameter>{re.escape(self.value)})"
        )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        key, key_end, value = map(re.escape, (self.key, self.key_end, self.value))
        value_end, opening, closing = map(re.escape, (self.value_end, self.opening, self.closing))
        head = f"{key}(?:(?!{key}|{key_end})[\\s\\S]){{0,{MAX_KEY}}}{key_end}\\s*{value}"
        over = "|".join([opening, *([re.escape(self.section_end)] if self.section_end else []), r"\Z"])
        return re.compile(
            rf"(?P<head>{head})"
            rf"|(?P<last>{value_end}(?=\s*(?:{head}|{closing}|\Z)))|(?P<value_end>{value_end})"
            rf"|(?P<over>{closing}(?=\s*(?:{over})))|(?P<closing>{closing})|(?P<opening>{opening})"
        )

    @cached_property
    def _begin(self) -> re.Pattern[str]:
        """Matches the name of a call, up to its first argument."""
        name = rf"[^<>]{{1,{MAX_KEY}}}"
        return re.compile(name + (re.escape(self.separator) or f"(?={re.escape(self.key)})"))

    def _key(self, head: re.Match[str]) -> str:
        return head[0][len(self.key) : head[0].index(self.key_end)].strip()

    def _walk(self, text: str, begin: int, known: Container[str] | None = None) -> Walk:
        """Find the arguments of a call, from the position `begin` after the call's name.

        An element within a value needs a closing tag of its own. The closing tag of a value itself is
        followed by another argument, or by the end of the call.

        `known` has the tool's parameters. With it, tags of an argument may be text within a value. They are
        text if the tool has no such parameter, or if the call already has this argument.
        """
        found = Walk(begin)
        given: set[str] = set()
        inner: list[bool] = []  # open elements within the value, outermost first: whether each is a call
        for tag in self._pattern.finditer(text, begin):
            kind = tag.lastgroup
            if found.open is None:
                found.ended = kind in ("over", "closing")
                if kind != "head" or text[found.at : tag.start()].strip():
                    return found
                found.open, found.strays = tag, False
                given.add(self._key(tag))
            elif kind == "head":
                key = "" if known is None or inner else self._key(tag)
                if not key or known is None or (key not in given and (not known or key in known)):
                    inner.append(False)
            elif kind == "opening":
                inner.append(True)
            elif kind in ("last", "value_end"):
                while kind == "last" and inner and inner[-1]:
                    inner.pop()  # the opening tag of a call within a value, which has no closing tag
                if kind == "last" and not inner:
                    found.given.append(Argument(self._key(found.open), found.open.end(), tag.start()))
                    found.open, found.at = None, tag.end()
                elif inner and not inner[-1] and (kind == "last" or inner[-2:-1] != [True]):
                    inner.pop()
            elif inner and inner[-1]:
                inner.pop()
            elif kind == "over":
                while inner and not inner[-1]:
                    inner.pop()  # a value without a closing tag, in a call within the value
                if not inner:
                    return found
                inner.pop()
            else:
                found.strays = True
        found.complete = True
        return found

    def skip_values(self, text: str, begin: int, closing: str) -> int:
        """The position before which no closing tag ends the body; see `SkipValues`.

        If the text ends within a value, this is the end of the text.
        """
        start = self._begin.match(text, begin)
        if start is None:
            return begin
        found = self._walk(text, start.end())
        if found.open is not None:
            return len(text) if found.complete and not found.strays else begin
        return found.at if found.ended and found.given else begin


def pythonic(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    """Parse calls as Python: `f(key="value")`, either one call or a list of calls."""
    try:
        found = values.tree(raw)
    except ValueError as error:
        return [malformed(raw, str(error), tags)]
    nodes = found[0].elts if len(found) == 1 and isinstance(found[0], ast.List | ast.Tuple) else found
    if not nodes or len(nodes) > MAX_CALLS:
        return [malformed(raw, f"{STRUCTURE}: no call, or more than {MAX_CALLS}", tags)]
    if len(nodes) == 1:
        return [_of_node(nodes[0], raw, tags)]
    texts = values.written(raw, nodes)
    return [_of_node(node, text, ("", "")) for node, text in zip(nodes, texts, strict=True)]


def _of_node(node: ast.expr, raw: str, tags: Tags) -> Call:
    if not isinstance(node, ast.Call):
        return malformed(raw, f"{STRUCTURE}: no call", tags)
    if node.args or not all(given.arg for given in node.keywords):
        return malformed(raw, f"{STRUCTURE}: an argument has no name", tags)
    try:
        arguments = once([(str(given.arg), values.literal(given.value)) for given in node.keywords])
    except DuplicateNameError as error:
        return called(raw, _dotted(node.func), {}, str(error), tags)
    except UNREADABLE as error:
        return malformed(raw, f"arguments are not values: {error}", tags)
    return called(raw, _dotted(node.func), arguments, None, tags)


def _dotted(node: ast.expr) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def gemma_call(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    """Parse a call in Gemma 4's notation: `call:NAME{key:value}`."""
    head, brace, rest = raw.strip().partition("{")
    if not brace or not rest.endswith("}"):
        return [malformed(raw, f"{STRUCTURE}: arguments have no braces", tags)]
    name = head.removeprefix("call:").strip()
    if not name:
        return [malformed(raw, NO_NAME, tags)]
    try:
        arguments = values.gemma(rest[:-1])
    except DuplicateNameError as error:
        return [called(raw, name, {}, str(error), tags)]
    except UNREADABLE as error:
        return [malformed(raw, f"arguments cannot be read: {error}", tags)]
    return [called(raw, name, arguments, None, tags)]
