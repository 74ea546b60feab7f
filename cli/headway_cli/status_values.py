"""Reads values of a status that another version of Headway may have written. Pure.

A value of an unexpected type, or a number that is not finite, counts as absent. No function here raises.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

from headway_api.document import Json

MAX_COUNT: Final = 2**63 - 1
"""The largest integer of the API."""
MAX_DIGITS: Final = 18
"""Maximum characters of a number that is shown as written. A longer number is rounded to six digits."""
UNKNOWN: Final = "-"
"""Text that is shown for an unknown number."""
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def block(value: object, *keys: str) -> Json:
    """The JSON object below these keys of `value`; empty if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Json]:
    """The JSON objects in a list; empty if `value` is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def words(value: object) -> list[str]:
    """The texts in a list; empty if `value` is no list."""
    return [found for each in value if (found := text(each))] if isinstance(value, list) else []


def text(value: object) -> str:
    """A text in one line, without control characters, which a terminal would obey; empty if it is no text."""
    if not isinstance(value, str):
        return ""
    return " ".join("".join(each if each.isprintable() else " " for each in value).split())


def count(value: object) -> int | None:
    """A whole number of 0 or more; None for any other value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    return value if known and isinstance(value, int) else None


def number(value: object) -> float | None:
    """A finite number, from a JSON number or from text; None for any other value."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        return None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def number_text(value: object) -> str:
    """A number as text: as written, or rounded if it is too long; `-` if it is no number."""
    found = number(value)
    if found is None:
        return UNKNOWN
    written = f"{int(value):,}" if isinstance(value, str) and value.isdigit() else str(value)
    return written if len(written) <= MAX_DIGITS else f"{found:.6g}"


def whole(value: object) -> str:
    """A count as text, with separated thousands; `-` if it is no count."""
    found = count(value)
    return UNKNOWN if found is None else f"{found:,}"


def moment(value: object) -> datetime | None:
    """A time in ISO 8601, as the API writes it; UTC if it has no zone. None if it is no time."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def seconds_between(earlier: datetime | None, later: datetime) -> float | None:
    """Seconds from `earlier` to `later`; None if `earlier` is not known, or is the later one."""
    if earlier is None:
        return None
    try:
        found = (later - earlier).total_seconds()
    except OverflowError:  # a zone can move the year 1 or 9999 out of range
        return None
    return found if found >= 0 else None


def duration(seconds: float) -> str:
    """A duration as text, in its largest one or two units: 45 s, 12 min, 2 h 5 min, 3 d 4 h."""
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days, rest = divmod(round(minutes / 60), 24)
    return f"{days} d {rest} h" if rest else f"{days} d"
