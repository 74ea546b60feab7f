"""Samples the baseline: groups of episodes of the untrained model on training rows.

The sampling parameters are those of training. As in training, a group is durable once it is in the spool and
in the ledger. A restarted coordinator does not sample it again. Nothing is trained on baseline groups.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Final

from headway_analysis.estimate.plan import preflight_episodes
from headway_analysis.measures.tries import sampled_messages
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, Facts, Sampled
from headway_api import logs
from headway_api.artifacts import Layout
from headway_api.baseline_endpoint import OPTIONS
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, GroupRecord, Purpose
from headway_api.rows import tasks_of
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import Store
from headway_coordinator import group as groups
from headway_coordinator.bounds import LOST_LIMIT, lost
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.worst import Bill, Limits
from headway_coordinator.dataset import Data
from headway_coordinator.episode import Task
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.mixing import order_of
from headway_coordinator.preflight.evidence import GroupAnswers, Notebook, answers_of, sampled
from headway_coordinator.preflight.source import Source
from headway_coordinator.recurring import Recurring, given_up
from headway_coordinator.serial_executor import SerialExecutor
from headway_coordinator.spool import Spool
from headway_coordinator.trajectory.render import Renderer

LONG_TEXT: Final = 200_000
"""The most characters of a text whose tokens are counted. The tokens of a longer text are estimated."""
CHARACTERS_A_TOKEN: Final = 4
LOOKS: Final = 16
"""The next check for a certain failure comes once the number of episodes has grown by 1/`LOOKS`, because each
check reads all episodes."""
_log = logging.getLogger(__name__)


class CertainFailureError(Exception):
    """A check fails, and no later episode would change that."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.check)
        self.finding = finding


