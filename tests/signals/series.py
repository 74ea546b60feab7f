"""A run's recorded metrics, and their storage: a compressed CSV file for a run, and facts about it as JSON.

It imports the standard library and the contracts only, so readers of the series need no torch.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from headway_api.signals import SignalName

FOLDER: Final = Path(__file__).parent / "series"
INDEX: Final = "runs.json"
VALIDATION: Final = "val/"
KEPT: Final = ("training/", "rollout/", "analysis/", "staleness/", "episodes/", VALIDATION)
LEFT_OUT: Final = re.compile(
    r"""
    training/(epoch|global_step|num_datums|total_tokens|micro_batches
             |(non)?trainable_token_positions|trainable_token_ratio|obs_tokens_mean|action_tokens_mean
             |datums_per_trajectory|lag_mean|lag_max)
    | .*/logprob/(zero_count|zero_per_group)
    | .*/(tool_calls_of)/.*
    | .*/fork_rate
    | val/(reward|external_score)/(succeeded_rollouts|failed_rollouts|success_threshold|rollouts_per_prompt
             |pass_k_\d+|pass_power_\d+|pass_prompts_\d+|pass_tries_\d+|.*_within_groups)
    | val/(logprob|tokens/prompt_mean|task_rows).*
    """,
    re.VERBOSE,
)
"""Metrics that are not recorded, because they add nothing about a run's health."""
DIGITS: Final = 5
"""Significant digits of a stored number."""
Split = Literal["chosen_on", "held_out", "fresh", "unseen", "untouched", "sealed"]


class Step(NamedTuple):
    """One step of a run. Step 0 has a validation only."""

    step: int
    metrics: dict[str, float]
    validation: dict[str, float] | None


@dataclass(frozen=True)
class Expected:
    """A signal that the run must raise."""

    signal: SignalName
    begin: int
    """First step whose metrics show the symptom."""
    why: str
    """The rule that determines that step."""


@dataclass(frozen=True)
class Known:
    """Facts of a job's spec that its signals may use."""

    steps: int
    max_turns: int | None
    batch_size: int
    group_size: int
    updates_per_batch: int
    max_steps_off_policy: int
    reward_range: tuple[float, float]
    loss: str
    validation_every: int
    """Steps between validations. Another validation comes before the first step."""
    has_tasks: bool


@dataclass(frozen=True)
class Series:
    """A recorded run."""

    name: str
    split: Split
    description: str
    known: Known
    steps: tuple[Step, ...]
    expected: tuple[Expected, ...] = ()
    """Symptoms that the run provokes. Empty for a run that must be clean."""
    unclean: str = ""
    """Why a run that should be clean does not count as clean."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """For people: what was set, and what was changed at which step."""

    @property
    def clean(self) -> bool:
        """Whether every signal that it raises is a false alarm."""
        return not self.expected and not self.unclean

    def curve(self, name: str) -> list[tuple[int, float]]:
        """The values of one metric as pairs of step and value."""
        found = [(s.step, {**s.metrics, **(s.validation or {})}) for s in self.steps]
        return [(step, metrics[name]) for step, metrics in found if name in metrics]


def kept(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are recorded."""
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith(KEPT) and not LEFT_OUT.fullmatch(name) and math.isfinite(value)
    }


def rounded(value: float) -> float:
    """A number with the digits that are stored."""
    return float(f"{value:.{DIGITS}g}")


def write(series: Series, folder: Path = FOLDER) -> None:
    """Store a run. It replaces a run of the same name."""
    place = _place(series.split, series.name, folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    # Without a timestamp, the same metrics make the same bytes.
    place.write_bytes(gzip.compress(_text(series.steps).encode(), mtime=0))
    runs = _by_name(folder)
    runs[series.name] = {
        "name": series.name,
        "split": series.split,
        "description": series.description,
        "clean": series.clean,
        "unclean": series.unclean,
        "known": asdict(series.known),
        "expected": [asdict(expected) for expected in series.expected],
        "settings": series.settings,
    }
    _keep(runs, folder)


def forget(series: Series, folder: Path = FOLDER) -> None:
    """Delete a run."""
    runs = _by_name(folder)
    del runs[series.name]
    _place(series.split, series.name, folder).unlink()
    _keep(runs, folder)


def _place(split: str, name: str, folder: Path) -> Path:
    return folder / split / f"{name}.csv.gz"


def _text(steps: Sequence[Step]) -> str:
    """The metrics as CSV: a row for each step. If a step lacks a metric, its cell is empty."""
    names, file = sorted(columns(steps)), io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["step", *names])
    for s in steps:
        cells = {**s.metrics, **(s.validation or {})}
        table.writerow([s.step, *(f"{cells[name]:.{DIGITS}g}" if name in cells else "" for name in names)])
    return file.getvalue()


def _by_name(folder: Path) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in index(folder)}


def _keep(runs: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    lines = ",\n".join(json.dumps(runs[name], sort_keys=True) for name in sorted(runs))
    part = folder / f"{INDEX}.part"
    part.write_text(f"[\n{lines}\n]\n")
    part.replace(folder / INDEX)


def index(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Facts about each run."""
    place = folder / INDEX
    return list(json.loads(place.read_text())) if place.exists() else []


def read(run: Mapping[str, Any], folder: Path = FOLDER) -> Series:
    """Read a stored run. An empty cell is a missing value."""
    known = run["known"] | {"reward_range": tuple(run["known"]["reward_range"])}
    with gzip.open(_place(run["split"], run["name"], folder), "rt", newline="") as file:
        steps = tuple(map(_step, csv.DictReader(file)))
    return Series(
        name=run["name"],
        split=run["split"],
        description=run["description"],
        known=Known(**known),
        steps=steps,
        expected=tuple(
            Expected(SignalName(each["signal"]), each["begin"], each["why"]) for each in run["expected"]
        ),
        unclean=run["unclean"],
        settings=run["settings"],
    )


def _step(row: Mapping[str, str]) -> Step:
    cells = {name: float(cell) for name, cell in row.items() if name != "step" and cell}
    validation = {name: value for name, value in cells.items() if name.startswith(VALIDATION)}
    metrics = {name: value for name, value in cells.items() if name not in validation}
    return Step(int(row["step"]), metrics, validation or None)


def read_all(split: Split | None = None, folder: Path = FOLDER) -> list[Series]:
    """Every run of one split, or of all of them, in the order of names."""
    return [read(run, folder) for run in index(folder) if split in (None, run["split"])]


def columns(steps: Sequence[Step] | Iterable[Step]) -> set[str]:
    """Names of all metrics."""
    return {name for s in steps for name in (*s.metrics, *(s.validation or {}))}
