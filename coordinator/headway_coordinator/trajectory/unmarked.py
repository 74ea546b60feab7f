"""Finds calls without tags anywhere in a text: JSON objects, and lists of calls in Python.

Only the name of an offered tool distinguishes such a call from an answer. So an object or list that names no
offered tool stays text. The search reads its text once, except for `MAX_TRIES` objects that cannot be parsed.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from headway_coordinator.trajectory.calls import STRUCTURE, UNREADABLE, Call, Parsed, malformed, refused
from headway_coordinator.trajectory.notations import (
    MAX_CALLS,
    Body,
    Tags,
    blank,
    json_calls,
    may_call,
    pythonic,
)
from headway_coordinator.trajectory.values import Schemas

MAX_TRIES: Final = 4
"""The most objects that may fail to parse, of those whose beginning names no offered tool."""
MAX_FRAME: Final = 64
"""Number of characters before a call in which a code fence, a bracket or a quotation mark is searched."""
_HEAD: Final = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<object>[^"\\\n]{1,256})"'
    r'|\{\s*"(?:type|name|function|tool|tool_name|parameters|arguments)"\s*:'
    r"|\[\s*(?P<list>[A-Za-z_][\w.]{0,255})\s*\("
)
_LIST: Final = re.compile(r"\[\s*[A-Za-z_][\w.]{0,255}\s*\(")
_OPENS: Final = (
    re.compile(r"(?:```\w{0,20}\s*|`)?(?:\[\s*)?\Z"),
    re.compile(r"(?:```\w{0,20}\s*|`)?\Z"),
)
"""Code fences and brackets before a JSON object, and before a list in Python."""
_QUOTED: Final = re.compile(r"""(?:"\s*:\s*\[?\s*|["'])\Z""")
_PIECE: Final = re.compile(
    r"""\"(?:[^"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|(?P<open>[\[({])|(?P<close>[\])}])|(?P<quote>["'])""",
    re.DOTALL,
)
_BETWEEN: Final = "\n\r\t ;,[]"
_DECODER, _OBJECT = json.JSONDecoder(), json_calls(arguments=("parameters", "arguments"))
_KEYS: Final = ("name", "tool_name", "tool", "function")
"""Keys under which models write a tool's name in JSON."""
_NAME: Final = r"[A-Za-z_][\w.-]{0,255}"
_OTHER: Final = re.compile(
    rf"<function=(?P<function>{_NAME})>"
    rf"""|<invoke\s+name=["']?(?P<invoke>{_NAME})["']?\s*>"""
    rf"|\bcall:(?P<gemma>{_NAME})(?=\{{)"
    rf"|\bfunctions\.(?P<harmony>{_NAME})\s*(?=\()"
    rf"|\{{\s*'(?:{'|'.join(_KEYS)})'\s*:\s*'(?P<dict>{_NAME})'"
    rf"|\A\s*(?P<bare>{_NAME})\s*(?=\()"
)
"""The beginning of a call in another family's form, or of a function call that is the whole text."""
_CLOSINGS: Final = {"function": "</function>", "invoke": "</invoke>"}
"""Form of `_OTHER` -> its closing tag. The other forms end with a bracket."""
INSIDE: Final = f"{STRUCTURE}: a call within something else"
UNTAGGED: Final = f"{STRUCTURE}: a call without its tags"


def embedded(text: str, tools: Schemas, *, objects: bool = True) -> tuple[str, list[Call]]:
    """The text around the calls of offered tools, and the calls.

    Args:
        text: a turn, or the part of it that may have calls.
        tools: the offered tools.
        objects: whether calls are also read as JSON.
    """
    if not tools or (objects and _is_other_json(text, tools)):
        return text, []
    search = _Search(text, tools, objects=objects)
    search.run()
    return "".join(search.around), search.calls


def untagged(text: str, tools: Schemas) -> tuple[str, list[Call]]:
    """The text around calls of offered tools that lack their family's tags, and these calls, as malformed.

    A model may forget the tags, or write another family's. Its calls are not carried out, but they must be
    counted.
    """
    around, found = embedded(text, tools)
    calls = [refused(call, UNTAGGED) for call in found]
    parts: list[str] = []
    at = 0
    for head in _OTHER.finditer(around) if tools else ():
        if head.start() < at or head[str(head.lastgroup)] not in tools or len(calls) >= MAX_CALLS:
            continue
        end = _end(around, head)
        if head.lastgroup == "bare" and around[end:].strip():
            continue
        calls.append(malformed(around[head.start() : end], UNTAGGED))
        parts.append(around[at : head.start()])
        at = end
    return "".join([*parts, around[at:]]), calls


def _end(text: str, head: re.Match[str]) -> int:
    """The position after the call that begins with `head`, a match of `_OTHER`.

    A call without an end reaches to the end of the text.
    """
    form = str(head.lastgroup)
    if form in _CLOSINGS:
        at = text.find(_CLOSINGS[form], head.end())
        return at + len(_CLOSINGS[form]) if at >= 0 else len(text)
    return _closed(text, head.start() if form == "dict" else head.end()) or len(text)


def counted(found: Parsed, tools: Schemas) -> Parsed:
    """The turn with further malformed calls: those in its text that its family's parser does not find."""
    text, calls = untagged(found.content, tools)
    return replace(found, content=text.strip(), calls=[*found.calls, *calls]) if calls else found


class _Search:
    """The state of a search for calls in a text."""

    def __init__(self, text: str, tools: Schemas, *, objects: bool) -> None:
        self.text = text
        self.around: list[str] = []
        self.calls: list[Call] = []
        self._tools = tools
        self._heads = _HEAD if objects else _LIST
        self._at = 0
        """The search's position: all text before it is in `around` or in `calls`."""
        self._tries = MAX_TRIES
        self._frame = ""
        """The code fence or bracket before a call whose closing counterpart has not come yet."""
        self._quoted = False
        """Whether the last call was in quotation marks, or was a field's value."""

    def run(self) -> None:
        at = 0
        while (head := self._heads.search(self.text, at)) is not None:
            found = self._found(head)
            if found is None:
                return
            at = found
        self._outside(len(self.text))

    def _found(self, head: re.Match[str]) -> int | None:
        """Handle a possible call, and return the position where the search continues.

        None if the search ends, because the rest of the text is one malformed call.
        """
        start = head.start()
        if self.text.startswith("[", start):
            return self._list(start)
        named = head["object"] in self._tools
        if not named and not self._tries:
            return start + 1
        try:
            value, end = _DECODER.raw_decode(self.text, start)
        except UNREADABLE as error:
            if named:
                self._rest(start, error)
                return None
            self._tries -= 1
            return start + 1
        if _names(value, self._tools):
            return self._call(start, end, _OBJECT)
        if isinstance(value, dict) and _names(value.get("function"), self._tools):
            return self._call(start, end, _within)
        return end

    def _list(self, start: int) -> int | None:
        name = _LIST.match(self.text, start)
        assert name is not None
        if name[0].strip("[( \n\t\r") not in self._tools:
            return start + 1
        end = _closed(self.text, start)
        if end is None:
            self._rest(start, f"{STRUCTURE}: a list without an end")
            return None
        if self.text.startswith("(", end):  # a link in Markdown
            return end
        return self._call(start, end, pythonic)

    def _call(self, start: int, end: int, read: Body) -> int | None:
        """Parse the calls between two positions, and return the position where the search continues."""
        if len(self.calls) >= MAX_CALLS:
            self._rest(start, f"{STRUCTURE}: more than {MAX_CALLS} calls")
            return None
        near = self.text[max(self._at, start - MAX_FRAME) : start]
        self._quoted = bool(_QUOTED.search(near)) or (self._quoted and not near.strip(_BETWEEN))
        opens = None if self._quoted else _OPENS[read is pythonic].search(near)
        opening = opens[0] if opens is not None else ""
        body = self.text[start:end]
        found = [malformed(body, INSIDE)] if self._quoted else read(body, ("", ""), self._tools)
        self._frame = opening or self._frame
        closing = _closing(self.text, end, self._frame)
        self._frame = "" if closing else self._frame
        self._outside(start - len(opening))
        found[0] = replace(found[0], tags=(opening, ""))
        found[-1] = replace(found[-1], tags=(found[-1].tags[0], closing))
        self.calls += found
        self._at = end + len(closing)
        return self._at

    def _rest(self, start: int, problem: object) -> None:
        self._outside(start)
        self.calls.append(malformed(self.text[start:], problem))

    def _outside(self, end: int) -> None:
        """Add the text up to `end` to `around`, or to `calls` if it follows a call and may be another one."""
        between = self.text[self._at : end]
        if not self.calls:
            self.around.append(between)
        elif between.strip(_BETWEEN):
            if may_call(between):
                self.calls.append(malformed(between, f"{STRUCTURE}: part of a call beside a call"))
            else:
                self.around.append(between)
        self._at = end


def _names(value: object, tools: Schemas) -> bool:
    """Whether a JSON value is a call of an offered tool. A value with a description only defines a tool."""
    if not isinstance(value, dict) or "description" in value:
        return False
    name = next((value[key] for key in _KEYS if key in value), None)
    return isinstance(name, str) and name in tools and ("parameters" in value or "arguments" in value)


def _is_other_json(text: str, tools: Schemas) -> bool:
    """Whether a turn is one JSON value, perhaps in a code fence, that is not a call."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```"):
        body = body.removesuffix("```").partition("\n")[2].strip()
    if not body.startswith(("{", "[")):
        return False
    try:
        value = json.loads(body)
    except UNREADABLE:
        return False
    items = value if isinstance(value, list) else [value]
    return not any(
        _names(item, tools) or (isinstance(item, dict) and _names(item.get("function"), tools))
        for item in items
    )


def _within(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    return [malformed(raw, INSIDE, tags)]


def _closed(text: str, start: int) -> int | None:
    """The position after the bracket that closes the bracket at `start`; None if there is none."""
    depth = 0
    for piece in _PIECE.finditer(text, start):
        if piece["quote"]:
            return None
        depth += bool(piece["open"]) - bool(piece["close"])
        if not depth:
            return piece.end()
    return None


def _closing(text: str, end: int, opening: str) -> str:
    """The closing counterpart of the fence or bracket in `opening`, at `end`; empty if it is not there."""
    at = end
    fence = "```" if "```" in opening else "`" if "`" in opening else ""
    for mark in ("]" if "[" in opening else "", fence):
        if mark:
            at = blank(text, at)
            if not text.startswith(mark, at):
                return ""
            at += len(mark)
    return text[end:at]
