"""Checks JSON schemas that constrain an answer while it is sampled. Pure.

A schema may use only the part of JSON Schema that vLLM's grammar compiler (xgrammar) enforces. Bounds limit
the time of compilation to some 1.5 s (`MAX_LENGTH`).

Unknown agents write the schemas, and the compiler runs inside the rollout server, beside all turns. The
compiler must not get a keyword that it would ignore, or that takes long to compile. So a keyword that is not
in `KEYWORDS` is refused by name. Annotations such as titles are dropped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, nesting, shortened
from headway_coordinator.gateway.refusals import bad

TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
REMARKS: Final = (
    *("$schema", "$id", "$comment", "title", "description", "default", "examples", "discriminator"),
    *("deprecated", "readOnly", "writeOnly"),
)
"""Keywords that do not constrain a value. They are dropped from the schema."""
REFERRED: Final = ("$defs", "definitions")
ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LENGTHS: Final = ("minLength", "maxLength")
COUNTS: Final = (*LENGTHS, "minItems", "maxItems")
KEYWORDS: Final = (
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "format", "$ref"),
    *ALTERNATIVES,
    *NUMBERS,
    *COUNTS,
    *REFERRED,
)
OF_TYPE: Final[dict[str, tuple[str, ...]]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "format"),
}
"""Type -> the keywords that apply to values of that type only."""
OWNERS: Final[dict[str, tuple[str, ...]]] = {
    **{name: (kind,) for kind, names in OF_TYPE.items() for name in names},
    **dict.fromkeys(NUMBERS, ("number", "integer")),
}
"""Keyword -> the types that it applies to."""
FORMATS: Final = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
MAX_DEPTH: Final = 24
"""The deepest nesting of lists and objects."""
MAX_VALUES: Final = 2_000
MAX_PROPERTIES: Final = 100
"""The most properties or definitions that one schema may have."""
MAX_CHOICES: Final = 500
"""The most choices of one enum."""
MAX_ALTERNATIVES: Final = 50
MAX_COUNT: Final = 500
"""The largest value of `minItems` and `maxItems`."""
MAX_LENGTH: Final = 60
"""The largest value of `minLength` and `maxLength`, and the largest `work` of a schema. At a vocabulary of
140,000 tokens, the compiler takes some 1.5 s for that much work."""
WORK: Final = dict.fromkeys(NUMBERS, 2) | {"format": 6}
"""Keyword -> the compiler's work for it. The unit is one character of a limited length, because the compiler
expands each such character."""
MAX_NUMBER: Final = 2**53
INSTEAD: Final = {
    "pattern": "say it in the description, or list the values as an enum",
    "patternProperties": "use properties",
    "propertyNames": "use properties",
    "not": "say what is allowed",
    "uniqueItems": "leave it out, and check it in the environment",
    "multipleOf": "leave it out, and check it in the environment",
    "nullable": 'write {"type": [..., "null"]}',
    "prefixItems": "use an object with properties",
}


def text(schema: object, at: str) -> str:
    """A checked schema as JSON text for the rollout server.

    Args:
        schema: the schema as the agent sent it.
        at: the field of the request that holds the schema.

    Raises:
        GatewayError: answers cannot be sampled under this schema. The message says where and why.
    """
    if not isinstance(schema, dict):
        raise bad(at, 'must be an object, such as {"type": "object", "properties": {...}}')
    try:
        nesting(schema, MAX_DEPTH, MAX_VALUES)
    except OutOfBoundsError as error:
        raise bad(at, f"{error}; send a smaller schema") from error
    reader = _Reader(schema, at)
    found = json.dumps(reader.read(schema, at, root=True), ensure_ascii=False)
    if len(found.encode(errors="replace")) > bounds.SCHEMA:
        raise bad(at, f"has more than {bounds.SCHEMA} bytes; send a smaller schema")
    if reader.work > MAX_LENGTH:
        raise bad(
            at,
            f"would take long to compile. Limits of length, each format as {WORK['format']} and each "
            f"minimum or maximum as 2, add up to {reader.work}, more than {MAX_LENGTH}; leave some out",
        )
    reader.require_ends()
    return found


class _Reader:
    """Checks one schema, adds up its work for the compiler, and follows its references."""

    def __init__(self, schema: Mapping[str, Any], at: str) -> None:
        self._at = at
        self._known = {
            f"#/{part}/{name}": schema[part][name]
            for part in REFERRED
            if isinstance(schema.get(part), dict)
            for name in schema[part]
        }
        self.work = 0
        """The compiler's work for the schema so far; see `WORK`."""
        self._leads: dict[str, set[str]] = {}
        """Reference -> the references that its schema has for the same value, not for a property or item."""

    def read(self, schema: object, at: str, *, root: bool = False, within: str = "") -> dict[str, Any]:
        """A checked schema without its annotations.

        `within` is the definition whose value this schema constrains; it is empty for a property or an item.
        """
        if not isinstance(schema, dict):
            raise bad(at, "must be an object")
        found = {name: value for name, value in schema.items() if name not in REMARKS}
        for name in found:
            self._require_known(name, at, root)
        self._require_types(found, at)
        if "$ref" in found:
            found = found | self._reference(found, at, within)
        kept = {name: _checked(name, value, f"{at}.{name}") for name, value in found.items()}
        lengths = sum(value for name, value in kept.items() if name in LENGTHS)
        self.work += lengths + sum(WORK.get(name, 0) for name in kept)
        _require_order(kept, at)
        for part in REFERRED:
            if part in kept:
                kept[part] = {
                    name: self.read(one, f"{at}.{part}.{_short(name)}", within=f"#/{part}/{name}")
                    for name, one in _named(kept[part], f"{at}.{part}").items()
                }
        for name in ALTERNATIVES:
            if name in kept:
                kept[name] = [
                    self.read(one, f"{at}.{name}.{n}", within=within) for n, one in enumerate(kept[name])
                ]
        if "properties" in kept:
            places = _named(kept["properties"], f"{at}.properties").items()
            kept["properties"] = {
                name: self.read(one, f"{at}.properties.{_short(name)}") for name, one in places
            }
        for name in ("items", "additionalProperties"):
            if name in kept and not isinstance(kept[name], bool):
                kept[name] = self.read(kept[name], f"{at}.{name}")
        _require_reachable(kept, at)
        return kept

    def require_ends(self) -> None:
        """Refuse references that form a cycle without a property or an item in it.

        Raises:
            GatewayError: there is such a reference.
        """
        for name in self._leads:
            reached, seen = [name], set[str]()
            while reached:
                for other in self._leads.get(reached.pop(), ()):
                    if other == name:
                        raise bad(
                            self._at, f"{_short(name)} refers to itself without an end; let it end in a value"
                        )
                    if other not in seen:
                        seen.add(other)
                        reached.append(other)

    def _reference(self, found: dict[str, Any], at: str, within: str) -> dict[str, Any]:
        to = found["$ref"]
        if not isinstance(to, str) or to not in self._known:
            raise bad(f"{at}.$ref", "must name an entry of the schema's own $defs, such as #/$defs/Name")
        if set(found) - {"$ref", *REFERRED}:
            raise bad(f"{at}.$ref", "is beside other keywords, which would be ignored; leave those out")
        if within:
            self._leads.setdefault(within, set()).add(to)
        return {"$ref": to}

    def _require_known(self, name: str, at: str, root: bool) -> None:
        if name in REFERRED and not root:
            raise bad(f"{at}.{name}", "is read only at the root of the schema; move it there")
        if name not in KEYWORDS:
            instead = INSTEAD.get(name, f"the keywords are {', '.join(KEYWORDS)}")
            raise bad(f"{at}.{_short(name)}", f"is not supported; {instead}", "unsupported_parameter")

    def _require_types(self, found: Mapping[str, Any], at: str) -> None:
        if "type" not in found:
            beside = [name for names in OF_TYPE.values() for name in names] + list(NUMBERS)
            if (name := next((name for name in found if name in beside), None)) is not None:
                raise bad(f"{at}.type", f"is missing: without it {name} would be ignored")
            return
        given = found["type"]
        types = given if isinstance(given, list) else [given]
        if (
            not types
            or len(types) > len(TYPES)
            or not all(one in TYPES for one in types if isinstance(one, str))
        ):
            raise bad(f"{at}.type", f"must be one of {', '.join(TYPES)}, or a list of them")
        if not all(isinstance(one, str) for one in types) or len(set(types)) < len(types):
            raise bad(f"{at}.type", f"must be one of {', '.join(TYPES)}, or a list of them, each once")
        for name in found:
            if name in OWNERS and not any(kind in types for kind in OWNERS[name]):
                raise bad(f"{at}.{name}", f"does not apply to a value of type {types}; leave it out")


