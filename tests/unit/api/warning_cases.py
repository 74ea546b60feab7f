"""The table of warnings as objects, for tests of the models and of an API server."""

from __future__ import annotations

from typing import Any

import yaml
from refusal_cases import HERE, SMALLEST, changed

WARNINGS: list[dict[str, Any]] = yaml.safe_load((HERE / "warnings.yaml").read_text())
QUIET = changed(SMALLEST, {"spec.rollout": {"sampling": {"maxTokens": 2048}}})
"""A job without any warning."""
