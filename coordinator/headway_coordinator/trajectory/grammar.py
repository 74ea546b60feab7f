"""The families' notations for tool calls, as grammars: tags, and parsers for the text between them.

A grammar reads its text from tag to tag and never goes back. So a megabyte takes some 0.5 s, whatever a model
wrote. The parsers of the `renderers` package search for a closing tag again from each opening tag. Its parser
for Qwen 3.5 takes 7 s for 56 kB of `<parameter=a>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from headway_coordinator.trajectory.calls import (
    CUT,
    STRUCTURE,
    UNCLOSED,
    UNREADABLE,
    Call,
    malformed,
    refused,
)
from headway_coordinator.trajectory.notations import (
    MAX_CALLS,
    Body,
    SkipValues,
    Tags,
    blank,
    json_calls,
    may_call,
    pythonic,
    skip_object,
)
from headway_coordinator.trajectory.unmarked import embedded
from headway_coordinator.trajectory.values import Schemas

TOOL: Final = "\0"
"""A placeholder for the tool's name in the beginning of a forced call."""
MAX_REREADS: Final = 4
"""The most doubtful blocks of a turn that are parsed again, with the tags in their values as text."""


class Grammar(Protocol):
    """One family's notation for calls."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that identify the notation: a template that uses it writes at least one of them."""

    @property
    def any_tool(self) -> str | None:
        """The beginning of a turn that calls any tool. None: a call cannot be forced in this notation."""

    @property
    def named(self) -> str | None:
        """The beginning of a turn that calls a named tool, with `TOOL` as the placeholder of the name."""

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
    skip_values: SkipValues | None = None
    """Skips the values of a body, for a block that seems to end at a closing tag within a value."""
    ends: re.Pattern[str] | None = None
    """Finds the tags of values and calls. Its groups are named by `elements.Tag.kind`."""
    bare: re.Pattern[str] | None = None
    """Finds the beginning of a call without the opening tag, which models sometimes omit."""
    stray: re.Pattern[str] | None = None
    """Finds parts of a call outside of all blocks. If the group `whole` matches, the call begins before the
    match."""
    follows: str = ""
    """The first characters of every body, for a notation whose opening tag may also be a word of a text."""
    frames: tuple[str, ...] = ()
    """Tags that a template puts around an answer's text. They are removed from the content."""

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opening,)

    def read(self, text: str, tools: Schemas) -> tuple[str, list[Call]]:
        around: list[str] = []
        calls: list[Call] = []
        at, again = 0, MAX_REREADS
        start, begin = self._start(text, 0)
        while start >= 0:
            self._outside(text[at:start], around, calls)
            if len(calls) >= MAX_CALLS:
                if self._ends_nothing(text, begin, len(text), calls=True):
                    calls[:] = [refused(one, CUT) for one in calls]
                more = f"{STRUCTURE}: more than {MAX_CALLS} calls"
                calls.append(malformed(text[begin:], more, (text[start:begin], "")))
                return "".join(around), calls
            bare = begin
            if start == begin and self.skip_values is not None and again:
                bare = self.skip_values(text, begin, self.closing)
                again -= bare == begin
            found, end, at = self._block(text, start, begin, begin, tools, bare)
            following = self._start(text, at)
            if self.skip_values is not None and again and self._doubtful(text, found, at, following[0]):
                again -= 1
                values_end = self.skip_values(text, begin, self.closing)
                if values_end > end:
                    found, end, at = self._block(text, start, begin, values_end, tools)
                    following = self._start(text, at)
            if self._is_rest_of_value(text, begin, end, found):
                calls[:] = [refused(one, CUT) for one in calls]
            calls += found
            start, begin = following
        self._outside(text[at:], around, calls)
        return "".join(around), calls

    def _doubtful(self, text: str, found: list[Call], at: int, following: int) -> bool:
        """Whether a block may have been cut off within a value.

        It may if the block is malformed, or if an unpaired closing tag follows it.
        """
        stop = len(text) if following < 0 else following
        return any(one.problem for one in found) or self._ends_nothing(text, at, stop)

    def _ends_nothing(self, text: str, begin: int, stop: int, *, calls: bool = False) -> bool:
        """Whether a part of the text has an unpaired closing tag, of a value or a call that begins earlier.

        Opening tags in the part only count with `calls`, for a part that may contain whole calls.
        """
        depth = 0
        for tag in () if self.ends is None else self.ends.finditer(text, begin, stop):
            depth += -1 if tag.lastgroup in ("end", "parameter_end") else calls
            if depth < 0:
                return True
        return False

    def _is_rest_of_value(self, text: str, begin: int, stop: int, found: list[Call]) -> bool:
        """Whether a block seems to be the rest of an earlier value, because it has an unpaired closing tag.

        Args:
            text: the whole text.
            begin: the start of the block's body.
            stop: the end of the body.
            found: the calls in the block.
        """
        value = call = False
        for tag in () if self.ends is None else self.ends.finditer(text, begin, stop):
            if tag.lastgroup == "parameter_end" and not value:
                return True
            if tag.lastgroup == "end" and not call:
                return True
            if not any(one.problem for one in found):
                return False
            value = tag.lastgroup == "parameter" or (value and tag.lastgroup == "parameter_end")
            call = call or tag.lastgroup in ("call", "end")
        return False

    def _block(
        self, text: str, start: int, begin: int, inside: int, tools: Schemas, bare: int = 0
    ) -> tuple[list[Call], int, int]:
        """The calls of a block, the end of its body, and the position after the block.

        Args:
            text: the whole text.
            start: the start of the block.
            begin: the start of its body.
            inside: the position before which no closing tag ends the body.
            tools: the tools that may be called.
            bare: the position after a call without an opening tag, if it is known.
        """
        end, after, closed = self._end(text, begin, inside, bare)
        tags = (text[start:begin], self.closing if after > end else "")
        if closed:
            return self.body(text[begin:end], tags, tools), end, after
        return [malformed(text[begin:end], UNCLOSED, tags)], end, after

    def _start(self, text: str, at: int) -> tuple[int, int]:
        """The start of the next block, and of its body. The first is -1 if there is no further block."""
        start = text.find(self.opening + self.follows, at)
        found = None if self.bare is None else self.bare.search(text, at, start if start >= 0 else len(text))
        if found is not None:
            return found.start(), found.start()
        return start, start + len(self.opening)

    def _end(self, text: str, begin: int, inside: int, bare: int) -> tuple[int, int, bool]:
        """The end of a block's body, the position after the block, and whether anything closed the block.

        A call without an opening tag needs no closing tag either.
        """
        if bare > begin:
            end = text.find(self.closing, bare)
            if end < 0 or text[bare:end].strip():
                return bare, bare, True
        end = text.find(self.closing, inside) if self.closing else -1
        if end >= 0:
            return end, end + len(self.closing), True
        if not self.open_ended:
            return len(text), len(text), False
        following = text.find(self.opening + self.follows, inside)
        end = len(text) if following < 0 else following
        return end, end, True

    def _outside(self, text: str, around: list[str], calls: list[Call]) -> None:
        """Add text between blocks to `around`, and each part of a call in it to `calls`, as malformed.

        An unpaired closing tag in the text may end a value of any earlier call. So none of the earlier calls
        is carried out.
        """
        if calls and self._ends_nothing(text, 0, len(text)):
            calls[:] = [refused(one, CUT) for one in calls]
        found = [] if self.stray is None else list(self._strays(text))
        starts = [one.start() for one in found if one.lastgroup != "whole"]
        if found and found[0].lastgroup == "whole":
            starts[:0] = [0]
        around.append(text[: starts[0]] if starts else text)
        if len(starts) > MAX_CALLS:
            starts = starts[:1]
        problem = f"{STRUCTURE}: {self.opening} is missing"
        calls += [malformed(text[start:end], problem) for start, end in pairwise([*starts, len(text)])]

    def _strays(self, text: str) -> Iterator[re.Match[str]]:
        """Parts of a call in text between blocks. A closing tag with no text before it does not count."""
        assert self.stray is not None
        first = blank(text, 0)
        return (one for one in self.stray.finditer(text) if one.lastgroup != "whole" or one.start() > first)


