"""A job with its store in a folder, whose coordinators may run one after another.

Episodes end at once, with a reward that depends on their seed. Everything from the sampler to HTTP is real.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from episodes import sealed, version
from role_keys import TO_COORDINATOR
from scripted_learner import ScriptedLearner

from headway_analysis.billing.segments import fold, total
from headway_analysis.measures.metrics import Metrics
from headway_analysis.signals.definition import Signal
from headway_api.artifacts import Layout
from headway_api.prices import DEFAULT
from headway_api.records import Canary, EpisodeRecord, Purpose, StepReport, UsageClass, WeightsManifest
from headway_api.spec.lifecycle import BudgetSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import FileStore, Store
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.priced import Priced
from headway_coordinator.budget.worst import Limits
from headway_coordinator.cancel_token import StoppedError
from headway_coordinator.dataset import Data
from headway_coordinator.engines.router import Router
from headway_coordinator.episode import Task
from headway_coordinator.learner_api import LearnerApi
from headway_coordinator.ledger import events
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.metrics.steps import StepMetrics
from headway_coordinator.signals import Signals
from headway_coordinator.spool import Spool, decode
from headway_coordinator.training import Callbacks, Training
from headway_coordinator.validations import ConcurrentValidation


class Rotation:
    """A fleet that always has a server in rotation. It records which weights the job wants it to load."""

    def __init__(self) -> None:
        self.wanted: list[int] = []
        self.released = 0
        self.router = Router()

    async def want(self, manifest: WeightsManifest, reported: float | None = None) -> None:
        self.wanted.append(manifest.version.step)

    async def ready(self) -> None:
        return None

    async def release(self) -> None:
        self.released += 1


def spec(**algorithm: Any) -> RLTrainingJobSpec:
    return RLTrainingJobSpec.model_validate(
        {
            "model": {"base": "s3://b/m"},
            "data": {"train": {"uri": "s3://b/t.jsonl"}, "validation": {"uri": "s3://b/v.jsonl"}},
            "environment": {"image": "i", "entrypoint": "m:C"},
            "preflight": {"episodes": 0},
            "output": {"uri": "s3://b/o"},
            "algorithm": {"batchSize": 2, "groupSize": 2, "maxStepsOffPolicy": 1} | algorithm,
            "schedule": {"maxSteps": 4, "maxEpochs": 4},
            "rollout": {"maxConcurrency": 4, "maxRetries": 1},
            "evaluation": {"everySteps": 2},
        }
    )


def manifest(step: int, incarnation: int = 0) -> WeightsManifest:
    canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=0.1)
    return WeightsManifest(
        version=version(step, incarnation), kind="lora", uri="file:///w", files=[], canary=canary
    )


def report(step: int, incarnation: int = 0, durable: int | None = None) -> StepReport:
    """A learner's report on a step without groups. The step is durable by default."""
    weights = manifest(step, incarnation)
    return StepReport(
        step=step,
        version=weights.version,
        groups=[],
        train_tokens={},
        weights=weights,
        durable=step if durable is None else durable,
        metrics={},
    )


def publishing(store: Store, layout: Layout) -> Callable[[int], WeightsManifest]:
    """A function that stores the weights of a step, and returns their manifest."""

    def publish(step: int) -> WeightsManifest:
        uri = layout.weights(step)
        store.put(f"{uri}/adapter_config.json", b"{}")
        return manifest(step).model_copy(update={"uri": uri})

    return publish


