"""Error messages of a wrong call: the argument, and what to write. Pure."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from headway_api.mistakes import mistakes


class InvalidToolCallError(Exception):
    """The call is wrong; the message names the argument and what to write."""


def of_arguments(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong with arguments, each with its name."""
    known = [field.alias or name for name, field in model.model_fields.items()]
    message = "; ".join(mistakes(error, model))
    return f"{message} (arguments: {', '.join(known)})" if known else f"{message} (there are no arguments)"
