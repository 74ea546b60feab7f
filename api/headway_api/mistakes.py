"""Mistakes in a job's manifest, one sentence each: the field, what is wrong, what to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from headway_api import mistake_words
from headway_api.bounds import shortened
from headway_api.crd import structural

FIELD_CHARACTERS = 60
"""Maximum characters of a field's name that a message repeats."""


def mistakes(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Every mistake that `model` found in a manifest."""
    return tuple(_sentence(each, model) for each in error.errors(include_url=False))


def _sentence(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    path = ".".join(shortened(str(part), FIELD_CHARACTERS) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{path}: there is no such field{_meant(error['loc'], model)}"
    return mistake_words.sentence(path or "the file", error)


def _meant(place: Sequence[int | str], model: type[BaseModel]) -> str:
    """Which field of the same block the user may have meant."""
    *block, unknown = place
    known = _fields(block, model)
    by_letters = {name.lower().replace("_", ""): name for name in known}
    near = get_close_matches(str(unknown).lower().replace("_", ""), by_letters, n=1)
    if near:
        return f"; did you mean {by_letters[near[0]]}?"
    return f"; there are {', '.join(known)}" if known else ""


def _fields(block: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    """Names of the fields of a block, as a manifest writes them."""
    schema = model.model_json_schema()
    node = structural(schema, schema.get("$defs", {}), "")
    for part in block:
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
    return sorted(node.get("properties", {}))
