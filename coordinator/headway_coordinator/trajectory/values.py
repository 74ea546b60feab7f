"""Parses argument values as model families write them: JSON, text typed by a tool's schema, Python, Gemma's.

Every function takes time in proportion to its text, and raises ValueError for text that it cannot parse.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from headway_coordinator.trajectory.calls import UNREADABLE, DuplicateNameError, Tool, once

MAX_PYTHON: Final = 64 * 1024
"""The most characters of Python that are parsed at once. The parser needs hundreds of bytes for each one."""
DEEPEST: Final = 64
"""The most levels of nesting in Gemma's notation, and of references between schemas."""
QUOTE: Final = '<|"|>'
"""The quotation mark before and after each string in Gemma 4's notation."""
LITERALS: Final[Mapping[str, bool | None]] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
"""Literals as JSON and Python write them."""
_NESTED: Final = frozenset({"object", "array"})
DEFINITIONS: Final = ("$defs", "definitions")
OPTIONS: Final = ("anyOf", "oneOf", "allOf")
MAX_RESOLVED: Final = 10_000
"""The most schemas that are visited to resolve the references of a turn's tools. References may be cyclic."""
Schemas = Mapping[str, Mapping[str, Any]]
"""Tool -> the schema of each of its parameters."""


def schemas(tools: Sequence[Tool]) -> Schemas:
    """The schemas of every tool's parameters."""
    found: dict[str, Mapping[str, Any]] = {}
    left = iter(range(MAX_RESOLVED))
    for tool in tools:
        function = tool.get("function", tool)
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        known = properties if isinstance(parameters, dict) and isinstance(properties, dict) else {}
        found[str(function.get("name"))] = {
            key: _resolved(each, parameters, left) for key, each in known.items()
        }
    return found


def _resolved(schema: object, whole: Mapping[str, Any], left: Iterator[int], depth: int = 0) -> Any:
    """A parameter's schema with its references resolved. For example, Pydantic writes enums as references.

    Args:
        schema: the parameter's schema.
        whole: the schema with the definitions.
        left: has an item for each schema that may still be visited.
        depth: number of references and options above this schema.
    """
    if not isinstance(schema, Mapping) or depth > DEEPEST or next(left, None) is None:
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        block, _, name = reference.removeprefix("#/").partition("/")
        defined = whole.get(block) if block in DEFINITIONS else None
        return (
            _resolved(defined.get(name), whole, left, depth + 1) if isinstance(defined, Mapping) else schema
        )
    options = {key: schema[key] for key in OPTIONS if isinstance(schema.get(key), list)}
    resolved = {
        key: [_resolved(one, whole, left, depth + 1) for one in each] for key, each in options.items()
    }
    return {**schema, **resolved} if resolved else schema


def typed(text: str, schema: object) -> Any:
    """The value of text without quotes: a string if the schema says so, else the value that it parses as.

    Text that cannot be parsed stays a string. `broken` says whether a tool could use it.
    """
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    bare = text.strip()
    if bare in LITERALS and ("string" not in kinds or _fits(LITERALS[bare], kinds)):
        return LITERALS[bare]
    nested = kinds & _NESTED or (not kinds and bare[:1] in ("{", "["))
    for read in (_json, python) if nested else (_json,):
        try:
            found = read(bare)
        except UNREADABLE:
            continue
        return text if "string" in kinds and not _fits(found, kinds) else found
    return text


