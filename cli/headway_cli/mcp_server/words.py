"""Error messages about wrong arguments of a tool. Pure."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from headway_api.mistakes import mistakes


class InvalidToolCallError(Exception):
    """The call is wrong; the message names the argument and what to write."""


def of_arguments(error: ValidationError, model: type[BaseModel]) -> str:
    """A message that says which arguments are wrong and why, and lists the tool's arguments."""
    known = [field.alias or name for name, field in model.model_fields.items()]
    message = "; ".join(mistakes(error, model))
    return f"{message} (arguments: {', '.join(known)})" if known else f"{message} (there are no arguments)"
