"""Runs one training job on the demo's tiny model in this process, and records its metrics.

Episodes, learner and metrics are the product's own, combined as the coordinator combines them. Only parts
that no metric depends on are missing: pods, HTTP, the artifact store, clocks.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping

from tests.signals.circumstances import Circumstances
from tests.signals.demo import Settings, quickstart
from tests.signals.describe import described
from tests.signals.learner import Learner
from tests.signals.series import Series, Step, kept, rounded
from tests.signals.servers import Servers
from tests.signals.stage import Stage, rows_of

from headway_analysis.measures import metrics, tasks
from headway_api.records import Batch
from headway_coordinator.evaluation import driver
from headway_coordinator.evaluation.summary import Summary

SEED = 0
"""Seed of the base model and the rows, which are the same in every run."""


def run(circumstances: Circumstances) -> Series:
    """Train by the circumstances, which takes about a minute."""
    return described(circumstances, asyncio.run(_Run(circumstances).all()))


class _Run:
    def __init__(self, circumstances: Circumstances) -> None:
        self._circumstances = circumstances
        spec, _ = circumstances.at(0)
        folder = quickstart.inputs(Settings.from_environ(os.environ).cache, SEED)
        base = folder / "model"
        self._rows = rows_of(folder, "train")
        self._held_out = rows_of(folder, "validation")[: spec.evaluation.max_rows]
        self._learner = Learner(spec, base)
        room = max(len(self._held_out), spec.algorithm.batch_size * spec.algorithm.group_size)
        context = spec.model.context_length
        assert context is not None
        self._servers = Servers(base, rows=room, length=2 * context)
        self._stage = Stage(base, self._servers)
        self._places = itertools.count()

    async def all(self) -> list[Step]:
        """Record the validation at the start, and every step."""
        self._publish(0)
        found = [Step(0, {}, await self._validated(0))]
        for step in range(1, self._circumstances.steps + 1):
            trained = await self._step(step)
            self._publish(step)
            found.append(Step(step, trained, await self._validated(step)))
        return found

    def _publish(self, step: int) -> None:
        spec, _ = self._circumstances.at(step)
        assert spec.model.effective_lora is not None
        oldest = step - self._circumstances.longest_lag
        self._servers.hold(step, self._learner.adapter, spec.model.effective_lora, oldest)

    async def _step(self, step: int) -> dict[str, float]:
        spec, world = self._circumstances.at(step)
        groups = await self._stage.train(spec, world, self._rows, self._places, step)
        own, trained = self._learner.train(Batch(step=step, epoch=0, groups=groups), spec)
        found = metrics.batch(groups, step, trained=trained, max_turns=spec.agent.turn_limit)
        if spec.data.train.task_column is not None:
            found |= tasks.batch(groups, [row["task"] for row in self._rows])
        return _rounded(own | found)

    async def _validated(self, step: int) -> dict[str, float] | None:
        spec, world = self._circumstances.at(step)
        given = spec.evaluation
        last = step == self._circumstances.steps
        if not driver.due(step, every=given.every_steps, at_start=given.at_start, last=last):
            return None
        groups = await self._stage.validate(spec, world, self._held_out, step)
        column = spec.data.validation.task_column if spec.data.validation else None
        named = [row["task"] for row in self._held_out] if column else None
        return _rounded(Summary.of(step, groups, given, spec.agent.turn_limit, named).metrics)


def _rounded(found: Mapping[str, float]) -> dict[str, float]:
    return {name: rounded(value) for name, value in kept(found).items()}
