"""Arguments and answers of the tools in production, from an OpenAPI document or from MCP's list of tools.

A job's author writes this document, and the coordinator's process compares answers with it. So keywords that
search in a text (`pattern`, `patternProperties`) are removed, and all comparisons together have a bounded
number of steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from headway_analysis.preflight.conversation import properties_of
from headway_analysis.preflight.counted import Steps, validator
from headway_api.document import JsonView

BASE: Final = "urn:contract"
METHODS: Final = ("get", "put", "post", "delete", "patch")
DEPTH: Final = 16
"""The most references in a row that are followed."""
LEVELS: Final = 64
"""The most levels of the document that are read. Deeper levels are ignored."""
SEARCHES: Final = ("pattern", "patternProperties")
"""Keywords whose regular expressions could search for hours."""
LEFT_OUT: Final = (*SEARCHES, "uniqueItems", "$schema")
"""Keywords that are removed from schemas. `uniqueItems` compares every pair of elements. `$schema` would
choose a validator that does not count its steps."""
MAX_STEPS: Final = 1_000_000
"""The most steps in which all answers together are compared with one contract. Further answers are not
judged."""
STEP_BYTES: Final = 10_000
"""Each step costs one more for every so many characters of the answer, since an error quotes the answer."""


@dataclass(frozen=True)
class Operation:
    """One tool of production."""

    name: str
    parameters: Mapping[str, Any]
    """Name of a parameter -> JSON schema."""
    required: frozenset[str]
    """Names of the required parameters."""
    answer: str | None = None
    """JSON pointer to the schema of the tool's answers in the document; None if it has none."""
    aliases: tuple[str, ...] = ()
    """Further names by which a tool may be called."""


@dataclass(frozen=True)
class Contract:
    """All operations of production's document."""

    document: JsonView
    operations: tuple[Operation, ...]
    _registry: Any = field(default=None, repr=False, compare=False)
    _steps: Steps = field(default_factory=lambda: Steps(MAX_STEPS), repr=False, compare=False)

    def operation(self, name: str) -> Operation | None:
        """The operation of production that an environment's tool imitates; None if there is none."""
        wanted = plain(name)
        for operation in self.operations:
            if wanted in map(plain, (operation.name, *operation.aliases)):
                return operation
        return None

    def objection(self, operation: Operation, answer: Any) -> str | None:
        """How an answer violates production's schema; None if it does not, or if that is unknown."""
        if operation.answer is None:
            return None
        schema = {"$ref": f"{BASE}#{operation.answer}"}
        try:
            weight = 1 + len(json.dumps(answer)) // STEP_BYTES
            validator(self._steps, weight)(schema, registry=self._registry).validate(answer)
        except ValidationError as error:
            place = "/".join(map(str, error.absolute_path)) or "the answer"
            return f"{place}: {error.message}"
        except Exception:  # the schema is invalid, points nowhere or takes too long: no verdict
            return None
        return None


def plain(name: str) -> str:
    """A name in lower case, without signs: `getCase` and `get_case` become equal."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def read(document: JsonView) -> Contract | None:
    """The operations of a document; None if it is neither OpenAPI nor a list of MCP's tools."""
    made = _translated(document, openapi=isinstance(document.get("paths"), Mapping))
    if isinstance(made.get("paths"), Mapping):
        operations = tuple(_openapi(made))
    elif isinstance(made.get("tools"), list):
        operations = tuple(_mcp(made["tools"]))
    else:
        return None
    registry: Any = Registry().with_resource(BASE, DRAFT202012.create_resource(made))
    return Contract(made, operations, registry)


def _translated(document: JsonView, *, openapi: bool) -> JsonView:
    """The document without the keywords of `LEFT_OUT`, and with JSON Schema's form of OpenAPI's `nullable`.

    Parameters with the names of these keywords stay. They can be told apart, since their schemas are objects.
    """

    def walk(value: Any, depth: int, *, names: bool) -> Any:
        if isinstance(value, list):
            return [walk(each, depth - 1, names=False) for each in value] if depth else []
        if not isinstance(value, Mapping):
            return value
        kept = {key: each for key, each in value.items() if not _is_left_out(key, each, names=names)}
        made = {key: walk(each, depth - 1, names=key == "properties") for key, each in kept.items() if depth}
        if "patternProperties" in value and not names:
            made["additionalProperties"] = True
        if openapi and made.pop("nullable", None) is True and isinstance(made.get("type"), str):
            made["type"] = [made["type"], "null"]
            if isinstance(made.get("enum"), list):
                made["enum"] = [*made["enum"], None]
        return made

    found = walk(document, LEVELS, names=False)
    assert isinstance(found, dict)
    return found