@dataclass(frozen=True)
class Inner:
    """Calls in a section. Each call has an opening and a closing tag of its own."""

    opening: str
    closing: str
    body: Body
    after: SkipValues = skip_object
    """Skips the values of one call; as `Blocks.skip_values`."""
    ends: re.Pattern[str] | None = None
    """As `Blocks.ends`."""

    def __call__(self, raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        blocks = Blocks("", self.opening, self.closing, self.body, skip_values=self.after, ends=self.ends)
        around, calls = blocks.read(raw, tools)
        if not calls:
            return [malformed(raw, f"{STRUCTURE}: a section without a call", tags)]
        if may_call(around):
            calls.append(malformed(around.strip(), f"{STRUCTURE}: part of a call beside a call"))
        return calls

    def skip_values(self, text: str, begin: int, closing: str) -> int:
        """The position after the calls at the beginning of a section's body; see `notations.SkipValues`."""
        at = begin
        while text.startswith(self.opening, start := blank(text, at)):
            values_end = self.after(text, start + len(self.opening), self.closing)
            end = text.find(self.closing, values_end)
            if end < 0:
                return values_end if values_end == len(text) else at
            at = end + len(self.closing)
        return at


@dataclass(frozen=True)
class Bare:
    """Calls in Python, `[f(key="value"), g()]`, perhaps between tags.

    Without tags, text may be around the list if the list names an offered tool.
    """

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
        if not tagged and (head is None or head[1] in tools):
            return embedded(text, tools, objects=False)
        if head is None:
            return "", [malformed(bare, f"{STRUCTURE}: no call", self.tags)]
        calls = pythonic(bare, ("", ""), tools)
        if any(call.problem for call in calls) and not tagged:
            return text, []
        return "", calls


@dataclass(frozen=True)
class Objects:
    """A turn that ends with calls as JSON objects, one after another.

    Text between the tags may come first. The same models also write calls in Python. Without the tags, text
    may be around the calls of offered tools.
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
            around, found = embedded(inside + behind, tools)
            if not found:
                around, found = _PYTHON.read(inside + behind, tools)
            if found:
                return before + around, found
            return (content + behind, []) if closed else (text, [])
        calls: list[Call] = []
        unread = False
        while bare and len(calls) < MAX_CALLS:
            try:
                _, end = _DECODER.raw_decode(bare)
            except UNREADABLE as error:
                unread = not calls
                if unread or may_call(bare):
                    calls.append(malformed(bare, error))
                else:
                    content += bare
                break
            calls += _OBJECT(bare[:end], ("", ""), tools)
            bare = bare[end:].lstrip("\n\r\t ;,")
        else:
            if bare:
                calls.append(malformed(bare, f"{STRUCTURE}: more than {MAX_CALLS} calls"))
        meant = (
            closed
            or unread
            or any(call.name in tools for call in calls)
            or '"parameters"' in behind[:MAX_HEAD]
        )
        return (content, calls) if meant else embedded(text, tools)


@dataclass(frozen=True)
class FirstOf:
    """A family with several notations. The first notation that finds calls in a turn is used.

    Templates write the first notation of the list.
    """

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
"""Number of characters at the beginning of an object in which signs of a call are searched."""
