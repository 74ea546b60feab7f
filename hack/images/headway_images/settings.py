"""Where things lie, and what makes two builds of the same input alike."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway")
SUITE = "bookworm"
EPOCH = "1767225600"
"""Time stamp of every file in a layer that is newer (2026-01-01): two builds of the same input are alike."""
