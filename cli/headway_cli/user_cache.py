"""The folder in which this user's commands keep files that can be downloaded or made again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def user_cache(environ: Mapping[str, str], name: str) -> Path:
    """The cache folder for one kind of content, `headway/NAME` below XDG_CACHE_HOME or `~/.cache`."""
    above = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(above) / "headway" / name
