"""Makes the demo's modules importable. They are beside its script and not in a package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "hack" / "demo"))

from headway_demo import quickstart
from headway_demo.settings import Settings

__all__ = ["Settings", "quickstart"]
