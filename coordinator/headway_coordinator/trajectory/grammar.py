"""How families write tool calls, as grammars: tags, and what stands between them. Text in, calls out.

A grammar goes through its text from tag to tag and looks back nowhere: a megabyte takes some 0.2 s, whatever
a model wrote. The `renderers` package searches for a closing tag from each opening one anew: its reader of
Qwen 3.5 takes 7 s for 56 kB of `<parameter=a>`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from headway_coordinator.trajectory import values
from headway_coordinator.trajectory.calls import NO_NAME, STRUCTURE, UNCLOSED, Call, called, malformed
from headway_coordinator.trajectory.values import Schemas

Tags = tuple[str, str]
Body = Callable[[str, Tags, Schemas], list[Call]]
"""What stands between two tags -> the calls in it."""
TOOL: Final = "\0"
"""Stands for a tool's name where a call is begun for the model."""
CALL_ID, ARGS = "[CALL_ID]", "[ARGS]"
"""Of Mistral's templates: a call's id, which nobody needs, and its arguments."""
MOST_CALLS: Final = 128
"""Calls of one turn that are told apart; what follows them is one that is malformed."""


class Grammar(Protocol):
    """One family's way to write calls."""

    name: str
    marks: tuple[str, ...]
    """A template writes one of these where it calls a tool in this way."""
    any_tool: str | None
    """A turn begins with this that calls some tool; None: such a turn cannot be begun for the model."""
    named: str | None
    """And with this, one that calls the tool for which `TOOL` stands."""

    def read(self, text: str, tools: Schemas) -> tuple[str, list[Call]]:
        """The text around the calls, and the calls."""


@dataclass(frozen=True)
class Blocks:
    """Calls between an opening and a closing tag, as many blocks as there are."""

    name: str
    opening: str
    closing: str
    body: Body
    any_tool: str | None = None
    named: str | None = None
    open_ended: bool = False
    """The end of the turn, or the next opening tag, closes a block too."""

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opening,)

    def read(self, text: str, tools: Schemas) -> tuple[str, list[Call]]:
        around: list[str] = []
        calls: list[Call] = []
        at = 0
        while (start := text.find(self.opening, at)) >= 0:
            around.append(text[at:start])
            begin = start + len(self.opening)
            end, after, closed = self._end(text, begin)
            tags = (self.opening, self.closing if closed else "")
            if len(calls) >= MOST_CALLS:
                calls.append(malformed(text[begin:], f"{STRUCTURE}: more than {MOST_CALLS} calls", tags))
                return "".join(around), calls
            if closed or self.open_ended:
                calls += self.body(text[begin:end], tags, tools)
            else:
                calls.append(malformed(text[begin:end], UNCLOSED, tags))
            at = after
        around.append(text[at:])
        return "".join(around), calls

    def _end(self, text: str, begin: int) -> tuple[int, int, bool]:
        """Where a block's body ends, where the text goes on, and whether a tag closed it."""
        end = text.find(self.closing, begin) if self.closing else -1
        if end >= 0:
            return end, end + len(self.closing), True
        if not self.open_ended:
            return len(text), len(text), False
        following = text.find(self.opening, begin)
        end = len(text) if following < 0 else following
        return end, end, False


def json_calls(name: str = "name", arguments: tuple[str, ...] = ("arguments", "parameters")) -> Body:
    """Calls as JSON: one object, or a list of them."""

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        try:
            found = json.loads(raw.strip())
        except (ValueError, RecursionError) as error:
            return [malformed(raw, error, tags)]
        if not isinstance(found, list):
            return [_of_object(found, raw, tags)]
        if len(found) > MOST_CALLS:
            return [malformed(raw, f"{STRUCTURE}: more than {MOST_CALLS} calls", tags)]
        # Of a list that can be read, each call is written again: its own text has no place of its own.
        parts = [raw if len(found) == 1 else json.dumps(one, ensure_ascii=False) for one in found]
        return [
            _of_object(one, part, tags if len(found) == 1 else ("", ""))
            for one, part in zip(found, parts, strict=True)
        ]

    def _of_object(found: object, raw: str, tags: Tags) -> Call:
        if not isinstance(found, dict):
            return malformed(raw, f"{STRUCTURE}: a call is no object", tags)
        if not found.get(name):
            return malformed(raw, NO_NAME, tags)
        given = next((found[key] for key in arguments if key in found), {})
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError) as error:
                return malformed(raw, error, tags)
        return called(raw, found[name], given, None, tags)

    return read


