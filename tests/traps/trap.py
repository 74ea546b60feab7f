"""What a trap is: one clean task with exactly one fault, and the check that is to name it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway_analysis.preflight.evidence import AskedTwice, Probe

TASKS = Path(__file__).parent / "tasks"
"""Where the environments are: modules that a sandbox's server imports by their names."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A clean task."""

    name: str
    entrypoint: str
    rows: Callable[[Sequence[int]], list[Row]]
    prompt_column: str = "prompt"
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of `headway_analysis.preflight.evidence.Facts`, where they are not the defaults."""
    folders: tuple[Path, ...] = ()
    """Where its environment is, beside `TASKS`."""

    def split(self, seed: int) -> tuple[list[Row], list[Row], list[Row]]:
        """Rows to train, validate and test on, drawn by the seed; none is in two of them."""
        numbers = random.Random(f"{self.name}/{seed}").sample(range(5000), 160)
        return self.rows(numbers[:120]), self.rows(numbers[120:140]), self.rows(numbers[140:])


Splits = tuple[list[Row], list[Row], list[Row]]


def unchanged(splits: Splits) -> Splits:
    """The rows of the clean task."""
    return splits


@dataclass(frozen=True)
class Trap:
    """A task with one fault."""

    name: str
    check: str
    """Id of the check that is to name it, by Warn or by Fail."""
    says: str
    """What the fault is, in one sentence."""
    task: Task
    entrypoint: str | None = None
    """Of the faulty environment; None: that of the task."""
    rows: Callable[[Splits], Splits] = unchanged
    """Where the fault is in the data."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where it is in the job."""
    skill: float | None = None
    """Where it is in the base model: how often it knows a field; None: as of any model that may learn."""
    habit: str = ""
    """Where it is in how the base model speaks: see `pupils`."""
    episodes: int | None = None
    """So many, all at once, where one takes long by doing nothing; None: as many as of any trap."""
    probes: tuple[Probe, ...] = ()
    """Where it is in the cluster: what its sandboxes reached."""
    asked_twice: tuple[AskedTwice, ...] = ()
    """Where it is in a judge: what it answered to questions that were put twice."""
    shared_folder: bool = False
    """Whether the environment is configured with a folder that all its episodes share."""
