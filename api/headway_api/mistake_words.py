"""Describes one fault that pydantic found in a value: what is wrong, and what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from headway_api.bounds import shortened
from headway_api.field_types import DECIMAL_PATTERN, MONEY_PATTERN, QUANTITY_PATTERN

CHARACTERS: Final = 40
"""Maximum characters of a value that a message repeats."""
YAML_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that YAML does not read as text, in upper or lower case."""
OWN: Final = "Value error, "
"""What pydantic puts before the message of a rule."""
QUOTED: Final = re.compile(r"'([^']*)'")

FIELDS, LIST, TEXT = "write fields below it", "write a list", "write text"
WHOLE, NUMBER, SWITCH = "write a whole number", "write a number", "write true or false"
WRITE: Final[Mapping[str, str]] = {
    "string_type": TEXT,
    "int_type": WHOLE,
    "int_parsing": WHOLE,
    "int_from_float": WHOLE,
    "int_parsing_size": WHOLE,
    "float_type": NUMBER,
    "float_parsing": NUMBER,
    "finite_number": "write a finite number",
    "bool_type": SWITCH,
    "bool_parsing": SWITCH,
    "dict_type": FIELDS,
    "model_type": FIELDS,
    "model_attributes_type": FIELDS,
    "list_type": LIST,
    "tuple_type": LIST,
}
"""pydantic's type of a fault -> what to write instead."""
FORMS: Final[Mapping[str, str]] = {
    QUANTITY_PATTERN: "write a quantity, such as 500m, 2 or 16Gi",
    MONEY_PATTERN: 'write an amount of 0 or more, such as "12.50"',
    DECIMAL_PATTERN: 'write a decimal number, such as "0.5"',
}
"""Pattern of a text -> what to write, if an example says more than the pattern."""
BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than_equal": ("ge", "write {} or more"),
    "greater_than": ("gt", "write more than {}"),
    "less_than_equal": ("le", "write {} or less"),
    "less_than": ("lt", "write less than {}"),
}
SIZES: Final[Mapping[str, tuple[str, str]]] = {
    "too_short": ("min_length", "write {} or more"),
    "too_long": ("max_length", "write {} at most"),
    "string_too_short": ("min_length", "write {} characters or more"),
    "string_too_long": ("max_length", "write {} characters at most"),
}


def message(fault: Mapping[str, Any]) -> str:
    """The message of a rule, without pydantic's prefix. For other faults, pydantic's own message."""
    return str(fault["msg"]).removeprefix(OWN)


def sentence(field: str, fault: Mapping[str, Any]) -> str:
    """The fault of a field as one sentence. `fault` is an entry of `ValidationError.errors()`."""
    kind = str(fault["type"])
    if kind == "missing":
        return f"{field} is missing: write it"
    known = fix(kind, fault.get("ctx") or {}, fault.get("input"))
    if known is not None:
        return f"{field} {_is(kind, fault)}: {known}"
    text = message(fault)
    return text if field in text else f"{field}: {text}"


def remedy(fault: Mapping[str, Any]) -> str:
    """What to write instead, for a sentence that already names the value. If `fix` has no answer, the fault's
    own message."""
    return fix(str(fault["type"]), fault.get("ctx") or {}, fault.get("input")) or message(fault)


def fix(kind: str, context: Mapping[str, Any], given: object) -> str | None:
    """What to write instead; None if only the fault's own message can say it."""
    if kind in ("literal_error", "enum"):
        return f"write {QUOTED.sub(_as_yaml, str(context['expected']))}"
    if kind == "string_type" and isinstance(given, int | float):
        return f'write text, as in "{shown(given)}"'
    if kind == "string_pattern_mismatch":
        return FORMS.get(context["pattern"], f"write what matches {context['pattern']}")
    if kind == "string_too_short" and not given:
        return "write a text that is not empty"
    for words in (BOUNDS, SIZES):
        if kind in words:
            bound, text = words[kind]
            value = context[bound]
            return text.format(int(value) if value == int(value) else value)
    return WRITE.get(kind)


def shown(value: object) -> str:
    """A value from a manifest as a message repeats it: shortened. A list or a block of fields is only named
    as such."""
    if isinstance(value, dict | BaseModel):
        return "a block of fields"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "empty"
    try:
        return shortened(json.dumps(value, ensure_ascii=False), CHARACTERS)
    except (TypeError, ValueError):  # a date, which YAML reads without quotes
        return shortened(str(value), CHARACTERS)


def _is(kind: str, fault: Mapping[str, Any]) -> str:
    count = (fault.get("ctx") or {}).get("actual_length")
    if kind in ("too_short", "too_long") and count is not None:
        return f"has {count} {'entry' if count == 1 else 'entries'}"
    return f"is {shown(fault.get('input'))}"


def _as_yaml(found: re.Match[str]) -> str:
    return f'"{found[1]}"' if found[1].lower() in YAML_WORDS else found[1]
