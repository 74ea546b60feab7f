"""Runs one training job for its curve, with the product's coordinator loop and learner process, but no
cluster.

The coordinator's loop, signals and remedies are the product's own. The learner's process, the learner API,
checkpoints and published weights are the product's too. Code in this process replaces pods and rollout
servers.

Training waits for each validation, as it does with full weights. So the validations that are known at a
decision do not depend on timing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import learner_rig
from aiohttp import web
from role_keys import TO_COORDINATOR
from tests.signals.demo import quickstart
from tests.signals.stage import rows_of

from bench.remedies.servers import Servers
from headway_analysis.measures.metrics import Metrics
from headway_analysis.signals.catalogue import SIGNALS
from headway_analysis.signals.definition import Signal
from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.exits import JobError
from headway_api.records import StepReport
from headway_api.store import FileStore
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.dataset import Data
from headway_coordinator.learner_api import LearnerApi
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.metrics.steps import StepMetrics
from headway_coordinator.remedies import shown
from headway_coordinator.signals import Signals
from headway_coordinator.spool import Spool
from headway_coordinator.training import Callbacks, Training

NAME, NAMESPACE, UID = "cispo", "bench", "11111111-2222-3333-4444-555555555555"
DRAWN = (
    "rollout/reward/mean",
    "training/entropy",
    "training/grad_norm",
    "training/mismatch_kl",
)
"""Names of the step metrics that are recorded."""
SCORE = "val/external_score/mean"
FOREVER = 1e9
"""A time limit in seconds that is never reached."""


@dataclass
class Curve:
    """The record of a job, step by step."""

    steps: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """Metrics of each step that trained groups."""
    scores: dict[int, float] = field(default_factory=dict)
    """Validated step -> its held-out external score."""
    raised: dict[int, list[str]] = field(default_factory=dict)
    """Step -> signals that became raised after this step."""
    remedies: list[dict[str, Any]] = field(default_factory=list)
    """The job's remedies, as in `report.json`."""
    reports: list[StepReport] = field(default_factory=list)
    """The learner's report of each step."""
    ranks: list[int] = field(default_factory=list)
    """Rank of each adapter that the servers loaded, in order."""


def configured(folder: Path, inputs: Path, changes: Mapping[str, Any]) -> JobConfig:
    """The demo's job, with local folders instead of a bucket.

    Args:
        folder: the folder for the job's store.
        inputs: the folder with the base model and the rows.
        changes: changes to the demo's spec.
    """
    document = quickstart.merged(quickstart.job("desk")["spec"], changes)
    document["model"]["base"] = f"file://{inputs}/model"
    for split in ("train", "validation"):
        document["data"][split]["uri"] = f"file://{inputs}/{split}.jsonl"
    document["output"] = {"uri": f"file://{folder}/store"}
    document["preflight"] = {"episodes": 0}
    del document["tracking"]
    return JobConfig.model_validate({"name": NAME, "namespace": NAMESPACE, "uid": UID, "spec": document})


async def run(
    config: JobConfig,
    folder: Path,
    inputs: Path,
    *,
    catalogue: Sequence[Signal] = SIGNALS,
    order: Callable[[int], str | None] = lambda step: None,
    until: int | None = None,
    heard: Callable[[int, Curve], None] = lambda step, curve: None,
) -> Curve:
    """Run a job to its end. If `folder` has an earlier run, continue it.

    Args:
        folder: the folder with the job's store and the learner's log.
        catalogue: signals to judge at each step.
        order: function from a step to the order that a person has given by then.
        until: step after which both processes are killed; None to run to the end.
        heard: function that is called after each step that trained groups.

    Raises:
        RuntimeError: the learner ended before the job.
    """
    port, found = learner_rig.free_port(), None
    async with learner_rig.learner(config, folder, f"http://127.0.0.1:{port}") as learner:
        ended = asyncio.create_task(learner.exit(FOREVER))
        try:
            while found is None:
                found = await _life(_Job(config, inputs, catalogue, order, heard, until), port, ended)
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
    return found