def _checked(name: str, value: Any, at: str) -> Any:
    """Check and return a keyword's value. Schemas in the value are not checked here."""
    if name in COUNTS:
        limit = MAX_LENGTH if name in LENGTHS else MAX_COUNT
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise bad(at, f"must be a whole number from 0 to {limit}; above that, leave it out")
    elif name in NUMBERS:
        if not _is_number(value) or abs(value) > MAX_NUMBER:
            raise bad(at, f"must be a number from -{MAX_NUMBER} to {MAX_NUMBER}")
    elif name == "enum":
        if (
            not isinstance(value, list)
            or not 1 <= len(value) <= MAX_CHOICES
            or not all(map(_is_plain, value))
        ):
            raise bad(at, f"must be a list of 1 to {MAX_CHOICES} strings, numbers, booleans or nulls")
    elif name == "const":
        if not _is_plain(value):
            raise bad(at, "must be a string, number, boolean or null")
    elif name == "format":
        if value not in FORMATS:
            raise bad(
                at, f"must be one of {', '.join(FORMATS)}; or leave it out, and say it in the description"
            )
    elif name == "required":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise bad(at, "must be a list of names")
    elif name == "allOf":
        if not isinstance(value, list) or len(value) != 1:
            raise bad(at, "must be a list of one schema; write more than one as one")
    elif name in ALTERNATIVES and (not isinstance(value, list) or not 1 <= len(value) <= MAX_ALTERNATIVES):
        raise bad(at, f"must be a list of 1 to {MAX_ALTERNATIVES} schemas")
    return value


