"""The keys of the job under test. All differ, so that a request with the wrong key is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headway_api.keys import HELD_BY, Key, Keys

KEYS: Final[Keys] = {key: f"the-key-{key}-of-this-job" for key in Key}
TO_COORDINATOR: Final = KEYS[Key.LEARNER_TO_COORDINATOR]
TO_ROLLOUT: Final = KEYS[Key.COORDINATOR_TO_ROLLOUT]
TO_JUDGE: Final = KEYS[Key.COORDINATOR_TO_JUDGE]
TO_BROKER: Final = KEYS[Key.COORDINATOR_TO_BROKER]
TO_LEARNER: Final = KEYS[Key.ROLLOUT_TO_LEARNER]
LEASES: Final = KEYS[Key.LEASES]
CHECKPOINTS: Final = KEYS[Key.CHECKPOINTS]


def written(folder: Path, role: str) -> Path:
    """Write the keys of `role` to a folder, as its pods mount it; returns the folder."""
    place = folder / "keys"
    place.mkdir(parents=True, exist_ok=True)
    for key in HELD_BY[role]:
        (place / key).write_text(KEYS[key] + "\n")
    return place
