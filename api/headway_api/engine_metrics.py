"""Reads the named values from vLLM's `/metrics`. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from prometheus_client.parser import text_string_to_metric_families


def read(text: str, names: Collection[str]) -> dict[str, list[float]] | None:
    """Every engine's value of each name; None if one of them is missing or not a number."""
    found: dict[str, list[float]] = {name: [] for name in names}
    starts = tuple(f"{name}{{" for name in names)
    # Only a few of about a thousand lines matter, so the parser gets only these.
    wanted = "\n".join(line for line in text.splitlines() if line.startswith(starts)) + "\n"
    try:
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                found[sample.name].append(sample.value)
    except (ValueError, IndexError, KeyError):  # what the parser raises at an invalid line
        return None
    if not all(values and all(map(math.isfinite, values)) for values in found.values()):
        return None
    return found
