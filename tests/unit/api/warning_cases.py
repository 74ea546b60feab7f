"""The table of warnings, as objects to send to the models and to an API server."""

from __future__ import annotations

from typing import Any

import yaml
from refusal_cases import HERE, SMALLEST, changed

WARNINGS: list[dict[str, Any]] = yaml.safe_load((HERE / "warnings.yaml").read_text())
QUIET = changed(SMALLEST, {"spec.rollout": {"sampling": {"maxTokens": 2048}}})
"""A job that nobody is warned of."""
