"""Plays the groups of a recorded run with the product's own agent, gateway, episodes and sandbox session.

Everything runs in one process and one event loop. Two parts are not the product's: the sandbox, which is
not a pod, and the servers, which are `servers.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.signals import judges
from tests.signals.circumstances import World
from tests.signals.servers import Servers

from headway_api.records import EpisodeRecord, GroupRecord, Purpose
from headway_api.sandbox_api import FinishReply, ResetReply, ToolReply
from headway_api.seeds import seed
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator import group as groups
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.dataset import Order
from headway_coordinator.episode import Episodes, Rules, Task
from headway_coordinator.evaluation import driver
from headway_coordinator.faults import InfraError
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.trajectory import render
from headway_coordinator.trajectory.calls import Message, Parsed, Tool
from headway_sandbox.session import Session

Row = dict[str, Any]
NEVER = 1e6
"""Seconds of a deadline that never expires in a run."""
MORE = 4
"""Batches' worth of groups that a step may abandon before the run fails."""


def rows_of(folder: Path, split: str) -> list[Row]:
    """Rows of the demo's data, with the split and the task of each as columns of their own."""
    module = judges.example()
    rows = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
    for row in rows:
        tool = module.LOOKUP[module.case_record(row["case_id"])["tier"]]
        row |= {"split": split, "task": tool.removeprefix("get_")}
    return rows


@dataclass(frozen=True)
class Fate:
    """Decides by the seed which episodes a fault affects. An episode's retries have the same fate."""

    job_seed: int

    def befalls(self, what: str, share: float, task: Task) -> bool:
        """Whether the fault affects this episode."""
        return share > 0 and seed(self.job_seed, what, task.group_id, task.index) < share * 2**31


class Box:
    """A sandbox of one episode, in this process."""

    def __init__(self, session: Session, *, lost: bool, late: bool) -> None:
        self._session, self._lost, self._late = session, lost, late
        self.calling: str | None = None
        """A tool call that has not returned. There is none, because calls are synchronous."""

    async def reset(self, row: Row, seed: int) -> ResetReply:
        return ResetReply.model_validate(self._session.reset({"row": row, "seed": seed}))

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        self._fail()
        return ToolReply.model_validate(self._session.call({"name": name, "arguments": arguments}))

    async def finish(
        self,
        messages: list[dict[str, Any]],
        truncated: bool,
        reported: list[float] | None = None,
        metrics: dict[str, float] | None = None,
        turns: int = 0,
        judges: Sequence[str] = (),
    ) -> FinishReply:
        self._fail()
        body = {"messages": messages, "truncated": truncated, "turns": turns}
        return FinishReply.model_validate(self._session.finish(body))

    def _fail(self) -> None:
        if self._late:
            raise TimeoutError
        if self._lost:
            raise InfraError("sandbox gone: the node was drained")


class Boxes:
    """Leases sandboxes."""

    def __init__(self, world: World, job_seed: int) -> None:
        self._world, self._fate = world, Fate(job_seed)
        self.tasks: dict[str, Task] = {}
        """Episode -> its task."""

    @asynccontextmanager
    async def lease(self, episode_id: str, deadline_seconds: float, timeout: float) -> AsyncIterator[Any]:
        """Lease a new sandbox for each episode."""
        task, world = self.tasks[episode_id], self._world
        judge = world.judge
        if task.purpose is Purpose.VALIDATION and world.measured_by is not None:
            judge = world.measured_by
        luck = seed(self._fate.job_seed, "luck", task.group_id, task.index) / 2**31
        yield Box(
            Session(lambda: judges.desk(judge, world.down, luck)),
            lost=self._fate.befalls("lost", world.lost, task),
            late=self._fate.befalls("late", world.late, task),
        )

    def forget(self, session: str) -> None:
        """Forget an episode that has ended, as the router does."""
        self.tasks.pop(session, None)


