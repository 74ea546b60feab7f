"""What a checkpoint costs a step: training stands still for a local copy; the upload goes on beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.learner.work import Ours, model_of, ragged, row
from bench.support.model import SMALL
from bench.support.report import Row, Section, Table, prose
from bench.support.stats import shown
from headway_api.artifacts import Layout
from headway_api.records import Canary, PolicyVersion, StepReport, WeightsManifest
from headway_api.spec.learner import CheckpointsSpec
from headway_api.store import FileStore
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.keeper import Keeper
from headway_trainer.checkpoint.manifest import CheckpointManifest

VOCABULARY = 4096
EPISODES = 8
STEPS = 5
MEBIBYTE = 1 << 20

READ = prose(f"""
    A model of {SMALL.parameters / 1e6:.0f} M parameters and its optimizer in float32, all weights trained,
    {STEPS} steps of {EPISODES} episodes each way, with a checkpoint after every one: *beside* as the learner
    makes them, *at once* waiting until each is durable. The store is a folder on the same disk; over a
    network the upload takes longer, and the copy does not.

    *Stands still* is what a step takes longer for its checkpoint: the wait for the one before, and the copy
    to the local disk. *Durable after* is from the end of the step until the pointer names it.
""")


@dataclass
class Found:
    """Seconds of each step, of one way."""

    step: list[float] = field(default_factory=list)
    still: list[float] = field(default_factory=list)
    durable: list[float] = field(default_factory=list)


def measure(folder: Path) -> Section:
    """Both ways on one model."""
    ours = Ours(model_of(SMALL, VOCABULARY))
    work = [row(turns, VOCABULARY, seed=n) for n, turns in enumerate(ragged(EPISODES, seed=0))]
    ours.step(work)
    rows: list[Row] = []
    for way in ("beside", "at once"):
        store, layout = FileStore(), Layout(f"file://{folder}/{way}", "bench", "checkpoint", "uid")
        moved = _Pointer(store, layout)
        moved.begin()
        scratch = folder / "scratch"
        keeper = Keeper(CheckpointsSpec(), ours.engine, store, layout, moved, scratch, ours.ranks)
        found = _steps(lambda: ours.step(work), keeper, moved, wait=way == "at once")
        files = (folder / way).rglob("checkpoints/000001/*/*.pt")
        rows.append(_row(way, found, sum(file.stat().st_size for file in files)))
    return Section(
        title="A checkpoint after every step",
        read=READ,
        tables=[Table("Medians over the steps", rows)],
    )


class _Pointer(Journal):
    """Notes when a step became durable."""

    def __init__(self, store: FileStore, layout: Layout) -> None:
        super().__init__(store, layout)
        self.at: dict[int, float] = {}

    def seal(self, report: StepReport, state: CheckpointManifest) -> None:
        super().seal(report, state)
        self.at[report.step] = time.monotonic()


def _steps(step: Callable[[], object], keeper: Keeper, moved: _Pointer, *, wait: bool) -> Found:
    found, ended = Found(), {}
    for number in range(STEPS):
        began = time.monotonic()
        step()
        ended[number] = time.monotonic()
        keeper.save(_report(number))
        if wait:
            keeper.settle()
        found.step.append(ended[number] - began)
        found.still.append(time.monotonic() - ended[number])
    keeper.settle()
    found.durable = [moved.at[number] - at for number, at in ended.items()]
    return found


def _row(way: str, found: Found, size: int) -> Row:
    # The first has no checkpoint before it to wait for.
    step, still, durable = (statistics.median(x[1:]) for x in (found.step, found.still, found.durable))
    return {
        "checkpoint": way,
        "MiB": shown(size / MEBIBYTE),
        "step s": shown(step),
        "stands still s": shown(still),
        "of a step": f"{still / step:.1%}",
        "durable after s": shown(durable),
    }


def _report(step: int) -> StepReport:
    version = PolicyVersion(incarnation=0, step=step)
    canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1.0)
    weights = WeightsManifest(version=version, kind="full", uri="file:///w", files=[], canary=canary)
    return StepReport(
        step=step, version=version, groups=[], train_tokens={}, weights=weights, durable=0, metrics={}
    )
