"""Six jobs that differ in what changes a bill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headway_api.document import Json


@dataclass(frozen=True)
class Job:
    """One job whose estimate is compared with its cost."""

    name: str
    about: str
    """How this job differs from the others."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Merged over the demo's spec and `SMALL`."""
    lost: float = 0.0
    """Share of sandboxes that break off."""
    judge: str = "own"
    """How the desk rewards: a name of `tests.signals.judges`."""
    played: bool = False
    """Whether a script plays model and environment (`spoken.py`). If not, they are the demo's."""


SMALL: Final[Json] = {
    "model": {"contextLength": 512},
    "agent": {"builtin": {"maxTurns": 6}},
    "algorithm": {"batchSize": 4, "groupSize": 6, "maxStepsOffPolicy": 1},
    "optimizer": {"learningRate": 1e-3},
    "schedule": {"maxSteps": 12, "maxEpochs": 4},
    "rollout": {"maxRetries": 2, "maxConcurrency": 48, "timeoutSeconds": 600},
    "evaluation": {"everySteps": 4, "maxRows": 24},
    "preflight": {"policy": "Warn", "episodes": 72},
}
"""Merged over the demo's job, so that a step takes a second or two on one core."""

JOBS: Final = (
    Job("small-groups", "LoRA, 6 prompts x 4 episodes", {"algorithm": {"batchSize": 6, "groupSize": 4}}),
    Job(
        "large-groups",
        "LoRA, 3 prompts x 8 episodes, no validation, two steps ahead",
        {
            "algorithm": {"batchSize": 3, "groupSize": 8, "maxStepsOffPolicy": 2, "sampler": "windowed"},
            "evaluation": {"everySteps": 0, "atStart": False},
        },
    ),
    Job(
        "few-turns",
        "LoRA, 4 turns at most, graded rewards, two tries on each held-out row, every 2 steps",
        {
            "agent": {"builtin": {"maxTurns": 4}},
            "evaluation": {"everySteps": 2, "groupSize": 2, "sampling": {"temperature": 1.0}, "passK": [1]},
        },
        judge="graded",
    ),
    Job(
        "full-weights",
        "every weight is trained, rewards are graded, validation at the start and the end",
        {
            "model": {"full": {}},
            "optimizer": {"learningRate": 2e-4},
            "evaluation": {"everySteps": 12},
        },
        judge="graded",
    ),
    Job(
        "faults",
        "LoRA, one sandbox in 15 breaks off, and a test split of 32 rows",
        {"data": {"test": {"uri": "test"}}},
        lost=1 / 15,
    ),
    Job(
        "other-environment",
        "a played model whose answers grow by 2 % a step, in another environment",
        {
            "algorithm": {"batchSize": 6, "groupSize": 4},
            "schedule": {"maxSteps": 20},
            "evaluation": {"everySteps": 5},
        },
        played=True,
    ),
)