class Job:
    """One job in a folder, whose coordinators may run one after another.

    Args:
        beside: the servers hold the weights that are validated in a slot of their own.
        dedicated: validations have a server of their own, which runs this many episodes at once.
    """

    def __init__(
        self,
        folder: Path,
        of: RLTrainingJobSpec | None = None,
        rows: int = 5,
        *,
        beside: bool = False,
        dedicated: int | None = None,
    ) -> None:
        self.spec = of or spec()
        self.store = FileStore()
        self.layout = Layout(f"file://{folder}", "ns", "job", "uid")
        self.data = Data(
            train=[{"prompt": str(i)} for i in range(rows)],
            validation=[{"prompt": f"v{i}"} for i in range(3)],
        )
        self.beside = beside or dedicated is not None
        self.dedicated = dedicated
        self.tasks: list[Task] = []
        self.fails: Callable[[Task], bool] = lambda task: False
        self.pause: Callable[[Task], float] = lambda task: 0.0
        self.on_validation: Callable[[int, Metrics], None] = lambda step, metrics: None
        self.on_change: Callable[[], None] = lambda: None
        self.paused: Callable[[], bool] = lambda: False
        self.on_test: Callable[[int, Metrics], None] = lambda step, metrics: None
        self.patience = 60.0
        """Maximum seconds that one coordinator runs."""
        self.catalogue: Sequence[Signal] = ()
        """Signals that are judged at each step."""
        self.money: BudgetSpec | None = None
        """The job's budget."""

    async def episode(self, task: Task) -> EpisodeRecord:
        self.tasks.append(task)
        reward = None if self.fails(task) else float(random.Random(task.sampling_seed).random() < 0.5)
        try:
            async with task.stop.guard():
                await asyncio.sleep(self.pause(task))
        except StoppedError:
            reward = None
        rotation = self.slot if self.beside and task.purpose is not Purpose.TRAIN else self.rotation
        step = rotation.wanted[-1]
        return sealed(task.group_id, task.index, reward=reward, attempt=task.attempt, step=step)

    @asynccontextmanager
    async def coordinator(self) -> AsyncIterator[tuple[Training, ScriptedLearner, asyncio.Task[None]]]:
        self.rotation, self.slot = Rotation(), Rotation()
        limiter = None if self.dedicated is None else AdaptiveSemaphore(self.dedicated)
        concurrent = ConcurrentValidation(self.slot, self.episode, limiter)  # type: ignore[arg-type]
        spool, ledger = Spool(self.store, self.layout), Ledger(self.store, self.layout)
        ledger.load()
        self.ledger = ledger
        self.signals = Signals(self.spec, catalogue=self.catalogue)
        metrics = StepMetrics(self.spec, self.signals)

        def moved() -> None:
            metrics.batch(training.state, again=False)
            self.on_change()

        budget = self.budget = Budget(self.money, Priced(ledger, lambda: DEFAULT))
        training = Training(
            self.spec,
            self.data,
            self.rotation,  # type: ignore[arg-type]
            spool,
            ledger,
            self.episode,
            spool.take_start_number(),
            AdaptiveSemaphore(self.spec.rollout.max_concurrency),
            Callbacks(
                on_change=lambda: moved(),
                paused=lambda: self.paused(),
                on_validation=self.on_validation,
                on_test=self.on_test,
            ),
            concurrent=concurrent if self.beside else None,
            signals=self.signals,
            budget=budget,
            limits=Limits(50, 2, 10, self.spec.rollout.max_retries),
        )
        budget.busy, budget.drain = training.learner_may_step, training.drain
        replay = spool.replay()
        metrics.restore(spool, replay)
        await training.restore(replay)
        api = LearnerApi(TO_COORDINATOR, lambda: b"")
        api.training = training
        runner = web.AppRunner(api.app(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        running = asyncio.create_task(training.run())
        try:
            async with asyncio.timeout(self.patience):
                yield training, self.learner(url), running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await runner.cleanup()
            await (
                training._durable.settled()
            )  # wait for its thread, so that it writes nothing while the next coordinator runs

    def learner(self, url: str) -> ScriptedLearner:
        """A learner that takes the batches of the coordinator at `url`."""
        publish = publishing(self.store, self.layout)
        return ScriptedLearner(url, TO_COORDINATOR, self.store, self.layout, publish)

    def recounted(self) -> dict[UsageClass, float]:
        """The amounts of usage, counted again from the stored groups and step reports."""
        trajectories = f"{self.layout.root}/trajectories"
        found = [
            e for uri in self.store.list(trajectories) for e in events.of_group(decode(self.store.get(uri)))
        ]
        for uri in self.store.list(f"{self.layout.root}/steps"):
            found += events.of_step(StepReport.model_validate_json(self.store.get(uri)), at=1.0)
        return total(fold(found))