async def _life(job: _Job, port: int, ended: asyncio.Task[int]) -> Curve | None:
    """Run one coordinator, and return the job's curve.

    The result is None if the learner went back to a checkpoint, so that a new coordinator must take over.

    Args:
        ended: task that is done when the learner's process ends.
    """
    left = asyncio.create_task(job.left.wait())
    parts: list[asyncio.Task[Any]] = [left]
    try:
        async with job.serving(port):
            parts.append(training := asyncio.create_task(job.training.run()))
            await asyncio.wait([*parts, ended], return_when=asyncio.FIRST_COMPLETED)
            if training.done():
                await training
                await ended
            elif not left.done():
                raise RuntimeError(f"the learner has ended, {await ended}; learner.log says why")
    except ExceptionGroup as faults:
        if faults.split(_went_back)[1] is not None:
            raise
        return None
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        job.servers.close()
    return job.ended()


def _went_back(error: BaseException) -> bool:
    return isinstance(error, JobError) and error.termination.reason == "LearnerRolledBack"


class _Job:
    def __init__(
        self,
        config: JobConfig,
        inputs: Path,
        catalogue: Sequence[Signal],
        order: Callable[[int], str | None],
        heard: Callable[[int, Curve], None],
        until: int | None,
    ) -> None:
        spec, store = config.spec, FileStore()
        layout = Layout(spec.output.uri, config.namespace, config.name, config.uid)
        spool, ledger = Spool(store, layout), Ledger(store, layout)
        ledger.load()
        held_out = rows_of(inputs, "validation")[: spec.evaluation.max_rows]
        data = Data(train=rows_of(inputs, "train"), validation=held_out)
        self._spec = spec
        self._order = order
        self._heard = heard
        self._until = until
        self.left = asyncio.Event()
        self._curve = Curve()
        self._signals = Signals(spec, catalogue=catalogue)
        self._step_metrics = StepMetrics(spec, self._signals)
        self._raised: set[str] = set()
        self.servers = Servers(spec, inputs / "model")
        self.training = Training(
            spec,
            data,
            self.servers,  # type: ignore[arg-type]
            spool,
            ledger,
            self.servers.episode,
            spool.take_start_number(),
            AdaptiveSemaphore(spec.rollout.max_concurrency),
            Callbacks(on_change=self._moved, on_validation=self._validated),
            signals=self._signals,
        )
        self._replay = replay = spool.replay()
        self._step_metrics.restore(spool, replay)

    @contextlib.asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[None]:
        """Serve the learner API during the block."""
        await self.training.restore(self._replay)
        api = LearnerApi(TO_COORDINATOR, lambda: b"")
        api.training = self.training
        runner = web.AppRunner(api.app(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        try:
            yield
        finally:
            await runner.cleanup()

    def ended(self) -> Curve:
        """The whole curve."""
        self._curve.remedies = shown.report(self.training.remedies.course, self._spec)
        self._curve.reports = list(self.training.state.reports)
        self._curve.ranks = self.servers.ranks
        return self._curve

    def _moved(self) -> None:
        step = self.training.state.step
        self.training.remedies.order = self._order(step)
        if self._until is not None and step >= self._until:
            self.left.set()
        report = self.training.state.trained
        found = self._step_metrics.batch(self.training.state, again=False)
        if report is None or found is None:
            return
        metrics = report.metrics | found.metrics
        self._curve.steps[report.step] = {name: metrics[name] for name in DRAWN if name in metrics}
        self._note(report.step)
        self._heard(report.step, self._curve)

    def _validated(self, step: int, metrics: Metrics) -> None:
        self._step_metrics.validation(step, metrics, again=False)
        self._curve.scores[step] = metrics[SCORE]
        self._note(step)

    def _note(self, step: int) -> None:
        now = {verdict.signal.name.value for verdict in self._signals.raised}
        if fresh := sorted(now - self._raised):
            self._curve.raised.setdefault(step, []).extend(fresh)
        self._raised = now
