"""The families' notations between a call's tags: JSON, names before it, keys and values, Python, Gemma's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Final

from headway_coordinator.trajectory import values
from headway_coordinator.trajectory.calls import NO_NAME, STRUCTURE, UNREADABLE, Call, called, malformed
from headway_coordinator.trajectory.values import Schemas

Tags = tuple[str, str]
Body = Callable[[str, Tags, Schemas], list[Call]]
"""The text between two tags -> the calls in it."""
CALL_ID, ARGS = "[CALL_ID]", "[ARGS]"
"""In Mistral's templates: a call's id, which nothing needs, and its arguments."""
MAX_CALLS: Final = 128
"""The most calls of one turn that are read separately. The rest is one malformed call."""


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


_PAIR = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_PAIRS = re.compile(f"({'|'.join(_PAIR)})")


def pairs(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    """A call as its name, with keys and values in tags: GLM's."""
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
