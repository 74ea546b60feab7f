"""What is known of the recorded runs beside their figures: why some are missed, and what was replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headway_api.signals import SignalName

MISSED: Final[Mapping[tuple[str, SignalName], str]] = {
    ("late-some", SignalName.EPISODES_TIMED_OUT): "7 % of 320 episodes are not surely over 5 %",
}
"""Symptoms that are not raised in time, and why."""
FALSE: Final[Mapping[tuple[str, SignalName], str]] = {}
"""Alarms of clean runs, and why."""
LATER: Final = ("clean-039", "clean-040")
"""Runs of the split `chosen_on` that were recorded after thresholds had been chosen."""
REPLACED: Final[Mapping[str, tuple[str, str, str]]] = {
    "entropy-bonus-again": (
        "seed 62",
        "its entropy rises in single steps alone; from step 20 on the reward is 0",
        "seed 162",
    ),
    "repetitive-again": ("seed 94", "no turn repeats anything in any of its 32 steps", "seed 194"),
}
"""By name of the run: what it was at first, what was seen of it, what it is now."""