def broken(value: object, schema: object) -> bool:
    """Whether `typed` kept a text that begins an object or a list, and the schema allows nothing else."""
    kinds = _kinds(schema)
    return isinstance(value, str) and value.lstrip()[:1] in ("{", "[") and bool(kinds) and kinds <= _NESTED


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=_refused)


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _kinds(schema: object) -> set[str]:
    """The types that a schema allows; empty if it allows any type, or its types are unknown."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if isinstance(kinds, list):
        return {kind for kind in kinds if isinstance(kind, str)}
    options = schema.get("anyOf") or schema.get("oneOf") or ()
    if isinstance(options, list) and options:
        return {kind for option in options for kind in _kinds(option)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return {next(kind for kind, fits in _KINDS if fits(value)) for value in values}
    every = schema.get("allOf")
    return next(filter(None, map(_kinds, every)), set()) if isinstance(every, list) else set()


_KINDS: Final[tuple[tuple[str, Callable[[object], bool]], ...]] = (
    ("string", lambda one: isinstance(one, str)),
    ("boolean", lambda one: isinstance(one, bool)),
    ("integer", lambda one: isinstance(one, int) and not isinstance(one, bool)),
    ("number", lambda one: isinstance(one, int | float) and not isinstance(one, bool)),
    ("object", lambda one: isinstance(one, dict)),
    ("array", lambda one: isinstance(one, list)),
    ("null", lambda one: one is None),
)
"""Each JSON type, with a function that says whether a value has it."""


def _fits(value: object, kinds: set[str]) -> bool:
    """Whether a value that is not a string has one of these types."""
    return any(kind in kinds and fits(value) for kind, fits in _KINDS if kind != "string")


def tree(text: str) -> list[ast.expr]:
    """The Python expressions in a text, parsed and never run.

    Raises:
        ValueError: the text is not Python, has statements that are no expressions, or is too long or deep.
    """
    if len(text) > MAX_PYTHON:
        raise ValueError(f"{len(text)} characters are more than the {MAX_PYTHON} that are read as Python")
    try:
        lines = ast.parse(text.strip()).body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"it is not Python: {error}") from error
    found = [line.value for line in lines if isinstance(line, ast.Expr)]
    if len(found) < len(lines):
        raise ValueError("the text is a Python statement, not a call")
    return found


_LINE: Final = re.compile(rb"\r\n|\r|\n")


def written(text: str, nodes: Sequence[ast.expr]) -> list[str]:
    """The source text of each expression that `tree` found in `text`."""
    raw = text.strip().encode()
    starts = [0, *(line.end() for line in _LINE.finditer(raw))]

    def place(line: int | None, column: int | None) -> int:
        return len(raw) if line is None or column is None else starts[line - 1] + column

    return [
        raw[place(node.lineno, node.col_offset) : place(node.end_lineno, node.end_col_offset)].decode(
            errors="replace"
        )
        for node in nodes
    ]


def python(text: str) -> Any:
    """The value of a Python literal, or of JSON's true, false or null.

    Raises:
        ValueError: the text is not a literal.
    """
    nodes = tree(text)
    if len(nodes) != 1:
        raise ValueError(f"{len(nodes)} expressions are not one value")
    return literal(nodes[0])


def literal(node: ast.expr) -> Any:
    """The value of an expression that is a literal, and so calls and computes nothing.

    Raises:
        ValueError: the expression calls or computes something.
    """
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in LITERALS:
            return LITERALS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            named = [None if key is None else literal(key) for key in keys]
            if not all(isinstance(name, str) for name in named):
                raise ValueError("a name in an object is not a string")
            return once(list(zip(map(str, named), map(literal, values), strict=True)))
    raise ValueError(f"{type(node).__name__} is not a value")


def gemma(text: str) -> dict[str, Any]:
    """Arguments in Gemma 4's notation, without the braces around them: key:value,key:<|"|>text<|"|>.

    Raises:
        ValueError: the text is not in that notation.
    """
    reader = _Gemma("{" + text + "}")
    found = reader.value(0)
    if reader.at != len(reader.text) or not isinstance(found, dict):
        raise ValueError("arguments go on after their end")
    return found


_STRINGS: Final = json.JSONDecoder()


def _unquoted(word: str) -> str:
    """The word itself, if it has no quotation marks.

    Raises:
        ValueError: the word has quotation marks, so its end is unclear.
    """
    if '"' in word or "'" in word:
        raise ValueError(f"a word has quotes that are not {QUOTE}")
    return word


_BLANKS, _KEY_ENDS, _VALUE_ENDS = re.compile(r"\s*"), re.compile(r"[:,{}\[\]]"), re.compile(r"[,}\]]")


class _Gemma:
    """A parser for Gemma's notation: a text, and the position in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError(f"arguments are nested deeper than {DEEPEST} levels")
        self._blanks()
        if self._takes(QUOTE):
            return self._until_quote()
        if self.text.startswith('"', self.at):
            return self._json_string()
        if self._takes("{"):
            return self._object(depth)
        if self._takes("["):
            return self._list(depth)
        return self._bare()

    def _takes(self, part: str) -> bool:
        found = self.text.startswith(part, self.at)
        self.at += len(part) if found else 0
        return found

    def _blanks(self) -> None:
        found = _BLANKS.match(self.text, self.at)
        self.at = self.at if found is None else found.end()

    def _until_quote(self) -> str:
        end = self.text.find(QUOTE, self.at)
        if end < 0:
            raise ValueError("a string has no end")
        found = self.text[self.at : end]
        self.at = end + len(QUOTE)
        return found

    def _json_string(self) -> str:
        """A string in JSON's notation, which models sometimes write instead of Gemma's."""
        found, self.at = _STRINGS.raw_decode(self.text, self.at)
        return str(found)

    def _key(self) -> str:
        if self._takes(QUOTE):
            return self._until_quote()
        if self.text.startswith('"', self.at):
            return self._json_string()
        return _unquoted(self._run(_KEY_ENDS).strip())

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._takes("}"):
            return found
        while True:
            self._blanks()
            key = self._key()
            self._blanks()
            if not key or not self._takes(":"):
                raise ValueError("an argument has no name")
            if key in found:
                raise DuplicateNameError
            found[key] = self.value(depth + 1)
            self._blanks()
            if self._takes("}"):
                return found
            if not self._takes(","):
                raise ValueError("arguments have no comma between them")

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        if self._takes("]"):
            return found
        while True:
            found.append(self.value(depth + 1))
            self._blanks()
            if self._takes("]"):
                return found
            if not self._takes(","):
                raise ValueError("a list has no comma between its values")

    def _run(self, ends: re.Pattern[str]) -> str:
        start, end = self.at, ends.search(self.text, self.at)
        self.at = len(self.text) if end is None else end.start()
        return self.text[start : self.at]

    def _bare(self) -> Any:
        word = _unquoted(self._run(_VALUE_ENDS).strip())
        if not word:
            raise ValueError("a value is missing")
        if word in LITERALS:
            return LITERALS[word]
        try:
            return _json(word)
        except ValueError:
            return word
