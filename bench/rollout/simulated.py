"""Simulates a job only from its latencies, with the product's own scheduler.

An episode takes the time of its tool calls, plus a fixed time for each turn. Nothing else takes time. Real
runs are slower, because two cores are too few for so many concurrent episodes.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.support.job import Plan
from headway_coordinator.scheduler.slots import BatchScheduler


def episode_seconds(plan: Plan, position: int, index: int, turn_seconds: float) -> float:
    """Seconds of an episode. Its tool calls take the same times as in the real run."""
    name = f"t0-{position:06d}-{index}-0"
    calls = sum(plan.latency.draw(name, call) for call in range(plan.turns - 1))
    return calls + plan.turns * turn_seconds


@dataclass
class Simulation:
    """An event-driven simulation of a job."""

    plan: Plan
    turn_seconds: float
    now: float = 0.0
    _events: list[tuple[float, int, int | None]] = field(default_factory=list)
    """Heap of (time, tie-breaker, group position of the episode that ends). With None, the learner ends a
    step."""
    _number: Iterator[int] = field(default_factory=itertools.count)
    _queue: deque[tuple[int, int]] = field(default_factory=deque)
    _left: dict[int, int] = field(default_factory=dict)
    _running: int = 0
    _batch: list[int] | None = None

    def run(self) -> float:
        """Simulate the job, and return its seconds."""
        plan = self.plan
        total = plan.steps * plan.batch_size
        scheduler = BatchScheduler(plan.batch_size, plan.lag, plan.steps, total, order=plan.sampler)  # type: ignore[arg-type]
        while not scheduler.done:
            self._start(scheduler)
            self.now, _, position = heapq.heappop(self._events)
            if position is None:
                scheduler.trained(scheduler.step + 1, self._batch or [])
                self._batch = None
                continue
            self._running -= 1
            self._left[position] -= 1
            if self._left[position] == 0:
                scheduler.finished(position)
        return self.now

    def _start(self, scheduler: BatchScheduler) -> None:
        while (position := scheduler.start()) is not None:
            self._left[position] = self.plan.group_size
            self._queue.extend((position, index) for index in range(self.plan.group_size))
        while self._queue and self._running < self.plan.concurrency:
            position, index = self._queue.popleft()
            self._running += 1
            self._after(episode_seconds(self.plan, position, index, self.turn_seconds), position)
        if self._batch is None and (batch := scheduler.take()) is not None:
            self._batch = batch
            self._after(self.plan.train_seconds, None)

    def _after(self, seconds: float, what: int | None) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), what))


def seconds(plan: Plan, turn_seconds: float) -> float:
    """Seconds that a job takes according to its latencies alone."""
    return Simulation(plan, turn_seconds).run()