def _require_order(found: Mapping[str, Any], at: str) -> None:
    """Refuse limits that exclude every value, and keywords that the compiler would ignore beside others."""
    if "integer" in _types(found) and (
        odd := next((name for name in NUMBERS if found.get(name, 0) != math.floor(found.get(name, 0))), None)
    ):
        raise bad(f"{at}.{odd}", "must be a whole number, because the type is integer")
    pairs = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))
    for low, high in pairs:
        if low in found and high in found and found[low] > found[high]:
            raise bad(f"{at}.{low}", f"is above {high}")
    lows = [found[name] for name in ("minimum", "exclusiveMinimum") if name in found]
    highs = [found[name] for name in ("maximum", "exclusiveMaximum") if name in found]
    if lows and highs and not _has_numbers(found, max(lows), min(highs)):
        name = next(name for name in ("exclusiveMinimum", "minimum") if name in found)
        high = next(name for name in ("exclusiveMaximum", "maximum") if name in found)
        raise bad(f"{at}.{name}", f"leaves no number below {high}")
    if "format" in found and ("minLength" in found or "maxLength" in found):
        raise bad(f"{at}.format", "is beside a length, which would be ignored; leave one out")
    exclusive = [name for name in ("enum", "const", *ALTERNATIVES) if name in found]
    others = [name for name in found if name not in ("type", *REFERRED, *exclusive[:1])]
    if exclusive and others:
        raise bad(f"{at}.{others[0]}", f"would be ignored beside {exclusive[0]}; leave one of them out")


def _has_numbers(found: Mapping[str, Any], low: float, high: float) -> bool:
    """Whether a number of the schema's type lies between its largest lower and its smallest upper limit."""
    above, below = found.get("exclusiveMinimum") == low, found.get("exclusiveMaximum") == high
    if "integer" in _types(found):
        return low + above <= high - below
    return low < high or (low == high and not above and not below)


def _require_reachable(found: Mapping[str, Any], at: str) -> None:
    """Refuse an `enum` or `const` value of the wrong type, and a required name without a property."""
    for name in ("enum", "const"):
        values = found.get(name, []) if name == "enum" else [found[name]] if name in found else []
        kinds = _types(found)
        if kinds and (odd := [one for one in values if not _is_of(one, kinds)]):
            raise bad(f"{at}.{name}", f"has {shortened(repr(odd[0]), 60)}, which is not of type {kinds}")
    missing = [name for name in found.get("required", ()) if name not in found.get("properties", {})]
    if missing:
        raise bad(f"{at}.required", f"names {_short(missing[0])!r}, which is not among the properties")


def _named(value: object, at: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MAX_PROPERTIES:
        raise bad(at, f"must be an object of at most {MAX_PROPERTIES} schemas")
    if (long := next((name for name in value if len(name) > bounds.NAME), None)) is not None:
        raise bad(at, f"has a name of more than {bounds.NAME} characters: {_short(long)}")
    return value


def _types(found: Mapping[str, Any]) -> list[str]:
    given = found.get("type", [])
    return given if isinstance(given, list) else [given]


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or _is_number(value)


def _is_of(value: object, kinds: Sequence[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in kinds
    if value is None:
        return "null" in kinds
    if isinstance(value, str):
        return "string" in kinds
    return "number" in kinds or ("integer" in kinds and isinstance(value, int))


def _short(name: str) -> str:
    return shortened(name, 60)
