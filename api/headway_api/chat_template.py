"""What a model's chat template is given, wherever a conversation is rendered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

TODAY: Final = datetime(2024, 7, 26)
"""The date for templates that state it. A prompt must not depend on when it is rendered."""


def object_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """A call's function with an object as its arguments: templates write it as JSON."""
    arguments = function["arguments"]
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
