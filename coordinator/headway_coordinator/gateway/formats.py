"""Reads requests for a JSON answer, in every form that clients use, into one schema. Pure.

The sampler masks tokens that would break the schema. So the turn is recorded as guided, and is not trained
(docs/adr/0036). A schema would also mask the tokens of tool calls, so a request with tools may not ask for
one. A form that no JSON schema can express is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within
from headway_coordinator.gateway import schemas
from headway_coordinator.gateway.asks import ANY_OBJECT
from headway_coordinator.gateway.blocks import Block
from headway_coordinator.gateway.refusals import UNSUPPORTED, bad

STANDARD: Final = 'response_format: {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}'
WRITE: Final = f"write it as a JSON schema: {STANDARD}"
OTHERS: Final[dict[str, str]] = {
    "guided_regex": WRITE,
    "guided_choice": "write it as a JSON schema with an enum",
    "guided_grammar": WRITE,
    "guided_decoding_backend": "leave it out: the platform chooses the compiler",
    "guided_whitespace_pattern": "leave it out",
    "regex": WRITE,
    "ebnf": WRITE,
    "grammar": WRITE,
    "structural_tag": WRITE,
}
"""Other engines' constraints on an answer that are not JSON schemas -> what to write instead."""
SPELLINGS: Final = (
    *("response_format", "guided_json", "json_schema", "structured_outputs", "guided_decoding", "format"),
    *OTHERS,
)
"""Fields of chat completions that constrain answers."""


class Named(Block):
    """The value of `json_schema` in `response_format`: a schema with its name."""

    name: Annotated[str, Field(max_length=bounds.NAME)] | None = None
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: StrictBool | None = None
    """Has no effect: an answer always follows its whole schema."""


class ResponseFormat(Block):
    """The kind of answer: text, any JSON object, or JSON of one schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Named | None = None
    plain: dict[str, Any] | None = Field(None, alias="schema")
    """A schema without a name, as llama.cpp and others take it with the type `json_object`."""


class TextFormat(Block):
    """The kind of answer, as Responses and Messages write it."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=bounds.NAME)] | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: StrictBool | None = None


@dataclass(frozen=True)
class Wanted:
    """One request for a JSON answer, from one field of the body."""

    name: str
    """The name of the field."""
    at: str
    """The path to the schema within the body."""
    schema: Any
    """The schema; None means any JSON object."""


@dataclass(frozen=True)
class Chosen:
    """The outcome of a body's requests for JSON: the schema to apply, or the fields that are ignored."""

    schema: str | None = None
    """The schema as JSON text; None if the answer is not constrained."""
    name: str = "response_format"
    """The field that asks for the schema."""
    ignored: tuple[str, ...] = ()
    """The fields that ask for JSON and are ignored, in a lenient job."""


def chosen_schema(wanted: list[Wanted], tools: bool, lenient: bool) -> Chosen:
    """The schema of a turn, or the fields that are ignored instead.

    Args:
        wanted: all requests for JSON in the body.
        tools: whether the model may call a tool.
        lenient: ignore requests for JSON, so that the turn is trained.

    Raises:
        GatewayError: there is more than one request for JSON, the model may call a tool, or the schema is
            refused.
    """
    if not wanted or lenient:
        return Chosen(ignored=tuple(dict.fromkeys(one.name for one in wanted)))
    first, *more = wanted
    if more:
        raise bad(more[0].name, f"was sent together with {first.name}; send one of them, best as {STANDARD}")
    if tools:
        raise bad(
            first.name,
            "a schema would hide calls of the tools on offer; send it without tools or with tool_choice "
            "none, or ignore it with spec.agent.lenient: true",
            UNSUPPORTED,
        )
    schema = ANY_OBJECT if first.schema is None else schemas.text(first.schema, first.at)
    return Chosen(schema, first.name)


def of_chat(body: Mapping[str, Any], asked: ResponseFormat | None, *, lenient: bool = False) -> list[Wanted]:
    """The requests for JSON in the body of a chat completion or a completion.

    Raises:
        GatewayError: a request for JSON is malformed, or uses a constraint that is not a JSON schema. A
            lenient job accepts such constraints in `structured_outputs` and `guided_decoding`.
    """
    found = []
    if asked is not None and asked.type != "text":
        found.append(_response_format(asked))
    found += [
        Wanted(name, name, _read(body[name], name))
        for name in ("guided_json", "json_schema")
        if body.get(name) is not None
    ]
    if (ollama := body.get("format")) not in (None, ""):
        found.append(Wanted("format", "format", None if ollama == "json" else ollama))
    for name in ("structured_outputs", "guided_decoding"):
        found += _structured(body.get(name), name, lenient)
    return found


def _response_format(asked: ResponseFormat) -> Wanted:
    """The schema of `response_format`, in any of the fields that may have it."""
    name, named = "response_format", asked.json_schema
    if named is not None and asked.plain is not None:
        raise bad(f"{name}.schema", f"was sent together with json_schema; send one of them: {STANDARD}")
    if named is not None:
        return Wanted(name, f"{name}.json_schema.schema", named.json_schema)
    if asked.plain is not None:
        return Wanted(name, f"{name}.schema", asked.plain)
    if asked.type == "json_schema":
        raise bad(f"{name}.json_schema", f"is missing; write {STANDARD}")
    return Wanted(name, name, None)


def of_text(given: TextFormat | None, name: str) -> list[Wanted]:
    """The requests for JSON in the body of Responses or Messages.

    Raises:
        GatewayError: the schema is missing.
    """
    if given is None or given.type == "text":
        return []
    if given.type == "json_object" and given.json_schema is None:
        return [Wanted(name, name, None)]
    if given.json_schema is None:
        raise bad(f"{name}.schema", "is missing: the JSON schema of the answer")
    return [Wanted(name, f"{name}.schema", given.json_schema)]


def _structured(given: object, at: str, lenient: bool) -> Iterator[Wanted]:
    """The requests for JSON in vLLM's `structured_outputs`, or in its predecessor `guided_decoding`."""
    if given is None or given == {}:
        return
    if not isinstance(given, dict):
        raise bad(at, f"must be an object; better: {STANDARD}")
    kept = {name: value for name, value in given.items() if value not in (None, False)}
    for name in kept:
        if name not in ("json", "json_object"):
            if lenient:
                yield Wanted(at, at, None)
                return
            raise bad(f"{at}.{str(name)[:60]}", f"is not applied: {WRITE}", UNSUPPORTED)
    if kept.get("json_object") not in (None, True):
        raise bad(f"{at}.json_object", "must be true, or be left out")
    if "json" in kept:
        yield Wanted(at, f"{at}.json", _read(kept["json"], f"{at}.json"))
    if "json_object" in kept:
        yield Wanted(at, f"{at}.json_object", None)


def _read(given: object, at: str) -> object:
    """A schema, parsed if the client sent it as text."""
    if not isinstance(given, str):
        return given
    try:
        return json_within(given, bounds.SCHEMA, depth=schemas.MAX_DEPTH, values=schemas.MAX_VALUES)
    except OutOfBoundsError as error:
        raise bad(at, f"cannot be read: {error}; send a JSON schema as an object") from error
