"""The families' notations between a call's tags: JSON, names before it, keys and values, Python, Gemma's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headway_coordinator.trajectory import values
from headway_coordinator.trajectory.calls import NO_NAME, STRUCTURE, UNREADABLE, Call, called, malformed
from headway_coordinator.trajectory.values import Schemas

Tags = tuple[str, str]
Body = Callable[[str, Tags, Schemas], list[Call]]
"""The text between two tags -> the calls in it."""
Past = Callable[[str, int, str], int]
"""Text, the place where a body begins, and its closing tag -> the place before which no tag ends the body.

That is the same place if the notation does not show it.
"""
CALL_ID, ARGS = "[CALL_ID]", "[ARGS]"
"""In Mistral's templates: a call's id, which nothing needs, and its arguments."""
MAX_CALLS: Final = 128
"""The most calls of one turn that are read separately. The rest is one malformed call."""


_BLANK, _DECODER = re.compile(r"\s*"), json.JSONDecoder()


def blank(text: str, at: int) -> int:
    """The place of the next character that is not blank."""
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def may_call(text: str) -> bool:
    """Whether text beside a call may be part of another. Words are not."""
    return "{" in text or "<" in text


def past_json(text: str, begin: int, closing: str) -> int:
    """See `Past`: of a body that begins with JSON."""
    try:
        return _DECODER.raw_decode(text, blank(text, begin))[1]
    except UNREADABLE:
        return begin


def past_object(text: str, begin: int, closing: str) -> int:
    """See `Past`: of a body with an object of JSON behind a name."""
    start = text.find("{", begin)
    end = past_json(text, start, closing) if start >= 0 else start
    return end if end > start else begin


_STRING: Final = re.compile(r"""\"(?:[^"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'""", re.DOTALL)


def past_python(text: str, begin: int, closing: str) -> int:
    """See `Past`: of a body in Python, whose strings are on one line each."""
    at, end = begin, text.find(closing, begin)
    while (found := _STRING.search(text, at)) is not None and found.start() < end:
        at = found.end()
        end = text.find(closing, at) if at > end else end
    return at


def past_quoted(text: str, begin: int, closing: str) -> int:
    """See `Past`: of a body whose strings are between Gemma's marks."""
    at, end = begin, text.find(closing, begin)
    while 0 <= (start := text.find(values.QUOTE, at)) < end:
        stop = text.find(values.QUOTE, start + len(values.QUOTE))
        if stop < 0:
            return at
        at = stop + len(values.QUOTE)
        end = text.find(closing, at) if at > end else end
    return at


def json_calls(name: str = "name", arguments: tuple[str, ...] = ("arguments", "parameters")) -> Body:
    """Calls as JSON: one object, or a list of them."""

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        try:
            found = json.loads(raw.strip())
        except UNREADABLE as error:
            return [malformed(raw, error, tags)]
        if not isinstance(found, list):
            return [_of_object(found, raw, tags)]
        if not found or len(found) > MAX_CALLS:
            return [malformed(raw, f"{STRUCTURE}: no call, or more than {MAX_CALLS}", tags)]
        try:
            # Each call of a readable list is written again, because it has no separate text of its own.
            parts = [raw if len(found) == 1 else json.dumps(one, ensure_ascii=False) for one in found]
        except UNREADABLE as error:
            return [malformed(raw, error, tags)]
        return [
            _of_object(one, part, tags if len(found) == 1 else ("", ""))
            for one, part in zip(found, parts, strict=True)
        ]

    def _of_object(found: object, raw: str, tags: Tags) -> Call:
        if not isinstance(found, dict):
            return malformed(raw, f"{STRUCTURE}: a call is no object", tags)
        if not found.get(name):
            return malformed(raw, NO_NAME, tags)
        given: object = next((found[key] for key in arguments if key in found), {})
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except UNREADABLE as error:
                return malformed(raw, error, tags)
        return called(raw, found[name], given, None, tags)

    return read