def _is_left_out(key: str, value: Any, *, names: bool) -> bool:
    """Whether a key of a schema is a keyword of `LEFT_OUT`.

    Args:
        names: whether the keys are names of parameters. A reference may still use their object as a schema,
            so a key with a value that fits the keyword is removed even then.
    """
    if key == "patternProperties":
        return True
    return key in LEFT_OUT and not (names and isinstance(value, Mapping | list))


def resolved(document: JsonView, value: Any) -> Any:
    """The value to which a reference within the document points; `value` itself if it is no reference."""
    for _ in range(DEPTH):
        reference = value.get("$ref") if isinstance(value, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return value
        value = document
        for part in reference[2:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _pointer(*parts: str) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def _openapi(document: JsonView) -> Iterator[Operation]:
    for path, item in document["paths"].items():
        if not isinstance(item, Mapping):
            continue
        for method in METHODS:
            if isinstance(item.get(method), Mapping):
                yield _operation(document, str(path), method, item)


def _operation(document: JsonView, path: str, method: str, item: JsonView) -> Operation:
    described = item[method]
    parameters: dict[str, Any] = {}
    required: set[str] = set()
    for each in [*_list(item.get("parameters")), *_list(described.get("parameters"))]:
        found = resolved(document, each)
        if isinstance(found, Mapping) and found.get("in") in ("query", "path"):
            name = str(found.get("name", ""))
            parameters[name] = resolved(document, found.get("schema") or {})
            required |= {name} if found.get("required") else set()
    body = resolved(document, described.get("requestBody") or {})
    schema = resolved(document, _json_schema(body)[1] or {})
    if isinstance(schema, Mapping):
        inner = properties_of(schema)
        parameters |= {str(name): resolved(document, each) for name, each in inner.items()}
        required |= (
            {str(name) for name in _list(schema.get("required"))} if body.get("required", True) else set()
        )
    words = [part for part in path.split("/") if part and not part.startswith("{")]
    named = described.get("operationId")
    aliases = (f"{method}_{'_'.join(words)}", "_".join(words), *([words[-1]] if words else []))
    name = str(named) if named else aliases[0]
    return Operation(
        name, parameters, frozenset(required), _answer(document, path, method, described), aliases
    )


def _answer(document: JsonView, path: str, method: str, described: JsonView) -> str | None:
    responses = described.get("responses")
    for code in ("200", "201", "2XX", "default") if isinstance(responses, Mapping) else ():
        assert isinstance(responses, Mapping)
        if code not in responses:
            continue
        kind, schema = _json_schema(responses[code])
        if schema is not None:
            return _pointer("paths", path, method, "responses", code, "content", kind, "schema")
        reference = responses[code].get("$ref") if isinstance(responses[code], Mapping) else None
        kind, schema = _json_schema(resolved(document, responses[code]))
        if schema is not None and isinstance(reference, str):
            return reference.removeprefix("#") + _pointer("content", kind, "schema")
    return None


def _json_schema(body: Any) -> tuple[str, Any]:
    content = body.get("content") if isinstance(body, Mapping) else None
    for kind, described in content.items() if isinstance(content, Mapping) else ():
        if "json" in str(kind) and isinstance(described, Mapping) and "schema" in described:
            return str(kind), described["schema"]
    return "", None


def _mcp(tools: list[Any]) -> Iterator[Operation]:
    for number, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            continue
        schema = tool.get("inputSchema") or tool.get("input_schema") or {}
        schema = schema if isinstance(schema, Mapping) else {}
        answer = _pointer("tools", str(number), "outputSchema") if "outputSchema" in tool else None
        required = frozenset(map(str, _list(schema.get("required"))))
        yield Operation(str(tool.get("name", "")), dict(properties_of(schema)), required, answer)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
