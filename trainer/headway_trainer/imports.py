"""Imports heavy libraries without the optional packages that they import if installed.

Imports take most of a learner's start-up time. A third of the import time goes to packages that DeepSpeed and
transformers import if they are installed, but that a learner never calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NEVER_CALLED: Final = ("mlflow", "sklearn")
"""Packages to hide. DeepSpeed's autotuner imports mlflow; transformers' assisted generation imports
sklearn."""


@contextmanager
def lean() -> Iterator[None]:
    """Within this context, the packages in `NEVER_CALLED` look as if they were not installed."""
    hidden = [name for name in NEVER_CALLED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
