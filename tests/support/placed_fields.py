"""Checks that the gateway applies, refuses or lists each field of a client's request, or calls it inert."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from client_types import SELECTING, Types, leaves

from headway_coordinator.gateway.blocks import Block
from headway_coordinator.gateway.neutral import Table
from headway_coordinator.gateway.unapplied import INERT, LISTED

Model = type[Any]


def unplaced(types: Types, request: str, body: Model, table: Table) -> list[str]:
    """The fields and values of a client's requests that the gateway would ignore silently.

    Args:
        types: the client's types.
        request: the type of its whole requests.
        body: the model with which the gateway reads requests.
        table: the fields of the request that the gateway does not apply.
    """
    places = [set(table), set(LISTED), set(INERT)]
    return sorted(set(_of(types, request, body, places, body.__name__, set())))


def _of(
    types: Types, kind: str, model: Model, places: list[set[str]], at: str, done: set[tuple[str, Model]]
) -> Iterator[str]:
    read = fields_of(model)
    for name, about in types[kind].items():
        where = f"{at}.{name}"
        places_of_it = sum(name in place for place in places)
        if places_of_it > 1:
            yield f"{where} is in {places_of_it} places"
        if name not in read:
            if not places_of_it:
                yield f"{where} has no place"
            continue
        found = list(leaves(read[name].annotation))
        words = {leaf for leaf in found if isinstance(leaf, str)}
        if words and name not in SELECTING:
            yield from (f"{where}: {word!r}" for word in about.get("words", ()) if word not in words)
        for part in about.get("parts", ()):
            for taker in (leaf for leaf in found if not isinstance(leaf, str)):
                if takes(taker, types[part]) and (part, taker) not in done:
                    done.add((part, taker))
                    yield from _of(types, part, taker, places_of(taker), where, done)


def takes(model: Model, part: dict[str, dict[str, list[str]]]) -> bool:
    """Whether the gateway reads objects of this kind as `model`. It refuses all other kinds by name."""
    read = fields_of(model)
    for name in SELECTING:
        words = set(part.get(name, {}).get("words", ()))
        found = leaves(read[name].annotation) if name in read else ()
        taken = {leaf for leaf in found if isinstance(leaf, str)}
        if words and taken and not words & taken:
            return False
    return True


def fields_of(model: Model) -> dict[str, Any]:
    """The fields that a model reads, by the names that clients write."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def places_of(model: Model) -> list[set[str]]:
    """The sets of a part's fields that are not applied; empty for a part that accepts any field."""
    if not issubclass(model, Block):
        return []
    return [set(model.UNREAD.refused), set(model.UNREAD.listed), set(model.UNREAD.inert)]
