"""Imports the heavy libraries without optional packages that they only look for.

Most of the seconds that a learner takes to start are imports. A third of these are packages that DeepSpeed
and transformers import if they find them, and that a learner never calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NEVER_CALLED: Final = ("mlflow", "sklearn")
"""For DeepSpeed's autotuner and transformers' assisted generation."""


@contextmanager
def lean() -> Iterator[None]:
    """Within this context, optional packages that a learner never calls count as not installed."""
    hidden = [name for name in NEVER_CALLED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
