"""The families' notations for tool calls, as grammars: tags, and the text between them. Text in, calls out.

A grammar goes through its text from tag to tag and never back: a megabyte takes some 0.2 s, whatever a model
wrote. The `renderers` package searches for a closing tag from each opening one again. Its reader of Qwen 3.5
takes 7 s for 56 kB of `<parameter=a>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from headway_coordinator.trajectory import values
from headway_coordinator.trajectory.calls import (
    NO_NAME,
    STRUCTURE,
    UNCLOSED,
    UNREADABLE,
    Call,
    called,
    malformed,
)
from headway_coordinator.trajectory.notations import MAX_CALLS, Body, Tags, json_calls, pythonic
from headway_coordinator.trajectory.values import Schemas

TOOL: Final = "\0"
"""A placeholder for the tool's name, if a call is begun for the model."""


class Grammar(Protocol):
    """One family's notation for calls."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts of which a template writes at least one if it calls a tool in this notation."""

    @property
    def any_tool(self) -> str | None:
        """The beginning of a turn that calls some tool. None: such a turn cannot be begun for the model."""

    @property
    def named(self) -> str | None:
        """The beginning of a turn that calls one tool, with `TOOL` as the placeholder of its name."""

    def read(self, text: str, tools: Schemas) -> tuple[str, list[Call]]:
        """The text around the calls, and the calls."""


@dataclass(frozen=True)
class Blocks:
    """Calls in any number of blocks, each between an opening and a closing tag."""

    name: str
    opening: str
    closing: str
    body: Body
    any_tool: str | None = None
    named: str | None = None
    open_ended: bool = False
    """Whether the end of the turn, or the next opening tag, also closes a block."""
    bare: re.Pattern[str] | None = None
    """Begins a call without its opening tag, which models sometimes omit."""
    follows: str = ""
    """The body's first characters, if the opening tag alone may be a word of a text."""
    frames: tuple[str, ...] = ()
    """Tags around an answer that do not belong to it."""

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opening,)

    def read(self, text: str, tools: Schemas) -> tuple[str, list[Call]]:
        around: list[str] = []
        calls: list[Call] = []
        at = 0
        while (start := self._start(text, at))[0] >= 0:
            around.append(text[at : start[0]])
            begin = start[1]
            end, after, closed = self._end(text, begin)
            tags = (text[start[0] : begin], self.closing if closed else "")
            if len(calls) >= MAX_CALLS:
                calls.append(malformed(text[begin:], f"{STRUCTURE}: more than {MAX_CALLS} calls", tags))
                return "".join(around), calls
            if closed or self.open_ended:
                calls += self.body(text[begin:end], tags, tools)
            else:
                calls.append(malformed(text[begin:end], UNCLOSED, tags))
            at = after
        around.append(text[at:])
        return "".join(around), calls

    def _start(self, text: str, at: int) -> tuple[int, int]:
        """The starts of the next block and of its body; -1 if there is none."""
        start = text.find(self.opening + self.follows, at)
        found = None if self.bare is None else self.bare.search(text, at, start if start >= 0 else len(text))
        if found is not None:
            return found.start(), found.start()
        return start, start + len(self.opening)

    def _end(self, text: str, begin: int) -> tuple[int, int, bool]:
        """The end of a block's body, the place where the text goes on, and whether a tag closed the block."""
        end = text.find(self.closing, begin) if self.closing else -1
        if end >= 0:
            return end, end + len(self.closing), True
        if not self.open_ended:
            return len(text), len(text), False
        following = text.find(self.opening + self.follows, begin)
        end = len(text) if following < 0 else following
        return end, end, False