def named_json(separators: tuple[str, ...], *, fence: bool = False, prefix: str = "", cut: str = "") -> Body:
    """A call as a name, one of `separators`, and JSON.

    Args:
        separators: strings that end the name; the first one in the text counts.
        fence: the JSON is between ```json and ```, below a line with the name.
        prefix: the text before the name.
        cut: the name ends before the last of these, which begins a number.
    """

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        places = [(place, mark) for mark in separators if (place := raw.find(mark)) >= 0]
        if not places:
            return [malformed(raw, f"{STRUCTURE}: nothing ends the name", tags)]
        place, mark = min(places)
        name, rest = raw[:place], raw[place + (0 if mark == "{" else len(mark)) :]
        if mark == CALL_ID:
            rest = rest.partition(ARGS)[2]
        if fence:
            name, _, rest = rest.partition("\n")
            rest = rest.strip().removeprefix("```json").removesuffix("```")
        name = name.strip().removeprefix(prefix)
        if cut and cut in name:
            name = name.rpartition(cut)[0]
        if not name:
            return [malformed(raw, NO_NAME, tags)]
        try:
            given = json.loads(rest.strip())
        except UNREADABLE as error:
            return [malformed(raw, error, tags)]
        return [called(raw, name, given, None, tags)]

    return read


def without(tag: str, body: Body) -> Body:
    """Calls in text that may begin with a tag."""

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        if not raw.startswith(tag):
            return body(raw, tags, tools)
        return body(raw.removeprefix(tag), (tag, tags[1]), tools)

    return read


@dataclass(frozen=True)
class Pairs:
    """A call as its name, with keys and values in tags: GLM's and Hy3's."""

    key: str = "<arg_key>"
    key_end: str = "</arg_key>"
    value: str = "<arg_value>"
    value_end: str = "</arg_value>"
    opening: str = "<tool_call>"
    separator: str = ""
    """Ends the name; empty: the first key, or the end of the call, does."""

    def __call__(self, raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        begin = raw.find(self.separator or self.key)
        name = (raw if begin < 0 else raw[:begin]).strip()
        if not name:
            return [malformed(raw, NO_NAME, tags)]
        arguments: dict[str, object] = {}
        at = len(raw) if begin < 0 else begin + len(self.separator)
        while (at := blank(raw, at)) < len(raw):
            key_end = raw.find(self.key_end, at) if raw.startswith(self.key, at) else -1
            value = blank(raw, key_end + len(self.key_end))
            end = (
                self._end(raw, value + len(self.value))
                if key_end >= 0 and raw.startswith(self.value, value)
                else -1
            )
            if end < 0:
                return [malformed(raw, f"{STRUCTURE}: a key without a value", tags)]
            key = raw[at + len(self.key) : key_end].strip()
            text = raw[value + len(self.value) : end]
            arguments[key] = values.typed(text, tools.get(name, {}).get(key))
            at = end + len(self.value_end)
        return [called(raw, name, arguments, None, tags)]

    def _end(self, raw: str, at: int) -> int:
        """Where a value ends: at a tag that another key, or the end of the call, follows; -1: nowhere."""
        first = end = raw.find(self.value_end, at)
        while end >= 0:
            following = blank(raw, end + len(self.value_end))
            if following == len(raw) or raw.startswith(self.key, following):
                return end
            end = raw.find(self.value_end, end + 1)
        return first

    def past(self, text: str, begin: int, closing: str) -> int:
        """See `Past`: the last value ends before the closing tag, and no other call begins before."""
        ends = re.compile(rf"{re.escape(self.value_end)}(?=\s*{re.escape(closing)})")
        found = ends.search(text, begin)
        if found is None or re.search(
            rf"{re.escape(closing)}\s*{re.escape(self.opening)}", text[begin : found.end()]
        ):
            return begin
        return found.end()


def pythonic(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    """Calls as Python: f(key="value"), one or a list of them."""
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
        arguments = {str(given.arg): values.literal(given.value) for given in node.keywords}
    except UNREADABLE as error:
        return malformed(raw, f"arguments are no values: {error}", tags)
    return called(raw, _dotted(node.func), arguments, None, tags)


def _dotted(node: ast.expr) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def gemma_call(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    """Gemma 4's call:NAME{key:value}."""
    head, brace, rest = raw.strip().partition("{")
    if not brace or not rest.endswith("}"):
        return [malformed(raw, f"{STRUCTURE}: arguments have no braces", tags)]
    name = head.removeprefix("call:").strip()
    if not name:
        return [malformed(raw, NO_NAME, tags)]
    try:
        arguments = values.gemma(rest[:-1])
    except UNREADABLE as error:
        return [malformed(raw, f"arguments cannot be read: {error}", tags)]
    return [called(raw, name, arguments, None, tags)]