@dataclass
class BaselineSampler:
    """Samples the baseline of one job. All of its state changes on the event loop only."""

    spec: RLTrainingJobSpec
    data: Data
    facts: Facts
    renderer: Renderer
    layout: Layout
    store: Store
    spool: Spool
    ledger: Ledger
    start_number: int
    source: Source
    notebook: Notebook
    faults: Recurring
    budget: Budget
    limits: Limits
    certain: Callable[[Baseline], Finding | None]
    """Returns a failure that is certain, if a check that may stop the job has one."""
    changed: Callable[[], None]
    """Called at the end of every group, and when the shown faults change."""
    on_episode: Callable[[EpisodeRecord], None] = lambda record: None
    relative: groups.GroupJudge | None = None
    """Rewards the episodes of a group relative to each other, if the environment does so."""
    finished: dict[str, list[Sampled]] = field(default_factory=dict)
    """Group id -> the episodes of the finished group."""
    ended: int = 0
    """Number of episodes of finished groups."""
    in_flight: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    """When an episode last got a reward, or a group ended, in monotonic seconds."""
    counts: Counter[str] = field(default_factory=Counter)
    """Outcome -> number of episodes of this process."""
    _lost_in_a_row: int = 0
    """Number of consecutive groups without a scored episode."""
    _looked: int = 0
    """The number of episodes at the last check for certain failure."""
    _blocking: SerialExecutor = field(default_factory=SerialExecutor)

    @property
    def size(self) -> int:
        """Number of episodes of a group."""
        return self.spec.algorithm.group_size

    @property
    def wanted(self) -> int:
        """Number of episodes that the whole baseline has."""
        return preflight_episodes(self.spec.preflight.episodes, self.size, len(self.data.train))

    @property
    def baseline(self) -> Baseline:
        """The baseline of all groups that have finished so far."""
        found = [one for _, members in sorted(self.finished.items()) for one in members]
        begun = min((one.record.started_at for one in found), default=0.0)
        over = max((one.record.finished_at for one in found), default=0.0)
        at_once = min(self.wanted, self.source.limiter.ceiling)
        return Baseline(self.facts, found, self.wanted, (), over - begun, at_once)

    async def restore(self) -> None:
        """Restore a predecessor's groups. All are billed, and those with a score are not sampled again."""
        for group in await self._blocking(self.spool.baseline):
            await self._blocking(self.ledger.group, group)
            if group.group_id in self.plans and group.scored:
                self._add(group, await self._blocking(answers_of, self.store, self.layout, group))
        logs.event(_log, "baseline-restored", episodes=self.ended, wanted=self.wanted)

    async def run(self, episode: groups.Run) -> Finding | None:
        """Sample the missing groups. Returns the finding that ended the sampling early, if any.

        Args:
            episode: runs an episode.

        Raises:
            JobError: `EpisodesFailing`, `Superseded`, or the reason of a recurring fault.
        """
        ended: Finding | None = None
        try:
            self._ask(await asyncio.to_thread(self.certain, self.baseline))
            async with asyncio.TaskGroup() as tasks:
                for group_id, plan in self.plans.items():
                    if group_id not in self.finished:
                        tasks.create_task(self._one(plan, episode))
        except* CertainFailureError as found:
            ended = _first(found).finding
        return ended

    def _ask(self, finding: Finding | None) -> None:
        if finding is not None:
            raise CertainFailureError(finding)

    @cached_property
    def plans(self) -> dict[str, groups.Plan]:
        """Every group by its id, in the order in which training visits the rows."""
        spec, sampling = self.spec, self.spec.rollout.sampling
        named = tasks_of(self.data.train, spec.data.train.task_column)
        order = order_of(len(self.data.train), named, spec.data.task_weights, spec.seed, spec.data.shuffle)
        slots = [order.slot(position) for position in range(self.wanted // self.size)]
        made = [
            groups.Plan(
                slot=slot,
                purpose=Purpose.PREFLIGHT,
                step=0,
                row=self.data.train[slot.row],
                size=self.size,
                sampling=Sampling(
                    sampling.temperature,
                    sampling.top_p,
                    sampling.max_tokens,
                    spec.rollout.episode_token_limit,
                ),
                job_seed=spec.seed,
                sampled_by=self.source.sampled_by,
                model=self.source.model,
            )
            for slot in slots
        ]
        return {plan.group_id: plan for plan in made}

    async def _one(self, plan: groups.Plan, episode: groups.Run) -> None:
        """Run a group, store it and its usage, and from time to time check for a certain failure."""
        limit = self.limits.sampled(plan.sampling.max_tokens, plan.sampling.episode_tokens)
        bill = Bill(plan.purpose, plan.sampled_by, plan.model)
        async with self.budget.group(plan, bill, self.limits, limit) as reservation:
            group = await groups.run(
                replace(plan, spending=reservation),
                reservation.watched(partial(self._counted, episode)),
                self.source.limiter,
                start_number=self.start_number,
                max_retries=self.spec.rollout.max_retries,
                relative=self.relative,
            )
            answers = self.notebook.taken(group)
            own, group = group, await self._blocking(self._keep, group, answers)
            await self._blocking(self.ledger.group, group)
        if group is not own:
            answers = await self._blocking(answers_of, self.store, self.layout, group)
        self._lost_in_a_row = 0 if group.scored else self._lost_in_a_row + 1
        if self._lost_in_a_row >= LOST_LIMIT:
            found = self.faults.worst_cause()
            if found is None and self.source.model is not None:
                error = lost(group).termination
                raise JobError("EndpointFailing", error.message, field=OPTIONS["url"])
            raise lost(group) if found is None else given_up(found, begun=False)
        self._add(group, answers)
        self.changed()
        if self.ended >= self._looked + max(self.size, self._looked // LOOKS):
            self._looked = self.ended
            self._ask(await asyncio.to_thread(self.certain, self.baseline))

    def _keep(self, group: GroupRecord, answers: GroupAnswers) -> GroupRecord:
        """Store the sandboxes' answers, then the group, so that every stored group has its answers."""
        self.spool.refuse_superseded(self.start_number)
        self.store.put_new(self.layout.preflight_answers(group.key), answers.model_dump_json().encode())
        return self.spool.put(group)

    def _add(self, group: GroupRecord, answers: GroupAnswers) -> None:
        plan = self.plans[group.group_id]
        drawn = plan.task(0, 0).environment_seed
        found = sampled(group, answers, plan.row, drawn, self._tokens)
        self.finished[group.group_id] = [*map(self._recounted, found)]
        self.ended, self.moved_at = sum(map(len, self.finished.values())), time.monotonic()

    def _recounted(self, one: Sampled) -> Sampled:
        """The episode; if an endpoint sampled it, with token counts of the job's own model."""
        if self.source.model is None:
            return one
        messages, tools = list(one.record.messages), [dict(tool) for tool in one.tools]
        first = next(iter(sampled_messages(one.record)), None)  # the environment may begin with examples
        prompt = (
            messages[: next(at for at, each in enumerate(messages) if each is first)] if first else messages
        )
        try:
            count, whole = (len(self.renderer.render(part, tools)) for part in (prompt, messages))
        except Exception as error:  # the job's template may refuse what another model writes
            logs.event(
                _log, "not-recounted", level=logging.WARNING, episode=one.record.episode_id, error=str(error)
            )
            return one
        return replace(one, prompt_tokens=count, conversation_tokens=whole)

    @cached_property
    def _tokens(self) -> Callable[[str], int]:
        """A function that counts a text's tokens, without the tokens that the template writes around it."""
        renderer = self.renderer

        @lru_cache(maxsize=1024)
        def rendered(text: str) -> int:
            return len(renderer.render([{"role": "user", "content": text}], []))

        def tokens(text: str) -> int:
            if len(text) > LONG_TEXT:
                return len(text) // CHARACTERS_A_TOKEN
            return max(0, rendered(text) - rendered(""))

        return tokens

    async def _counted(self, episode: groups.Run, task: Task) -> EpisodeRecord:
        self.in_flight += 1
        try:
            record = await episode(task)
        finally:
            self.in_flight -= 1
        self.counts[record.outcome.value] += 1
        self.on_episode(record)
        at_once, scored = 1 + self.in_flight, record.reward is not None
        self.moved_at = time.monotonic() if scored else self.moved_at
        if self.faults.ended(record.episode_id, scored=scored, at_once=at_once):
            self.changed()
        if (found := self.faults.fatal_cause) is not None:
            raise given_up(found, begun=False)
        return record


def _first(found: BaseExceptionGroup[CertainFailureError]) -> CertainFailureError:
    error: BaseException = found
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, CertainFailureError)
    return error
