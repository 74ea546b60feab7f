"""Where this user's commands keep what can be fetched or made again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def user_cache(environ: Mapping[str, str], name: str) -> Path:
    """Folder of one kind of content, such as `vllm` in `~/.cache/headway`."""
    above = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(above) / "headway" / name
