"""Inputs of a model's chat template. They are the same wherever a conversation is rendered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

TODAY: Final = datetime(2024, 7, 26)
"""The date for templates that state it. A prompt must not depend on when it is rendered."""


def object_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """The function of a tool call, with its arguments as an object. Templates write this object as JSON."""
    arguments = function["arguments"]
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
