"""Parses calls as XML-like elements: a call has the tool's name in its tag, and an element for each argument.

An argument's value may contain any text, even the tags of a call. So the nesting decides which tags are part
of a value: opening and closing tags are paired in one pass, like brackets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from headway_coordinator.trajectory import values
from headway_coordinator.trajectory.calls import (
    CUT,
    NO_NAME,
    NOT_JSON,
    STRUCTURE,
    UNCLOSED,
    Call,
    called,
    malformed,
    refused,
)
from headway_coordinator.trajectory.notations import MAX_CALLS, Tags, may_call
from headway_coordinator.trajectory.values import Schemas

MAX_HEAD: Final = 256
"""The most characters of a name with its attributes, in the opening tag of an element."""
LEAST_WINDOW: Final = 4096
"""Number of characters in which the end of a call is searched first. Later windows are larger."""


class Tag(NamedTuple):
    """One tag in a text."""

    kind: str
    """`call` and `parameter` are opening tags; `end` and `parameter_end` are their closing tags."""
    start: int
    end: int
    """The position after the tag."""
    lined: bool
    """Whether the tag is at the beginning of a line."""


@dataclass(frozen=True)
class Xml:
    """One family's tags, and the parser for them."""

    call: str
    end: str
    parameter: str
    parameter_end: str
    trims: bool = False
    """Whether line breaks separate a value from its tags. A tag within a line of such a value is text."""

    def __call__(self, raw: str, tags: Tags, tools: Schemas) -> list[Call]:
        found = self._calls(raw, tools)
        if not found:
            problem = UNCLOSED if self.call in raw else f"{STRUCTURE}: no call begins"
            return [malformed(raw, problem, tags)]
        if len(found) == 1:
            one = found[0]
            return [Call(raw, one.name, one.arguments, one.problem, tags)]
        return found

    def skip_values(self, text: str, begin: int, closing: str) -> int:
        """The position from which a closing tag ends the body; see `notations.SkipValues`.

        If the text ends within a value, this is the end of the text. The search looks no further than needed,
        because a text may have many calls.
        """
        size = LEAST_WINDOW
        while True:
            stop = min(len(text), begin + size)
            tags = self._tags(text, begin, stop)
            (pairs, open_), at, end = self._paired(text, tags), 0, begin
            while at < len(tags) and at in pairs and not text[end : tags[at].start].strip():
                at, end = pairs[at] + 1, tags[pairs[at]].end
            if stop == len(text) and self._cut(tags, open_, at) and not text[end : tags[at].start].strip():
                return stop
            if stop == len(text) or begin < end < begin + size // 2:
                return end
            size *= 4

    def _cut(self, tags: Sequence[Tag], open_: Sequence[int], at: int) -> bool:
        """Whether the text ends within a value of the call that begins with the tag at `at`.

        `open_` has the positions in `tags` of the opening tags without an end.
        """
        if at not in open_[:-1] or tags[at].kind != "call":
            return False
        return tags[open_[open_.index(at) + 1]].kind == "parameter"

    @property
    def ends(self) -> re.Pattern[str]:
        """Finds all tags; see `grammar.Blocks.ends`."""
        return self._pattern

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        ends = {"parameter_end": self.parameter_end, "end": self.end}
        begins = {"call": self.call, "parameter": self.parameter}
        parts = [f"(?P<{kind}>{re.escape(tag[1:])})" for kind, tag in ends.items()]
        parts += [f"(?P<{kind}>{re.escape(tag[1:])}[^<>]{{0,{MAX_HEAD}}}>)" for kind, tag in begins.items()]
        # The common first character lets the search skip what is not a tag.
        return re.compile(f"<(?:{'|'.join(parts)})")

    def _tags(self, raw: str, begin: int, stop: int) -> list[Tag]:
        return [
            Tag(str(found.lastgroup), *found.span(), raw[found.start() - 1 : found.start()] in ("", "\n"))
            for found in self._pattern.finditer(raw, begin, stop)
        ]

    def _head(self, raw: str, tag: Tag) -> tuple[str, bool]:
        """The name in an opening tag, and whether the tag marks the value as a string."""
        begins = self.call if tag.kind == "call" else self.parameter
        text = raw[tag.start + len(begins) : tag.end - 1]
        if '"' not in text:
            return text.strip(), False
        name, _, rest = text.partition('"')
        return name, 'string="true"' in rest

    def _paired(self, raw: str, tags: Sequence[Tag]) -> tuple[dict[int, int], list[int]]:
        """Pairs of opening and closing tags, as positions in `tags`, and the opening tags without an end.

        An element within a value needs a closing tag of its own. The closing tag of a value itself is
        followed by another argument, or by the end of the call.
        """
        pairs: dict[int, int] = {}
        open_: list[int] = []
        for at, tag in enumerate(tags):
            inside = bool(open_) and tags[open_[-1]].kind == "parameter"
            if inside and not tag.lined and self._framed(raw, tags[open_[-1]]):
                continue
            if tag.kind in ("call", "parameter"):
                open_.append(at)
            elif tag.kind == "parameter_end":
                ends_value = _ends_value(raw, tags, at)
                while ends_value and len(open_) > 1 and tags[open_[-1]].kind == "call":
                    open_.pop()  # the opening tag of a call within a value, which has no closing tag
                within = len(open_) > 1 and tags[open_[-2]].kind == "parameter"
                if open_ and tags[open_[-1]].kind == "parameter" and (within or ends_value):
                    pairs[open_.pop()] = at
            elif not inside or self._ends_call(raw, tags, at):
                while open_ and tags[open_[-1]].kind == "parameter":
                    open_.pop()
                if open_:
                    pairs[open_.pop()] = at
        return pairs, open_

    def _ends_call(self, raw: str, tags: Sequence[Tag], at: int) -> bool:
        """Whether a closing tag of a call ends a call, and is not text in a value.

        It ends a call if neither words nor the closing tag of a value follow it.
        """
        words = raw[tags[at].end : tags[at].end + 1] not in ("", "\n", "\r", " ", "<")
        return not words and (at + 1 == len(tags) or tags[at + 1].kind != "parameter_end")

    def _framed(self, raw: str, parameter: Tag) -> bool:
        """Whether a line break separates a value from its opening tag."""
        return self.trims and raw.startswith("\n", parameter.end)

    def _calls(self, raw: str, tools: Schemas) -> list[Call]:
        tags = self._tags(raw, 0, len(raw))
        pairs, _ = self._paired(raw, tags)
        at = done = 0
        around = []
        calls: list[Call] = []
        while True:
            following = next((i for i in range(at, len(tags)) if tags[i].kind == "call"), len(tags))
            behind = [tag.kind for tag in tags[at : following + 2] if tag.kind != "call"]
            if "parameter_end" in behind or (at < following and "end" in behind[: following - at]):
                calls = [refused(one, CUT) for one in calls]
            if following == len(tags):
                break
            if len(calls) == MAX_CALLS:
                return [*calls, malformed(raw[done:], f"{STRUCTURE}: more than {MAX_CALLS} calls")]
            around.append(raw[done : tags[following].start])
            found, at, done = self._call(raw, tags, pairs, following, tools)
            calls.append(found)
        rest = self._pattern.sub("", "".join([*around, raw[done:]])).strip()
        if calls and may_call(rest):
            calls.append(malformed(rest, f"{STRUCTURE}: part of a call beside a call"))
        return calls

    def _call(
        self, raw: str, tags: Sequence[Tag], pairs: Mapping[int, int], at: int, tools: Schemas
    ) -> tuple[Call, int, int]:
        """A call, the position in `tags` after its tags, and the position in `raw` after its text."""
        begin, end = tags[at], pairs.get(at)
        if end is None:
            return malformed(raw[begin.start :], UNCLOSED), len(tags), len(raw)
        after = tags[end].end
        name, _ = self._head(raw, begin)
        given: dict[str, Any] = {}
        known = tools.get(name, {})
        as_text: set[str] | None = None
        problem = None if name else NO_NAME
        here, done = at + 1, begin.end
        while here < end and problem is None:
            tag = tags[here]
            if tag.kind != "parameter" or raw[done : tag.start].strip():
                break
            stop = pairs.get(here)
            if stop is None:
                as_text = self._as_text(raw, tags[at:end], known) if as_text is None else as_text
                stop = self._slip(raw, tags, here, end, as_text)
            if stop is None:
                problem = UNCLOSED
                break
            key, is_text = self._head(raw, tag)
            if key in given:
                problem = f"{STRUCTURE}: an argument is given twice"
            value = raw[tag.end : tags[stop].start]
            schema = {"type": "string"} if is_text else known.get(key)
            given[key] = values.typed(_unframed(value) if self.trims else value, schema)
            if values.broken(given[key], schema):
                problem = NOT_JSON
            closed = tags[stop].kind == "parameter_end"
            here, done = (stop + 1, tags[stop].end) if closed else (stop, tags[stop].start)
        if problem is None and raw[done : tags[end].start].strip():
            problem = f"{STRUCTURE}: text beside an argument"
        return called(raw[begin.start : after], name or None, given, problem), end + 1, after

    def _as_text(self, raw: str, tags: Sequence[Tag], known: Container[str]) -> set[str]:
        """Names of arguments whose opening tag, within a value, is text.

        These are names that the tool does not have, and names that the call has twice.
        """
        times = Counter(self._head(raw, tag)[0] for tag in tags if tag.kind == "parameter")
        return {key for key in times if times[key] > 1 or (known and key not in known)}

    def _slip(self, raw: str, tags: Sequence[Tag], at: int, end: int, text: Container[str]) -> int | None:
        """The position in `tags` of the tag at which a value without a paired closing tag ends.

        A value that begins on a line of its own ends at the first line that begins with a closing tag or a
        new argument. An opening tag is part of the value if `text` has its argument's name. Without such a
        line, the value ends at `end`, the call's closing tag. Any other value ends at a closing tag of an
        argument. If there is none, the result is None.
        """
        if self._framed(raw, tags[at]):
            for place in range(at + 1, end):
                tag = tags[place]
                begins = tag.kind == "parameter" and self._head(raw, tag)[0] not in text
                if tag.lined and (tag.kind == "parameter_end" or begins):
                    return place
            return end
        ends = (place for place in range(at + 1, end) if tags[place].kind == "parameter_end")
        first = next(ends, None)
        if first is None or _ends_value(raw, tags, first):
            return first
        return next((place for place in ends if _ends_value(raw, tags, place)), first)


def _ends_value(raw: str, tags: Sequence[Tag], at: int) -> bool:
    """Whether only white space lies between a tag and the next argument, the call's end or the text's end."""
    if at + 1 == len(tags):
        return not raw[tags[at].end :].strip()
    following = tags[at + 1]
    return following.kind in ("parameter", "end") and not raw[tags[at].end : following.start].strip()


def _unframed(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")