def inner(opening: str, closing: str, body: Body) -> Body:
    """Calls with tags of their own within a section."""
    blocks = Blocks("", opening, closing, body)

    def read(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        _, calls = blocks.read(raw, tools)
        return calls or [malformed(raw, f"{STRUCTURE}: a section without a call", tags)]

    return read


@dataclass(frozen=True)
class Xml:
    """A call as an element with the tool's name in its head. Each argument is an element within it."""

    call: str
    end: str
    parameter: str
    parameter_end: str
    trims: bool = False
    """Whether values are on lines of their own."""

    def __call__(self, raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        calls = list(self._calls(raw, tags, tools))
        return calls or [malformed(raw, f"{STRUCTURE}: no call begins", tags)]

    def _calls(self, raw: str, tags: Tags, tools: Schemas) -> Iterator[Call]:
        at = 0
        for _ in range(MAX_CALLS):
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
            stop, after = self._value_end(raw, close + 1) if close >= 0 else (-1, -1)
            if stop < 0:
                return malformed(raw[start:], UNCLOSED), len(raw)
            key, is_text = _head(raw[begin + len(self.parameter) : close])
            text = _unframed(raw[close + 1 : stop]) if self.trims else raw[close + 1 : stop]
            schema = {"type": "string"} if is_text else given.get(key)
            arguments[key] = values.typed(text, schema)
            at = after

    def _value_end(self, raw: str, begin: int) -> tuple[int, int]:
        """The end of a value, and the place where the call goes on.

        A value on lines of its own ends at a line that begins with a tag. A tag within a line belongs to the
        value. If a model forgot the closing tag, the next tag ends the value. The end of the call belongs to
        the value if the value's closing tag follows it.
        """
        if not self.trims or not raw.startswith("\n", begin):
            stop = raw.find(self.parameter_end, begin)
            return stop, stop + len(self.parameter_end)
        tags = (self.parameter_end, self.parameter, self.end)
        found = [(place, tag) for tag in tags if (place := raw.find(f"\n{tag}", begin)) >= 0]
        if not found:
            return -1, -1
        line, tag = min(found)
        if tag == self.end and self._is_text(raw, line, found):
            line, tag = next(one for one in found if one[1] == self.parameter_end)
        return line + 1, line + 1 + (len(tag) if tag == self.parameter_end else 0)

    def _is_text(self, raw: str, line: int, found: list[tuple[int, str]]) -> bool:
        """Whether the end of a call at `line` belongs to a value, because the value's own end follows it."""
        end = next((place for place, tag in found if tag == self.parameter_end), -1)
        return end >= 0 and all(raw.find(tag, line, end) < 0 for tag in (self.parameter, self.call))


def _head(text: str) -> tuple[str, bool]:
    """The name in an element's head, and whether the head marks the value as a string."""
    if '"' not in text:
        return text.strip(), False
    name, _, rest = text.partition('"')
    return name, 'string="true"' in rest


def _unframed(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


@dataclass(frozen=True)
class Bare:
    """A turn with only calls in Python, `[f(key="value"), g()]`, perhaps between tags."""

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


@dataclass(frozen=True)
class Objects:
    """A turn that ends in calls as JSON, one object after the other.

    Text between tags may come first. The same models also write calls in Python.
    """

    name: str
    any_tool: str | None
    named: str | None
    tags: Tags = ("<|python_start|>", "<|python_end|>")

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.tags[1],)

    def read(self, text: str, tools: Schemas) -> tuple[str, list[Call]]:
        before, tagged, rest = text.partition(self.tags[0])
        if not tagged:
            before, rest = "", text
        inside, closed, behind = rest.partition(self.tags[1]) if tagged else ("", "", rest)
        if tagged and not closed:
            inside, behind = "", inside
        content, bare = before + inside, behind.strip()
        if closed and _HEAD.match(inside.strip()[:MAX_HEAD]) and not bare:
            content, bare = before, inside.strip()
        if _HEAD.match(bare[:MAX_HEAD]) is None:
            _, in_python = _PYTHON.read(inside + behind, tools)
            if in_python:
                return before, in_python
            return (content + behind, []) if closed else (text, [])
        calls: list[Call] = []
        while bare and len(calls) < MAX_CALLS:
            try:
                _, end = _DECODER.raw_decode(bare)
            except UNREADABLE as error:
                return content, [*calls, malformed(bare, error)]
            calls += _OBJECT(bare[:end], ("", ""), tools)
            bare = bare[end:].lstrip("\n\r\t ;,")
        if bare:
            calls.append(malformed(bare, f"{STRUCTURE}: more than {MAX_CALLS} calls"))
        meant = closed or any(call.name in tools for call in calls) or '"parameters"' in behind[:MAX_HEAD]
        return (content, calls) if meant else (text, [])


@dataclass(frozen=True)
class FirstOf:
    """A family with several notations: the first one that finds calls counts. Templates write the first."""

    name: str
    grammars: tuple[Grammar, ...]

    @property
    def marks(self) -> tuple[str, ...]:
        return self.grammars[0].marks

    @property
    def any_tool(self) -> str | None:
        return self.grammars[0].any_tool

    @property
    def named(self) -> str | None:
        return self.grammars[0].named

    def read(self, text: str, tools: Schemas) -> tuple[str, list[Call]]:
        for grammar in self.grammars:
            content, calls = grammar.read(text, tools)
            if calls:
                return content, calls
        return text, []


_PYTHON = Bare("pythonic")
_HEAD = re.compile(r'\{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:')
_DECODER, _OBJECT = json.JSONDecoder(), json_calls(arguments=("parameters", "arguments"))
MAX_HEAD: Final = 4096
"""The most characters of an object that are searched for the mark of a call."""
