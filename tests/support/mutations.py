"""Invalid custom resources: valid manifests with a few random changes, as JSON text.

They are text because Python objects cannot express some of them, such as very deep nesting or huge numbers.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, Final

from headway_api.document import Json

Position = tuple[Any, Any]
"""A list or an object, and an index or key of it."""

DEEP: Final = "DEEP"
FREE_FORM: Final = ("config", "contract", "args", "podTemplate")
"""Fields whose content has no schema."""
RAW: Final = (
    "1e400", "-0", "99999999999999999999999", "0.1", "1e-9", '"\\ud800"', '"\\u0000"', "[[[]]]", "{}",
)  # fmt: skip
"""JSON texts that are inserted unchanged."""
ODD: Final = (
    None, True, 0, -1, 2**31, 2**63, 1.5, "", " ", "a" * 300, "x" * 20_000, "é☃\u202e", "../..", "s3://", "http://[::",
    "1" * 40, "0x10", "NaN", "9e99", "-5Gi", "null", "{{ .x }}", "$(A)", [], [None], [[]], {}, {"a": None},
    {"": ""},
)  # fmt: skip


def mutated(chance: random.Random, valid: Json) -> str:
    """A copy of a valid manifest with one to three changes, as JSON text."""
    body = copy.deepcopy(valid)
    raw: dict[str, str] = {}
    for number in range(chance.randint(1, 3)):
        chance.choice(CHANGES)(chance, body, raw, number)
    text = json.dumps(body)
    for mark, value in raw.items():
        text = text.replace(json.dumps(mark), value)
    return text


def _places(body: Any) -> list[Position]:
    """Every position in the spec, at any depth."""
    found: list[Position] = []
    waiting = [body["spec"]] if isinstance(body.get("spec"), dict) else []
    while waiting:
        parent = waiting.pop()
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        found += [(parent, key) for key in keys if key != "managedBy"]
        waiting += [parent[key] for key in keys if isinstance(parent[key], dict | list)]
    return found


def _free(chance: random.Random, body: Json) -> Position | None:
    """A position in the spec whose content has no schema; None if none is left."""
    found = [(parent, key) for parent, key in _places(body) if isinstance(parent, dict) and key in FREE_FORM]
    return chance.choice(found) if found else None


def _replace(chance: random.Random, body: Json, raw: dict[str, str], number: int) -> None:
    parent, key = chance.choice(_places(body))
    parent[key] = copy.deepcopy(chance.choice(ODD))


def _remove(chance: random.Random, body: Json, raw: dict[str, str], number: int) -> None:
    parent, key = chance.choice(_places(body))
    del parent[key]


def _add(chance: random.Random, body: Json, raw: dict[str, str], number: int) -> None:
    parent, _ = chance.choice(_places(body))
    if isinstance(parent, dict):
        parent[chance.choice(["podTemplate", "x", "config", "spec", "", "a.b", "__proto__"])] = chance.choice(
            ODD
        )
    else:
        parent.append(copy.deepcopy(chance.choice(ODD)))


def _swap(chance: random.Random, body: Json, raw: dict[str, str], number: int) -> None:
    (one, key), (other, place) = chance.choice(_places(body)), chance.choice(_places(body))
    one[key] = copy.deepcopy(other[place])


def _nest(chance: random.Random, body: Json, raw: dict[str, str], number: int) -> None:
    levels = chance.choice([1, 15, 16, 17, 31, 33, 100, 1200, 5000])
    opens, closes = chance.choice([('{"a":', "}"), ("[", "]"), ('[{"b":', "}]")])
    raw[f"{DEEP}{number}"] = '{"c":' + opens * levels + "1" + closes * levels + "}"
    free = _free(chance, body)
    parent, key = free if free is not None and chance.random() < 0.5 else chance.choice(_places(body))
    parent[key] = f"{DEEP}{number}"


def _crowd(chance: random.Random, body: Json, raw: dict[str, str], number: int) -> None:
    free = _free(chance, body)
    in_free = free is not None and chance.random() < 0.7
    # In a list with a schema, the API server compares each fault with all others: 50,000 take a minute.
    many = chance.choice([200, 300, 5000, 50_000] if in_free else [200, 300, 5000])
    made = chance.choice([[{}] * many, [0] * many, {f"k{place}": place for place in range(many)}])
    if in_free and free is not None:
        parent, key = free
        parent[key] = {"many": made}
    else:
        parent, key = chance.choice(_places(body))
        parent[key] = made


def _write(chance: random.Random, body: Json, raw: dict[str, str], number: int) -> None:
    parent, key = chance.choice(_places(body))
    parent[key] = f"RAW{number}"
    raw[f"RAW{number}"] = chance.choice(RAW)


def _metadata(chance: random.Random, body: Json, raw: dict[str, str], number: int) -> None:
    metadata = body["metadata"]
    key, value = chance.choice(
        [
            ("labels", {"headway.dev/job-uid": "x"}),
            ("annotations", {"headway.dev/remedy": "x" * 5000}),
            ("annotations", {"headway.dev/resume": "never"}),
            ("annotations", {"kopf.zalando.org/last-handled-configuration": "[" * 9000}),
            ("finalizers", ["example.org/stay"]),
            ("ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]),
            ("generateName", "x"),
            ("labels", {"a": None}),
        ]
    )
    metadata[key] = copy.deepcopy(value)


Change = Callable[[random.Random, Json, dict[str, str], int], None]
CHANGES: Final[tuple[Change, ...]] = (
    _replace, _replace, _replace, _remove, _add, _swap, _nest, _crowd, _write, _metadata,
)  # fmt: skip
