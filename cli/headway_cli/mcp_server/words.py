"""Error messages of a wrong call: the argument, and what to write. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError

from headway_api.mistakes import mistakes

NEAR = 3
"""Most names that are suggested instead of one that does not exist."""


class ToolWrong(Exception):
    """The call is wrong; the message names the argument and what to write."""


def of_arguments(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong with arguments, each with its name."""
    known = [field.alias or name for name, field in model.model_fields.items()]
    said = "; ".join(mistakes(error, model))
    return f"{said} (arguments: {', '.join(known)})" if known else f"{said} (there are no arguments)"


def meant(name: str, known: Iterable[str]) -> str:
    """Similar names, as the end of a sentence; empty if none is similar."""
    near = get_close_matches(name, [*known], NEAR, 0.5)
    return f"; did you mean {', '.join(near)}?" if near else ""
