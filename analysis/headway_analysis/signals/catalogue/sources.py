"""Sources of thresholds, and a place to look at, which descriptions of several signals quote."""

from typing import Final

GUIDE: Final = "Best practices for multi-turn reinforcement learning in Amazon SageMaker AI (July 2026)"
SERIES: Final = "Recorded runs of tests/signals"
TRAJECTORIES: Final = (
    "Trajectories of the last batches, in `trajectories/` of the job's folder: read ten of them."
)
