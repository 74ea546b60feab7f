"""The keys of the job under test, each another one: what holds the wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headway_api.keys import HELD_BY, Key, Keys

KEYS: Final[Keys] = {key: f"the-key-{key}-of-this-job" for key in Key}


def written(folder: Path, role: str) -> Path:
    """A folder as the pods of `role` mount it."""
    place = folder / "keys"
    place.mkdir(parents=True, exist_ok=True)
    for key in HELD_BY[role]:
        (place / key).write_text(KEYS[key] + "\n")
    return place