def named_json(separators: tuple[str, ...], *, fence: bool = False, prefix: str = "", cut: str = "") -> Body:
    """A call as a name, one of `separators`, and JSON.

    Args:
        separators: what ends the name; the first that is found.
        fence: the JSON stands between ```json and ```, below a line with the name.
        prefix: what stands before the name.
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
            given = json.loads(rest.strip() or "{}")
        except (ValueError, RecursionError) as error:
            return [malformed(raw, error, tags)]
        return [called(raw, name, given, None, tags)]

    return read


def inner(opening: str, closing: str, body: Body) -> Body:
    """Calls that are tagged once more within a section."""
    blocks = Blocks("", opening, closing, body)

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        _, calls = blocks.read(raw, tools)
        return calls or [malformed(raw, f"{STRUCTURE}: a section without a call", tags)]

    return read


@dataclass(frozen=True)
class Xml:
    """A call as elements: the tool's name in the head of one, each argument in one of its own."""

    call: str
    end: str
    parameter: str
    parameter_end: str
    trims: bool = False
    """A value stands on lines of its own."""

    def __call__(self, raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        calls = list(self._calls(raw, tags, tools))
        return calls or [malformed(raw, f"{STRUCTURE}: no call begins", tags)]

    def _calls(self, raw: str, tags: Tags, tools: Schemas) -> Iterator[Call]:
        at = 0
        for _ in range(MOST_CALLS):
            start = raw.find(self.call, at)
            if start < 0:
                return
            found, at = self._call(raw, start, tools)
            whole = raw.find(self.call, at) < 0 and raw[:start].strip() == ""
            yield Call(
                raw if whole else found.raw,
                found.name,
                found.arguments,
                found.problem,
                tags if whole else ("", ""),
            )

    def _call(self, raw: str, start: int, tools: Schemas) -> tuple[Call, int]:
        head = raw.find(">", start)
        if head < 0:
            return malformed(raw[start:], UNCLOSED), len(raw)
        name = _head(raw[start + len(self.call) : head])[0]
        arguments: dict[str, object] = {}
        at, given = head + 1, tools.get(name, {})
        end = raw.find(self.end, at)
        while True:
            begin = raw.find(self.parameter, at)
            if 0 <= end < at:
                end = raw.find(self.end, at)
            if end >= 0 and (begin < 0 or end < begin):
                after = end + len(self.end)
                problem = None if name else NO_NAME
                return called(raw[start:after], name or None, arguments, problem), after
            close = raw.find(">", begin) if begin >= 0 else -1
            stop = raw.find(self.parameter_end, close) if close >= 0 else -1
            if stop < 0:
                return malformed(raw[start:], UNCLOSED), len(raw)
            key, is_text = _head(raw[begin + len(self.parameter) : close])
            text = _unframed(raw[close + 1 : stop]) if self.trims else raw[close + 1 : stop]
            schema = {"type": "string"} if is_text else given.get(key)
            arguments[key] = values.typed(text, schema)
            at = stop + len(self.parameter_end)


def _head(text: str) -> tuple[str, bool]:
    """Of an element's head: the name in it, and whether it says that its value is a string."""
    if '"' not in text:
        return text.strip(), False
    name, _, rest = text.partition('"')
    return name, 'string="true"' in rest


def _unframed(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


_PAIR = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_PAIRS = re.compile(f"({'|'.join(_PAIR)})")


def pairs(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    """A call as its name, and keys and values in tags: GLM's."""
    name, *rest = _PAIRS.split(raw)
    name = name.strip()
    if not name:
        return [malformed(raw, NO_NAME, tags)]
    arguments: dict[str, object] = {}
    for at in range(0, len(rest), len(_PAIR) * 2):
        pair = rest[at : at + len(_PAIR) * 2]
        if tuple(pair[::2]) != _PAIR:
            return [malformed(raw, f"{STRUCTURE}: a key without a value", tags)]
        key = pair[1].strip()
        arguments[key] = values.typed(pair[5], tools.get(name, {}).get(key))
    return [called(raw, name, arguments, None, tags)]


def pythonic(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    """Calls as Python: f(key="value"), one or a list of them."""
    try:
        found = values.tree(raw)
    except ValueError as error:
        return [malformed(raw, str(error), tags)]
    nodes = found[0].elts if len(found) == 1 and isinstance(found[0], ast.List | ast.Tuple) else found
    if not nodes or len(nodes) > MOST_CALLS:
        return [malformed(raw, f"{STRUCTURE}: no call, or more than {MOST_CALLS}", tags)]
    return [
        _of_node(node, raw if len(nodes) == 1 else ast.unparse(node), tags if len(nodes) == 1 else ("", ""))
        for node in nodes
    ]


def _of_node(node: ast.expr, raw: str, tags: Tags) -> Call:
    if not isinstance(node, ast.Call):
        return malformed(raw, f"{STRUCTURE}: no call", tags)
    if node.args or not all(given.arg for given in node.keywords):
        return malformed(raw, f"{STRUCTURE}: an argument has no name", tags)
    try:
        arguments = {str(given.arg): values.literal(given.value) for given in node.keywords}
    except (ValueError, RecursionError) as error:
        return malformed(raw, f"arguments are no values: {error}", tags)
    return called(raw, _dotted(node.func), arguments, None, tags)


def _dotted(node: ast.expr) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


@dataclass(frozen=True)
class Bare:
    """A turn that is nothing but calls in Python, `[f(key="value"), g()]`, perhaps between tags."""

    name: str
    tags: Tags = ("<|python_start|>", "<|python_end|>")
    marks: tuple[str, ...] = ("(",)
    any_tool: str | None = "["
    named: str | None = f"[{TOOL}("

    def read(self, text: str, tools: Schemas) -> tuple[str, list[Call]]:
        bare = text.strip()
        tagged = bare.startswith(self.tags[0])
        if tagged:
            bare = bare.removeprefix(self.tags[0]).removesuffix(self.tags[1]).strip()
        head = re.match(r"\[\s*([A-Za-z_][\w.]*)\s*\(", bare[:300])
        if head is None:
            return ("", [malformed(bare, f"{STRUCTURE}: no call", self.tags)]) if tagged else (text, [])
        calls = pythonic(bare, ("", ""), tools)
        if any(call.problem for call in calls) and head[1] not in tools and not tagged:
            return text, []
        return "", calls


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
    except (ValueError, RecursionError) as error:
        return [malformed(raw, f"arguments cannot be read: {error}", tags)]
    return [called(raw, name, arguments, None, tags)]
