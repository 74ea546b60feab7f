"""Measures the cost of a checkpoint for a step: the pause of training, and an upload during or after
training."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from headway_trainer.checkpoint.manager import CheckpointManager
from headway_trainer.checkpoint.manifest import CheckpointManifest
from headway_trainer.checkpoint.signer import Signer

VOCABULARY = 4096
EPISODES = 8
BITS = 10**9
"""Bits per second of the simulated link."""
LINK = f"{BITS / 1e9:g} Gbit/s"
FOLDER = "a folder"
NONE = "none"
BESIDE, AT_ONCE = "beside training, a folder", "at once, a folder"
LINK_BESIDE, LINK_AT_ONCE = f"beside training, {LINK}", f"at once, {LINK}"
WAYS = (NONE, BESIDE, AT_ONCE, LINK_BESIDE, LINK_AT_ONCE)
STORES = {FOLDER: (BESIDE, AT_ONCE), LINK: (LINK_BESIDE, LINK_AT_ONCE)}
STEPS = 1
"""Number of steps in a block. A block has consecutive steps of one way, each with its checkpoint."""
BLOCK = "one step" if STEPS == 1 else f"{STEPS} steps"
ROUNDS = 6
"""Number of rounds. Each way has one block in each round. It must be even: see `in_turn`."""
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Step:
    """Seconds of one step, and of its checkpoint."""

    step: float
    still: float = 0.0
    """Seconds for which the checkpoint stops training."""
    durable: float | None = None
    """Seconds from the end of the step until its checkpoint is durable."""

    @property
    def both(self) -> float:
        """Seconds from the beginning of the step until the next step may begin."""
        return self.step + self.still


Found = Mapping[str, Sequence[Sequence[Step]]]
"""Way -> round -> the steps of the block."""


def measure(folder: Path) -> Section:
    """Measure all ways on one model. The ways take turns."""
    ours = Ours(model_of(SMALL, VOCABULARY))
    work = [row(turns, VOCABULARY, seed=n) for n, turns in enumerate(ragged(EPISODES, seed=0))]
    ours.step(work)
    found: dict[str, list[Sequence[Step]]] = {way: [] for way in WAYS}
    size = 0
    for number in range(ROUNDS):
        for way in in_turn(number):
            store = Link() if way in STORES[LINK] else FileStore()
            block = _Block(ours, lambda: ours.step(work), folder / "block", store)
            wait = way in (AT_ONCE, LINK_AT_ONCE)
            found[way].append(block.without() if way == NONE else block.steps(wait=wait))
            size = block.size() or size
            shutil.rmtree(folder / "block", ignore_errors=True)
    return section(found, size, sum(p.numel() for p in ours.engine.model.parameters()))


def in_turn(number: int) -> list[str]:
    """The ways in the order of round `number`.

    Every second round reverses the order of the previous round. So a machine that slows down favours no way.
    Each pair of rounds begins with another way.
    """
    first = number - number % 2
    order = [WAYS[(first + place) % len(WAYS)] for place in range(len(WAYS))]
    return order if number == first else order[::-1]


def section(found: Found, size: int, parameters: int) -> Section:
    """The section of all ways.

    Args:
        size: bytes of a checkpoint.
        parameters: number of the model's parameters.
    """
    steps = sum(len(block) for block in found[NONE])
    mebibytes, over = size / MEBIBYTE, size * 8 / BITS
    caption = f"A checkpoint has {mebibytes:.0f} MiB, {over:.2g} s over {LINK}; medians of {steps} steps"
    saved = "What it saves to have the upload beside training: steps with a checkpoint over steps without one"
    return Section(
        title="A checkpoint after every step",
        read=_read(parameters),
        tables=[
            Table(caption, [_row(way, found) for way in WAYS]),
            Table(saved, [_saved(store, found) for store in STORES]),
        ],
    )


def _row(way: str, found: Found) -> Row:
    steps = [each for block in found[way] for each in block]
    durable = [each.durable for each in steps if each.durable is not None]
    longer = [ratio - 1 for ratio in _ratios(way, NONE, found)]
    return {
        "checkpoint": way,
        "step s": shown(statistics.median(each.step for each in steps)),
        "pause s": shown(statistics.median(each.still for each in steps)),
        "step + pause s": shown(statistics.median(each.both for each in steps)),
        "longer than without": f"{statistics.median(longer):.1%}",
        "in each round": ", ".join(f"{each:.0%}" for each in longer),
        "durable after s": shown(statistics.median(durable)) if durable else "",
    }


def _saved(store: str, found: Found) -> Row:
    beside, at_once = STORES[store]
    ratios = _ratios(at_once, beside, found)
    return {
        "store": store,
        "beside training / without": f"{statistics.median(_ratios(beside, NONE, found)):.2f}",
        "at once / without": f"{statistics.median(_ratios(at_once, NONE, found)):.2f}",
        "at once / beside training": f"{statistics.median(ratios):.2f}",
        "in each round": ", ".join(f"{each:.2f}" for each in ratios),
    }


def _ratios(one: str, other: str, found: Found) -> list[float]:
    """Seconds of a block of way `one` divided by the seconds of way `other`, by round."""
    return [_seconds(a) / _seconds(b) for a, b in zip(found[one], found[other], strict=True)]


def _seconds(block: Sequence[Step]) -> float:
    return sum(each.both for each in block)


def _read(parameters: int) -> list[str]:
    return prose(f"""
        A model of {parameters / 1e6:.1f} M parameters and its optimizer are in float32, and all weights are
        trained, in steps of {EPISODES} episodes. A run has no checkpoints, or one after every step. The
        learner uploads it *beside training*. *At once* means that the next step waits until it is durable.
        The store is a folder on the same disk, or the same folder over a link of {LINK}. **The link is no
        network but an injected delay.** After each object the uploading thread sleeps for as long as its
        bytes would take over such a link. It takes time and no CPU, and has no latency.

        The {len(WAYS)} ways take turns of {BLOCK}, in {ROUNDS} rounds, every other one in the order of the
        one before reversed. A turn with checkpoints begins with one that is not counted, so that each step
        *beside training* has an upload beside it.

        *Pause* is the wait and the copy alone. The wait lasts until the checkpoint before is durable, or this
        one at once. The copy lasts until the learner's state lies on the local disk. The upload beside
        training also takes cores from the step, to hash and to copy. That shows in *step*, the more the fewer
        cores there are. The cost of a checkpoint is therefore *longer than without*: step and pause together,
        against the same round without checkpoints. It is the median of the rounds. *Durable after* is from
        the end of the step until the pointer names it.

        An upload is work for cores and disk, and waiting for the store. The step here computes on all cores
        there are. So beside training that work is not hidden, only moved, and can cost as much as at once or
        more. The folder is the case of work alone. What can be hidden is the waiting: the link is the case of
        both. In the second table *at once / beside training* compares a step that waits for its checkpoint
        with one that does not. Below 1, waiting is cheaper. Where a step leaves the host's cores free, as on
        an accelerator, the work could be hidden too: that is not measured here.
    """)


class Link(FileStore):
    """A folder behind a simulated link of `BITS` per second.

    A write sleeps for the time that its bytes would need. Only one object is sent at a time.
    """

    def __init__(self) -> None:
        self._taken = threading.Lock()

    def put(self, uri: str, data: bytes) -> None:
        """Write to the folder, then sleep as long as the link would take."""
        super().put(uri, data)
        self._send(len(data))

    def upload(self, path: Path, uri: str) -> None:
        """As `put`, for a file."""
        super().upload(path, uri)
        self._send(path.stat().st_size)

    def _send(self, size: int) -> None:
        with self._taken:
            time.sleep(size * 8 / BITS)


class _Block:
    """Takes the steps of one block, with its own store and checkpointer. No upload runs when a block
    begins."""

    def __init__(self, ours: Ours, step: Callable[[], object], folder: Path, store: FileStore) -> None:
        self._step = step
        self._folder = folder
        layout = Layout(f"file://{folder}/store", "bench", "checkpoint", "uid")
        self._moved = _Pointer(store, layout)
        self._moved.begin()
        scratch = folder / "scratch"
        self._checkpointer = CheckpointManager(
            CheckpointsSpec(), ours.engine, store, layout, self._moved, scratch, ours.ranks
        )

    def without(self) -> list[Step]:
        """Take the steps without checkpoints."""
        return [Step(self._timed(self._step)) for _ in range(STEPS)]

    def steps(self, *, wait: bool) -> list[Step]:
        """Take the steps with a checkpoint after each. With `wait`, wait until it is durable before the next
        step."""
        self._save(0, wait)
        seconds, ended = [], []
        for number in range(1, STEPS + 1):
            step = self._timed(self._step)
            ended.append(time.monotonic())
            seconds.append((step, self._timed(lambda number=number: self._save(number, wait))))
        self._checkpointer.settle()
        durable = [self._moved.at[number] - at for number, at in enumerate(ended, start=1)]
        return [Step(*taken, after) for taken, after in zip(seconds, durable, strict=True)]

    def size(self) -> int:
        """Bytes of the checkpoint of step 1; 0 if none was made."""
        files = (self._folder / "store").rglob("checkpoints/000001/*/*.pt")
        return sum(file.stat().st_size for file in files)

    def _save(self, number: int, wait: bool) -> None:
        self._checkpointer.save(_report(number))
        if wait:
            self._checkpointer.settle()

    @staticmethod
    def _timed(work: Callable[[], object]) -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began


class _Pointer(Journal):
    """A journal that records when each step became durable."""

    def __init__(self, store: FileStore, layout: Layout) -> None:
        super().__init__(store, layout, Signer.of("bench", layout))
        self.at: dict[int, float] = {}

    def seal(self, report: StepReport, state: CheckpointManifest) -> None:
        super().seal(report, state)
        self.at[report.step] = time.monotonic()


def _report(step: int) -> StepReport:
    version = PolicyVersion(incarnation=0, step=step)
    canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1.0)
    weights = WeightsManifest(version=version, kind="full", uri="file:///w", files=[], canary=canary)
    return StepReport(
        step=step, version=version, groups=[], train_tokens={}, weights=weights, durable=0, metrics={}
    )
