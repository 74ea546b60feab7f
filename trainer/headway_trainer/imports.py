"""Importing the heavy libraries without what they only look for.

Of the seconds a learner takes to start, most are imports, and of these a third are packages that DeepSpeed
and transformers import where they find them and that a learner never calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NEVER_CALLED: Final = ("mlflow", "sklearn")
"""DeepSpeed's autotuner, transformers' assisted generation."""


@contextmanager
def lean() -> Iterator[None]:
    """While inside, optional packages that a learner never calls count as not installed."""
    hidden = [name for name in NEVER_CALLED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
