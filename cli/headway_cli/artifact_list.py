"""Lists what a run has written, by kind, with counts and sizes. Matches keys with a pattern. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from headway_api.document import Json

TRAJECTORIES: Final = "trajectories"
CHECKPOINTS: Final = "checkpoints"
WEIGHTS: Final = "weights"
REPORTS: Final = (
    "report.json", "report.md", "report.html", "results.parquet",
    "preflight.json", "preflight.md", "job.json",
)  # fmt: skip
"""Files at the root of a run that people read."""
OTHERS: Final = ("usage", "export", "logs", "estimates", "prices")
"""Further folders that are listed by name. Objects in any other folder are listed together as `REST`."""
REST: Final = "other"
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass
class Sum:
    """Number and total size of some objects."""

    objects: int = 0
    size: int = 0
    """Bytes."""

    def add(self, size: int) -> None:
        """Count one more object."""
        self.objects += 1
        self.size += size


@dataclass(frozen=True)
class Marks:
    """The steps of the best weights, the newest weights and the newest checkpoint; each None if absent."""

    best: int | None = None
    latest: int | None = None
    checkpoint: int | None = None
    """Step of the newest checkpoint, from which training resumes."""


@dataclass
class Contents:
    """The objects of a run, by kind; each kind in the order of its names."""

    root: str
    checkpoints: dict[int, Sum] = field(default_factory=dict)
    weights: dict[int, Sum] = field(default_factory=dict)
    trajectories: dict[str, Sum] = field(default_factory=dict)
    """Files of trajectories, by the purpose of their episodes."""
    reports: dict[str, Sum] = field(default_factory=dict)
    folders: dict[str, Sum] = field(default_factory=dict)


def contents(root: str, sizes: Mapping[str, int]) -> Contents:
    """Sort the objects of a run by kind.

    Args:
        root: URI of the run's folder.
        sizes: size of each object in bytes, by its key below `root`.
    """
    found = Contents(root)
    for key, size in sorted(sizes.items()):
        folder, _, rest = key.partition("/")
        of = rest.partition("/")[0]
        if folder in (CHECKPOINTS, WEIGHTS) and of.isdecimal():
            steps = found.checkpoints if folder == CHECKPOINTS else found.weights
            steps.setdefault(int(of), Sum()).add(size)
        elif folder == TRAJECTORIES and rest:
            found.trajectories.setdefault(of, Sum()).add(size)
        elif key in REPORTS:
            found.reports.setdefault(key, Sum()).add(size)
        else:
            found.folders.setdefault(folder if rest and folder in OTHERS else REST, Sum()).add(size)
    return found


def matching(keys: Iterable[str], pattern: str) -> list[str]:
    """The keys that a pattern matches. `*` and `?` match `/` too. A folder's name matches all keys in it."""
    below = f"{pattern.rstrip('/')}/*"
    return [key for key in keys if fnmatchcase(key, pattern) or fnmatchcase(key, below)]


def text(found: Contents, marks: Marks) -> str:
    """The contents as text for a person."""
    rows = [("what", "objects", "size", "")]
    for step, each in found.checkpoints.items():
        note = "training resumes here" if step == marks.checkpoint else ""
        rows.append(_row(f"{CHECKPOINTS}/{step:06d}", each, note))
    for step, each in found.weights.items():
        notes = [word for word, at in (("best", marks.best), ("latest", marks.latest)) if at == step]
        rows.append(_row(f"{WEIGHTS}/{step:06d}", each, ", ".join(notes)))
    rows += [_row(f"{TRAJECTORIES}/{purpose}", each) for purpose, each in found.trajectories.items()]
    rows += [_row(name, each) for name, each in found.reports.items()]
    rows += [_row(name, each) for name, each in sorted(found.folders.items(), key=_rest_last)]
    return "\n".join([found.root, *aligned(rows)])


def as_json(found: Contents, marks: Marks) -> Json:
    """The contents as an object of JSON; sizes in bytes."""
    return {
        "uri": found.root,
        "best": marks.best,
        "latest": marks.latest,
        "checkpoint": marks.checkpoint,
        "checkpoints": [{"step": step, **_object(each)} for step, each in found.checkpoints.items()],
        "weights": [{"step": step, **_object(each)} for step, each in found.weights.items()],
        "trajectories": {purpose: _object(each) for purpose, each in found.trajectories.items()},
        "reports": {name: _object(each) for name, each in found.reports.items()},
        "folders": {name: _object(each) for name, each in found.folders.items()},
    }


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first and the last column are left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    last = len(widths) - 1
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def in_bytes(size: int) -> str:
    """A size as text, in the largest binary unit in which the number is at least 1: `1.5 MiB`."""
    value = float(size)
    for unit in UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == UNITS[0] else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {UNITS[-1]}"


def _row(name: str, each: Sum, note: str = "") -> tuple[str, str, str, str]:
    return name, str(each.objects), in_bytes(each.size), note


def _rest_last(item: tuple[str, Sum]) -> tuple[bool, str]:
    return item[0] == REST, item[0]


def _object(each: Sum) -> Json:
    return {"objects": each.objects, "bytes": each.size}
