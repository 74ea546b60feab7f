"""Splits an answer into its parts, such as its tag and its fields, and joins parts after a change."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

AnswerKind = Literal["object", "lines", "text"]
"""object: a JSON object. lines: `key: value` lines. text: anything else, as one field without a name."""
Fields = tuple[tuple[str, Any], ...]

LONGEST: Final = 20_000
"""An answer with more characters is not split, and counts as plain text."""
_TAGS: Final = re.compile(r"<([A-Za-z][\w.-]{0,40})>(?=.*?</\1>)", re.DOTALL)
_FENCE: Final = re.compile(r"```[a-z]*\n(.*?)\n?```", re.DOTALL)
_BOX: Final = re.compile(r"\\boxed\{([^{}]*)\}")
_LINE: Final = re.compile(r"\s*([A-Za-z][\w .-]{0,40}?)\s*[:=]\s*(\S.*)")


@dataclass(frozen=True)
class ParsedAnswer:
    """An answer, split into its parts."""

    before: str
    """Words in front of the answer."""
    opening: str
    """The mark in front of the answer: `<answer>`, a fence, `\\boxed{`, or an empty string."""
    kind: AnswerKind
    fields: Fields
    closing: str
    after: str
    tag: str | None = None
    """Name of the tag around the answer; None if there is none."""

    @property
    def body(self) -> str:
        """The text between opening and closing."""
        if self.kind == "object":
            return json.dumps(dict(self.fields), ensure_ascii=False)
        if self.kind == "lines":
            return "\n".join(f"{key}: {value}" for key, value in self.fields)
        return str(self.fields[0][1])

    @property
    def core(self) -> str:
        """The answer without the words around it."""
        return f"{self.opening}{self.body}{self.closing}"

    @property
    def text(self) -> str:
        """The whole message."""
        return f"{self.before}{self.core}{self.after}"

    @property
    def wordy(self) -> bool:
        """Whether there are words around the answer's mark."""
        return bool((self.before + self.after).strip())

    def with_fields(self, fields: Fields) -> ParsedAnswer:
        """This answer with other fields."""
        return replace(self, fields=fields)

    def with_tag(self, name: str | None) -> ParsedAnswer:
        """This answer in another tag, or in none."""
        opening, closing = (f"<{name}>", f"</{name}>") if name else ("", "")
        return replace(self, opening=opening, closing=closing, tag=name)


@lru_cache(maxsize=1024)
def parsed(text: str) -> ParsedAnswer:
    """An answer's parts. If it is neither JSON nor `key: value` lines, it is one field without a name."""
    if len(text) > LONGEST:
        return ParsedAnswer("", "", "text", (("", text),), "", "")
    before, opening, body, closing, after, tag = _marked(text)
    fields = _object(body)
    if fields:
        return ParsedAnswer(before, opening, "object", fields, closing, after, tag)
    fenced = _FENCE.fullmatch(body.strip())
    if fenced and (fields := _object(fenced.group(1))):
        return ParsedAnswer(before, f"{opening}```json\n", "object", fields, f"\n```{closing}", after, tag)
    if tag is None and (inner := _inner_object(text)) is not None:
        return inner
    if fields := _lines(body):
        return ParsedAnswer(before, opening, "lines", fields, closing, after, tag)
    return ParsedAnswer(before, opening, "text", (("", body.strip() or body),), closing, after, tag)


def tags_in(text: str) -> list[str]:
    """Names of the opening and closing tags in a text, in their order and without duplicates."""
    names = re.findall(r"</?([A-Za-z][\w.-]{0,40})>", text[:LONGEST])
    return list(dict.fromkeys(names))


def objects_in(text: str) -> list[dict[str, Any]]:
    """The JSON objects that a text contains."""
    return [found for found, _, _ in _objects(text)]


def _marked(text: str) -> tuple[str, str, str, str, str, str | None]:
    found = _last_tag(text)
    if found is not None:
        start, end, name, body = found
        return text[:start], f"<{name}>", body, f"</{name}>", text[end:], name
    if box := _BOX.search(text):
        return text[: box.start()], "\\boxed{", box.group(1), "}", text[box.end() :], None
    return "", "", text, "", "", None


def _last_tag(text: str) -> tuple[int, int, str, str] | None:
    """The last pair of tags that is not inside another pair. Reasoning in tags of its own comes earlier."""
    place, last = 0, None
    while found := _TAGS.search(text, place):
        name = found.group(1)
        end = text.index(f"</{name}>", found.end())
        last = (found.start(), end + len(name) + 3, name, text[found.end() : end])
        place = last[1]
    return last


def _object(text: str) -> Fields:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(value.items()) if isinstance(value, dict) else ()


def _inner_object(text: str) -> ParsedAnswer | None:
    """The last JSON object in a text, with the text around it."""
    found = _objects(text)
    if not found or not found[-1][0]:
        return None
    value, start, end = found[-1]
    before, after = text[:start], text[end:]
    fence = re.search(r"```[a-z]*\n$", before)
    if fence and after.lstrip().startswith("```"):
        cut = after.index("```") + 3
        opening, closing = before[fence.start() :], after[:cut]
        before, after = before[: fence.start()], after[cut:]
    else:
        opening = closing = ""
    return ParsedAnswer(before, opening, "object", tuple(value.items()), closing, after)


def _objects(text: str) -> list[tuple[dict[str, Any], int, int]]:
    decoder, place, found = json.JSONDecoder(), 0, list[tuple[dict[str, Any], int, int]]()
    text = text[:LONGEST]
    while (start := text.find("{", place)) >= 0 and len(found) < 20:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            place = start + 1
            continue
        if isinstance(value, dict):
            found.append((value, start, end))
        place = max(end, start + 1)
    return found


def _lines(text: str) -> Fields:
    found = [(line, _LINE.fullmatch(line)) for line in text.strip().splitlines() if line.strip()]
    if not found or not all(match for _, match in found):
        return ()
    pairs = tuple((match.group(1), match.group(2).strip()) for _, match in found if match)
    names = [key for key, _ in pairs]
    return pairs if len(set(names)) == len(names) else ()
