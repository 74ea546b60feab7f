"""The fields of a client's request types, at all depths, as plain data.

This module also runs in the environments of other projects' clients, so it imports only the standard library.
`python client_types.py SOURCE KIND,KIND MODULE:NAME,MODULE:NAME` prints the types of requests as JSON. Its
output is `anthropic_types.json`, if the Python is the one that `hack/python/env.py guest anthropic` prints.
"""

from __future__ import annotations

import importlib
import json
import sys
import typing
from collections.abc import Iterator
from typing import Any

Field = dict[str, list[str]]
"""`words`: the strings that a field may be. `parts`: the types of objects that it may be or contain."""
Types = dict[str, dict[str, Field]]
"""Type -> field -> what the field may be."""
SELECTING = ("type", "role")
"""Fields whose value says which kind of object an object is."""
WORDS = 20
"""The words of a field with more than this many, such as names of models, are omitted."""


def described(*roots: str, only: frozenset[str] | None = None) -> Types:
    """All types that a request may contain.

    Args:
        roots: the types of whole requests, as `module:name`.
        only: the kinds of objects to describe; None: all.
    """
    found: Types = {}
    to_do = [_imported(root) for root in roots]
    while to_do:
        kind = to_do.pop()
        if name_of(kind) not in found:
            fields = {name: _leaves(hint, only) for name, hint in sorted(_hints(kind).items())}
            found[name_of(kind)] = {name: _field(some) for name, some in fields.items()}
            to_do += [leaf for some in fields.values() for leaf in some if not isinstance(leaf, str)]
    return {name: found[name] for name in sorted(found)}


def leaves(hint: Any) -> Iterator[Any]:
    """The literal strings and the types of objects in a type, also in its alternatives and elements."""
    if isinstance(hint, type) and (hasattr(hint, "__total__") or hasattr(hint, "model_fields")):
        yield hint
    elif typing.get_origin(hint) is typing.Literal:
        yield from (word for word in typing.get_args(hint) if isinstance(word, str))
    else:
        for one in typing.get_args(getattr(hint, "__value__", hint)):
            yield from leaves(one)


def name_of(kind: Any) -> str:
    """The name of a type with its module, which is unique among the types of one client."""
    return f"{kind.__module__.rpartition('types.')[2]}.{kind.__qualname__}"


def kinds(kind: Any) -> set[str]:
    """The words by which a reader recognizes objects of a type."""
    hints = _hints(kind)
    found = (leaf for name in SELECTING if name in hints for leaf in leaves(hints[name]))
    return {leaf for leaf in found if isinstance(leaf, str)}


def _leaves(hint: Any, only: frozenset[str] | None) -> list[Any]:
    return [one for one in leaves(hint) if only is None or isinstance(one, str) or _taken(kinds(one), only)]


def _taken(words: set[str], only: frozenset[str]) -> bool:
    return not words or bool(words & only)


def _field(found: list[Any]) -> Field:
    words = sorted({leaf for leaf in found if isinstance(leaf, str)})
    parts = sorted({name_of(leaf) for leaf in found if not isinstance(leaf, str)})
    some = {"words": words if len(words) <= WORDS else [], "parts": parts}
    return {name: values for name, values in some.items() if values}


def _hints(kind: Any) -> dict[str, Any]:
    if hasattr(kind, "model_fields"):
        return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    return typing.get_type_hints(kind, include_extras=True)


def _imported(root: str) -> Any:
    module, name = root.split(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    source, chosen, requests = sys.argv[1:]
    kept = {"source": source, "kinds": chosen.split(","), "requests": requests.split(",")}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in kept.items()]
    types = described(*kept["requests"], only=frozenset(kept["kinds"]))
    each = ",\n".join(f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in types.items())
    print("{\n" + ",\n".join([*lines, f'"types": {{\n{each}\n}}']) + "\n}")
