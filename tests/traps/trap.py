"""A trap: one clean task with exactly one fault, and the check that must find it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway_analysis.preflight.evidence import AskedTwice, Probe

TASKS = Path(__file__).parent / "tasks"
"""The folder of the environments. They are modules that a sandbox's server imports by name."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A clean task."""

    name: str
    entrypoint: str
    rows: Callable[[Sequence[int]], list[Row]]
    prompt_column: str = "prompt"
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `headway_analysis.preflight.evidence.Facts` that differ from the defaults."""
    folders: tuple[Path, ...] = ()
    """Folders of its environment besides `TASKS`."""

    def split(self, seed: int) -> tuple[list[Row], list[Row], list[Row]]:
        """Disjoint rows for training, validation and test, drawn by the seed."""
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
    """Id of the check that must find the fault, by Warn or by Fail."""
    says: str
    """What the fault is, in one sentence."""
    task: Task
    entrypoint: str | None = None
    """Entrypoint of the faulty environment. None: the task's own."""
    rows: Callable[[Splits], Splits] = unchanged
    """Puts the fault into the data."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the job that make the fault."""
    skill: float | None = None
    """A fault of the base model: how often it knows a field. None: as often as a model that can learn."""
    habit: str = ""
    """A fault in how the base model writes: see `pupils`."""
    episodes: int | None = None
    """How many episodes to play, all at once, if one takes long by waiting. None: as many as for any trap."""
    probes: tuple[Probe, ...] = ()
    """A fault of the cluster: what its sandboxes reached."""
    asked_twice: tuple[AskedTwice, ...] = ()
    """A fault of a judge: its answers to questions that were asked twice."""
    shared_folder: bool = False
    """Whether the environment's configuration names a folder that all episodes share."""
