"""An evaluation with its store in a folder, whose coordinators may run one after another.

Episodes end at once, with a reward that depends on their task. Spool, ledger and driver are real.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from episodes import sealed

from headway_api.artifacts import Layout
from headway_api.records import EpisodeRecord, Judgement
from headway_api.sandbox_api import FinishReply, ResetReply
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.store import FileStore
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.episode import Task
from headway_coordinator.evaluation.run import Evaluation, RunOfCandidate, Unit
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.spool import Spool


def spec(**changes: Any) -> RLEvalJobSpec:
    return RLEvalJobSpec.model_validate(
        {
            "candidates": [
                {"name": "base", "model": {"base": "s3://b/m"}},
                {"name": "tuned", "model": {"base": "s3://b/n"}},
            ],
            "data": {"uri": "s3://b/t.jsonl"},
            "environment": {"image": "i", "entrypoint": "m:C"},
            "evaluation": {"groupSize": 2, "sampling": {"temperature": 1.0}},
            "rollout": {"maxConcurrency": 4, "maxRetries": 1},
            "output": {"uri": "s3://b/o"},
        }
        | changes
    )


class EvalJob:
    """One evaluation in a folder."""

    def __init__(self, folder: Path, of: RLEvalJobSpec | None = None, rows: int = 5) -> None:
        self.spec = of or spec()
        self.store = FileStore()
        self.layout = Layout(f"file://{folder}", "ns", "job", "uid")
        self.rows: list[dict[str, Any]] = [{"prompt": str(number)} for number in range(rows)]
        self.tasks: list[Task] = []
        self.before: Callable[[Task], None] = lambda task: None
        """Called when an episode begins. The episode raises whatever this raises."""
        self.fails: Callable[[Task], bool] = lambda task: False
        self.turns = 2
        """Turns of each episode."""
        self.judgements: list[Judgement] = []
        """The judgements in the record of each episode."""
        self.open: list[int | None] = []
        """Sets of servers that are running now."""
        self.max_open = 0

    async def episode(self, task: Task) -> EpisodeRecord:
        """A reward drawn from the task's seed."""
        self.tasks.append(task)
        await asyncio.sleep(0)
        self.before(task)
        reward = None if self.fails(task) else float(random.Random(task.sampling_seed).random() < 0.5)
        episode = sealed(task.group_id, task.index, reward=reward, attempt=task.attempt, turns=self.turns)
        return episode.model_copy(update={"judgements": self.judgements})

    def unit(self, *names: str, server_set: int | None = None, places: int = 4) -> Unit:
        """A unit of candidates that are measured at the same time."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[RunOfCandidate]:
            self.open.append(server_set)
            self.max_open = max(self.max_open, len(self.open))
            try:
                await asyncio.sleep(0.01)
                yield dict.fromkeys(names, self.episode)
            finally:
                self.open.remove(server_set)

        return Unit(
            names,
            "servers" if server_set is not None else "endpoint",
            opened,
            AdaptiveSemaphore(places),
            server_set,
        )

    async def coordinator(self, had: Iterable[int] = ()) -> Evaluation:
        """A coordinator that has restored the state of its predecessors, whose server sets were `had`."""
        spool, self.ledger = Spool(self.store, self.layout), Ledger(self.store, self.layout)
        self.ledger.load()
        names = self.spec.candidate_names
        evaluation = Evaluation(self.spec, self.rows, names, spool, self.ledger, spool.take_start_number())
        await evaluation.restore(had)
        return evaluation


class ABroker:
    """Leases sandboxes whose environment gives every episode reward and score 1."""

    def __init__(self) -> None:
        self.leased: list[str] = []

    @asynccontextmanager
    async def lease(self, episode_id: str, *_: float) -> AsyncIterator[Any]:
        self.leased.append(episode_id)
        yield self

    async def reset(self, row: dict[str, Any], seed: int) -> ResetReply:
        return ResetReply(messages=[], tools=[])

    async def finish(self, *_: object) -> FinishReply:
        return FinishReply(reward=1.0, score=1.0)
