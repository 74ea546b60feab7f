"""What is known of the recorded runs beside their figures: why some are missed, and what was replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headway_api.signals import SignalName

MISSED: Final[Mapping[tuple[str, SignalName], str]] = {
    ("late-some", SignalName.EPISODES_TIMED_OUT): "7 % of 320 episodes are not surely over 5 %",
    ("late-again", SignalName.EPISODES_TIMED_OUT): (
        "5.4 % of 352 episodes are not surely over 5 %, which is the rate that the run was given"
    ),
    ("collapse-ppo", SignalName.GRADIENT_SPIKING): (
        "the norm is known for one step alone: from the next one on no group has an advantage, and no step "
        "is taken. RewardCollapsed and NothingToTrain are raised three steps later"
    ),
    ("spike-scale-again", SignalName.GRADIENT_SPIKING): (
        "the norm is six times as large and still below gradientClip, which the signal takes for harmless; "
        "later it is above for a step at a time"
    ),
}
"""Symptoms that are not raised in time, and why."""
FOUND_ONCE: Final[Mapping[SignalName, str]] = {
    SignalName.EPISODES_TIMED_OUT: "two of its three runs are too near to its 5 %",
}
"""Signals that are not found in two runs, and why."""
FALSE: Final[Mapping[tuple[str, SignalName], str]] = {
    ("clean-023", SignalName.ENTROPY_RISING): (
        "it is so for three steps, and the reward falls from 0.93 to 0.61. It comes back before the next "
        "validation, so that the run counts as clean"
    ),
    ("clean-040", SignalName.SCORE_PARTED): (
        "the luck of 20 groups, whose reward moves less than their score: both fall, the score further. The "
        "signal does not ask for a reward that rises"
    ),
    ("clean-108", SignalName.REWARD_ONE_SIDED): (
        "the luck of about three groups of four a step: from step to step the share is 20 to 100 %"
    ),
    ("clean-120", SignalName.SCORE_PARTED): "as in clean-040",
}
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
