"""Finds the variables with which a chat template asks the model to think more or less. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

EFFORTS: Final = ("none", "on", "minimal", "low", "medium", "high", "xhigh")
"""How much a model should think. `none` and `on` are positions of a switch, the others are levels."""
SWITCHES: Final = ("enable_thinking", "thinking")
LEVEL: Final = "reasoning_effort"

Variables = Mapping[str, Any]
RenderText = Callable[[Variables], str]
"""Renders a test conversation with the given template variables."""


def variables(effort: str) -> dict[str, Any]:
    """The template variables that ask for an effort."""
    if effort in ("none", "on"):
        return dict.fromkeys(SWITCHES, effort == "on")
    return {LEVEL: effort}


def _other(effort: str) -> str:
    return {"none": "on", "on": "none", "low": "high"}.get(effort, "low")


def chosen(render_text: RenderText, effort: str) -> dict[str, Any] | None:
    """The variables with which a template asks for `effort`; empty if it does so without variables.

    None if the template renders the same prompt for another effort, or raises an error for this one.
    """
    given = variables(effort)
    try:
        text = render_text(given)
        if text == render_text(variables(_other(effort))):
            return None
        return {} if text == render_text({}) else given
    except Exception:  # a template raises whatever its author chose
        return None
