"""How much a model thinks, by the variables that change what its chat template writes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

EFFORTS: Final = ("none", "on", "minimal", "low", "medium", "high", "xhigh")
"""`none` and `on` are a switch, the others levels."""
SWITCHES: Final = ("enable_thinking", "thinking")
LEVEL: Final = "reasoning_effort"

Variables = Mapping[str, Any]
RenderText = Callable[[Variables], str]
"""A probe's conversation, rendered by a template with these variables."""


def variables(effort: str) -> dict[str, Any]:
    """The variables of a template for an effort."""
    if effort in ("none", "on"):
        return dict.fromkeys(SWITCHES, effort == "on")
    return {LEVEL: effort}


def _other(effort: str) -> str:
    return {"none": "on", "on": "none", "low": "high"}.get(effort, "low")


def chosen(render_text: RenderText, effort: str) -> dict[str, Any] | None:
    """The variables that make a template write for `effort`, or an empty dict if it does so anyway.

    None if it writes the same for all values, or does not take this one.
    """
    given = variables(effort)
    try:
        text = render_text(given)
        if text == render_text(variables(_other(effort))):
            return None
        return {} if text == render_text({}) else given
    except Exception:  # a template raises what its author chose
        return None