class Reader:
    """The product's renderer with a cache, and with the fault that servers lose closing tags.

    The episodes of a group are similar. Without the cache, half of a step would render the same templates
    again.
    """

    def __init__(self, inner: Any, garbled: float, closing: int) -> None:
        """`closing` is the token of the tag that is lost in the share `garbled` of the turns."""
        self._inner, self._garbled, self._closing = inner, garbled, closing
        self._turns = itertools.count()
        self._found: dict[tuple[object, ...], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return list(self._once("render", messages, tools))

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        found = self._once("extend", prompt, sampled, history, new, tools)
        return None if found is None else list(found)

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        if judges.draw(next(self._turns), list(sampled)) < self._garbled:
            sampled = [token for token in sampled if token != self._closing]
        found: Parsed = self._once("parse", sampled, prompt, tools)
        return found

    def _once(self, what: str, *given: object) -> Any:
        key = (what, *map(repr, given))
        if key not in self._found:
            self._found[key] = getattr(self._inner, what)(*given)
        return self._found[key]


class Stage:
    """Plays the groups of a run."""

    def __init__(self, base: Path, servers: Servers) -> None:
        self._renderer, tokenizer = render.load(base)
        self._closing = tokenizer.convert_tokens_to_ids("</tool_call>")
        self._servers = servers

    async def train(
        self, spec: RLTrainingJobSpec, world: World, rows: Sequence[Row], places: Iterator[int], step: int
    ) -> list[GroupRecord]:
        """The batch of `step`: the next groups in the data's order. Another group replaces an abandoned one.

        Args:
            places: positions in the data's order that no group has had.
        """
        found: list[GroupRecord] = []
        size = spec.algorithm.batch_size
        for _ in range(MORE):
            plans = [self._plan(spec, rows, next(places), step) for _ in range(size - len(found))]
            newest = step - 1
            lags = [world.lags[(step + number) % len(world.lags)] for number in range(len(plans))]
            versions = {plan.group_id: max(0, newest - lag) for plan, lag in zip(plans, lags, strict=True)}
            played = await self._play(spec, world, plans, versions, training=True)
            found += [group for group in played if group.abandoned is None]
            if len(found) == size:
                return found
        raise RuntimeError(f"step {step}: too many groups were abandoned")

    async def validate(
        self, spec: RLTrainingJobSpec, world: World, rows: Sequence[Row], step: int
    ) -> list[GroupRecord]:
        """The held-out rows by the weights of `step`."""
        given = spec.evaluation.sampling
        tokens = given.max_tokens or spec.rollout.sampling.max_tokens
        sampling = Sampling(given.temperature, given.top_p, tokens)
        plans = driver.plans(rows, step, spec.evaluation.group_size, sampling, spec.seed)
        versions = {plan.group_id: step for plan in plans}
        return await self._play(spec, world, plans, versions, training=False)

    def _plan(self, spec: RLTrainingJobSpec, rows: Sequence[Row], place: int, step: int) -> groups.Plan:
        slot = Order(rows=len(rows), seed=spec.seed).slot(place)
        given = spec.rollout.sampling
        return groups.Plan(
            slot=slot,
            purpose=Purpose.TRAIN,
            step=step - 1,
            row=dict(rows[slot.row]),
            size=spec.algorithm.group_size,
            sampling=Sampling(given.temperature, given.top_p, given.max_tokens),
            job_seed=spec.seed,
        )

    async def _play(
        self,
        spec: RLTrainingJobSpec,
        world: World,
        plans: Sequence[groups.Plan],
        versions: Mapping[str, int],
        *,
        training: bool,
    ) -> list[GroupRecord]:
        self._servers.begin(world, versions, training=training)
        context = spec.model.context_length
        assert context is not None
        renderer: Any = Reader(self._renderer, world.garbled, self._closing)
        gateway = Gateway(renderer, self._servers, context, NEVER)
        turns = spec.agent.turn_limit
        assert turns is not None
        low, high = spec.reward.range
        boxes: Any = Boxes(world, spec.seed)
        episodes = Episodes(Rules(NEVER, NEVER, (low, high)), Builtin(gateway, turns), boxes, boxes)

        async def episode(task: Task) -> EpisodeRecord:
            boxes.tasks[task.episode_id] = task
            return await episodes.run(task)

        async with asyncio.TaskGroup() as running:
            tasks = [
                running.create_task(
                    groups.run(
                        plan, episode, nullcontext(), start_number=0, max_retries=spec.rollout.max_retries
                    )
                )
                for plan in plans
            ]
        return [task.result() for task in tasks]
