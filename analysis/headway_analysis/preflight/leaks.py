"""Finds leaks of a label: its value in the prompt, or in a tool's result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headway_analysis.preflight.answers import LONGEST, objects_in
from headway_analysis.preflight.conversation import folded, prompt_text
from headway_analysis.preflight.evidence import Sampled, ToolResult
from headway_analysis.preflight.labels import REVEALING, Label, label_answer, words_of

NEAR: Final = 40
"""Characters before a value in which a word may mark the value as the label."""
DEPTH: Final = 4
"""Levels of a tool's result that are searched."""


def in_prompt(one: Sampled, label: Label) -> str | None:
    """The part of the prompt that reveals the row's label; None if no part does.

    A leak is a whole object equal to the label, or a value after a word such as `expected` or the column's
    name. The bare value is not a leak: tasks that extract text have it in their prompt.
    """
    value, text = one.row.get(label.column), prompt_text(one)[:LONGEST]
    wanted = _object(value)
    if wanted is not None and len(wanted) > 1:
        found = next((each for each in objects_in(text) if _same(each, wanted)), None)
        return None if found is None else json.dumps(found, ensure_ascii=False)
    return _after_a_word(value, text, label)


def _object(value: Any) -> Mapping[str, Any] | None:
    answer = label_answer(value)
    return dict(answer.fields) if answer is not None and answer.kind == "object" else None


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    plain = [{str(key): folded(str(value)) for key, value in each.items()} for each in (one, other)]
    return plain[0] == plain[1]


def _after_a_word(value: Any, text: str, label: Label) -> str | None:
    answer = label_answer(value)
    if answer is None or answer.kind == "lines":
        return None
    wanted = str(answer.fields[0][1]).strip()
    if not wanted:
        return None
    column = label.column.lower()
    for match in re.finditer(rf"(?<![\w.]){re.escape(wanted)}(?![\w])", text):
        before = text[max(0, match.start() - NEAR) : match.start()].rpartition("\n")[2]
        tied = re.search(r"([A-Za-z][\w ]*?)[\"'`*]*\s*(?:[:=]|\bis\b)\s*[\"'`*(<\[]*$", before)
        if tied and (words_of(tied.group(1)) & REVEALING or tied.group(1).strip().lower() == column):
            return f"{before}{match.group()}".strip()
    return None


def in_tool(one: Sampled, label: Label) -> tuple[ToolResult, str] | None:
    """The first tool result that reveals the label by name, and the field that reveals it.

    A field reveals the label if its value is the row's label, and its name says so or is the column's name.
    If the column's name does not suggest a label, a tool may legitimately return a field of this name.
    """
    value = one.row.get(label.column)
    for result in one.results:
        if _computed(one, result):
            continue
        for name, found in _fields(_read(result.content), DEPTH):
            is_named = words_of(name) & REVEALING or (label.named and name.lower() == label.column.lower())
            if is_named and found not in (None, "") and _equal(found, value):
                return result, name
    return None


def _computed(one: Sampled, result: ToolResult) -> bool:
    """Whether an argument of the call is not in the row, so that the tool may have computed the answer."""
    known = folded(json.dumps(one.row, default=str))
    return any(isinstance(value, str) and folded(value) not in known for value in result.arguments.values())


def whole_in_first(one: Sampled, label: Label) -> ToolResult | None:
    """The first tool result, if it has every field of a label with two or more fields; else None."""
    wanted = _object(one.row.get(label.column))
    if wanted is None or len(wanted) < 2 or not one.results:
        return None
    first = one.results[0]
    fields = list(_fields(_read(first.content), DEPTH))
    has = all(
        any(name == key and _equal(found, value) for name, found in fields) for key, value in wanted.items()
    )
    return first if has else None


def _read(content: str) -> Any:
    try:
        return json.loads(content[:LONGEST])
    except (ValueError, RecursionError):
        return dict(re.findall(r"([A-Za-z]\w{0,60})\s*[:=]\s*([^\n,;]{1,200})", content[:LONGEST]))


def _fields(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth == 0:
        return
    value = _unpacked(value)
    inner: Sequence[Any] = ()
    if isinstance(value, Mapping):
        yield from ((str(key), each) for key, each in value.items())
        inner = list(value.values())
    elif isinstance(value, list):
        inner = value[:100]
    for each in inner:
        yield from _fields(each, depth - 1)


def _unpacked(value: Any) -> Any:
    """The JSON object or list in a text; other values stay as they are."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value[:LONGEST])
    except (ValueError, RecursionError):
        return value


def _equal(found: Any, value: Any) -> bool:
    one, other = _plain(found), _plain(value)
    return bool(one) and one == other


def _plain(value: Any) -> str:
    answer = label_answer(value)
    if answer is None:
        return ""
    if answer.kind == "object":
        return json.dumps({key: folded(str(each)) for key, each in answer.fields}, sort_keys=True)
    return folded(answer.body)
