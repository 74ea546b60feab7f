"""How much a model thinks, as chat templates know it: by the variables that change what one writes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

EFFORTS: Final = ("none", "on", "minimal", "low", "medium", "high", "xhigh")
"""`none` and `on` are a switch, the others levels."""
SWITCHES: Final = ("enable_thinking", "thinking")
LEVEL: Final = "reasoning_effort"

Variables = Mapping[str, Any]
Said = Callable[[Variables], str]
"""A probe's conversation by a template that is given these variables."""


def variables(effort: str) -> dict[str, Any]:
    """What a template is given."""
    if effort in ("none", "on"):
        return dict.fromkeys(SWITCHES, effort == "on")
    return {LEVEL: effort}


def _other(effort: str) -> str:
    return {"none": "on", "on": "none", "low": "high"}.get(effort, "low")


def chosen(said: Said, effort: str) -> dict[str, Any] | None:
    """The variables that have a template write for `effort`: none where it does so anyway. None where it
    writes the same whatever it is given, or takes no such value."""
    given = variables(effort)
    try:
        text = said(given)
        if text == said(variables(_other(effort))):
            return None
        return {} if text == said({}) else given
    except Exception:  # a template raises what its author chose
        return None
