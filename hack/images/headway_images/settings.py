"""Folders of the builds, and settings that make builds reproducible."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway")
SUITE = "bookworm"
EPOCH = "1767225600"
"""Time stamp (2026-01-01) for every newer file in a layer, so that builds of the same input are identical."""
