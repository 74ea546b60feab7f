"""One episode's life: lease, reset, turns, finish, release; sealed as an `EpisodeRecord`.

Two deadlines of `rollout.timeoutSeconds` bound it: one to get a sandbox, one for everything after. If the
second passes while the policy still acts at its usual pace, the episode is Truncated and judged. Without such
episodes, nobody would see that the policy is slow. A failure becomes an outcome here and nowhere else. Only
cancellation and the errors that `Episodes.run` names leave this module.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

from pydantic import ValidationError

from headway_api import logs
from headway_api.exits import JobError
from headway_api.record import explained
from headway_api.records import EpisodeRecord, Judgement, Outcome, Purpose
from headway_api.sandbox_api import FinishReply, ResetReply
from headway_api.spec.judge import field_of as judge_field
from headway_coordinator.agents.agent import Agent, AgentResult, EpisodeContext
from headway_coordinator.budget.spending import UNBOUNDED, Spending
from headway_coordinator.cancel_token import CancelToken
from headway_coordinator.faults import AgentError, CandidateError, Cause, InfraError
from headway_coordinator.finish_reply import by_index, check_reward, check_sizes
from headway_coordinator.gateway.allowance import WholeAllowance
from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.judges.answering import Judges
from headway_coordinator.recurring import AGENT_FAILED, AGENT_HANGS, HANGS
from headway_coordinator.sandboxes import ENTRYPOINT, Broker, Sandbox
from headway_coordinator.trajectory.linearize import linearize

ERROR_LENGTH = 2000
"""The most characters that are kept of an error."""

JUDGEMENT_SECONDS = 60.0
"""The longest that the environment may take to judge an episode whose time is up. Its sandbox may end
earlier."""
PACE = 2.0
"""A wait keeps the pace if it takes at most this many times the longest wait before it. A longer one means
that a part of the platform hangs."""
AGENT = "the agent"

_log = logging.getLogger(__name__)


class Sessions(Protocol):
    """Remembers each episode between its turns, as the router of rollout servers does."""

    def forget(self, session: str) -> None: ...


@dataclass(frozen=True)
class Rules:
    """The spec's rules for every episode."""

    timeout_seconds: float
    sandbox_seconds: float
    """The longest life of a sandbox in use."""
    reward_range: tuple[float, float]
    agent_field: str | None = None
    """The spec's field that names the agent, if the agent is the user's own."""
    tokens: Callable[[], int | None] = lambda: None
    """Returns the most tokens of all prompts and answers of an episode, or None if there is no limit."""


@dataclass(frozen=True)
class Task:
    """One attempt at one episode."""

    group_id: str
    purpose: Purpose
    index: int
    attempt: int
    row: dict[str, Any]
    environment_seed: int
    """The environment's seed. A group's episodes share it, so they differ only by what the model does."""
    sampling_seed: int
    sampling: Sampling
    stop: CancelToken = field(default_factory=CancelToken, compare=False)
    """The cancel token of the episode's group."""
    spending: Spending = field(default=UNBOUNDED, compare=False)
    """Reserves what the episode's questions to judges may cost."""
    suite: str | None = None
    """Evaluation: the suite that the sample belongs to. None for a row of the job's own dataset."""
    queued_at: float | None = field(default=None, compare=False)
    """When the episode began to wait for its place, in Unix time."""

    @property
    def episode_id(self) -> str:
        return f"{self.group_id}-{self.index}-{self.attempt}"


@dataclass
class EpisodeProgress:
    """What is known of an episode while it runs. Its record is made from this, however the episode ends."""

    session: Session
    started_at: float
    stage: str = "a sandbox"
    """What the episode waits for. The error message names it."""
    why: str | None = None
    """Why the agent ended before it was done; None if it did not."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    acting_since: float = 0.0
    """When the agent began, in monotonic seconds."""
    sandbox_seconds: float = 0.0
    sandbox: Sandbox | None = None
    judge: str | None = None
    """The judge whose answer the episode waits for; None if it waits for no judge."""
    judgements: list[Judgement] = field(default_factory=list)

    @property
    def tool(self) -> str | None:
        """The tool that was called and has not returned; None if there is none."""
        return self.sandbox.calling if self.sandbox is not None else None


@dataclass(frozen=True)
class Ending:
    """How an episode ended."""

    outcome: Outcome
    error: str | None = None
    cause: Cause | None = None
    """The part of the job that caused the ending, if one did."""
    reply: FinishReply | None = None
    timed_out: bool = False


@asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError after `seconds`, even if a call of the episode times out at the same moment.

    A call may last as long as its episode, so both timers can fire at once, in either order.
    """
    async with asyncio.timeout(seconds) as limit:
        try:
            yield
        except InfraError as fault:
            deadline = limit.when()
            if deadline is None or asyncio.get_running_loop().time() < deadline:
                raise
            raise TimeoutError from fault


class Episodes:
    """Runs episodes with one agent and one broker."""

    def __init__(
        self,
        rules: Rules,
        agent: Agent,
        broker: Broker,
        sessions: Sessions,
        on_cause: Callable[[str, Cause], None] = lambda episode_id, cause: None,
        judges: Judges | None = None,
        on_first: Callable[[ResetReply], None] = lambda first: None,
    ) -> None:
        """Prepare to run episodes.

        Args:
            on_cause: called with an episode's id and the part of the job that failed in it, before `run`
                returns the episode.
            on_first: called with the environment's reply to each reset.
        """
        self._judges = judges or Judges()
        self._on_first = on_first
        self._rules = rules
        self._on_cause = on_cause
        self._agent = agent
        self._broker = broker
        self._sessions = sessions

    async def run(self, task: Task) -> EpisodeRecord:
        """Run one episode to its end and seal it.

        Raises:
            JobError: `Superseded`: another coordinator has claimed the sandboxes.
            CandidateError: the candidate that the episode measures cannot go on.
        """
        session = Session(
            episode_id=task.episode_id,
            seed=task.sampling_seed,
            sampling=task.sampling,
            whole=WholeAllowance(self._rules.tokens()),
            spending=task.spending,
        )
        progress = EpisodeProgress(session=session, started_at=time.time())
        try:
            async with task.stop.guard():
                await self._judges.ready()
                progress.started_at = time.time()
                session.clock.restart()
                ending = await self._live(task, progress)
        except TimeoutError:
            ending = self._out_of_time(progress)
        except InfraError as fault:
            text = f"{fault}; the agent: {progress.why}" if progress.why else str(fault)
            ending = Ending(Outcome.INFRA_ERROR, text, fault.cause)
        except ValidationError as error:
            text = f"{progress.stage} gave an invalid answer: {explained(error)}"
            ending = Ending(Outcome.INFRA_ERROR, text)
        except (JobError, CandidateError):  # ends the whole process, or the whole candidate
            raise
        except Exception as error:  # a bug costs its group a retry, not the job
            _log.exception("an episode failed while it waited for %s", progress.stage)
            ending = Ending(Outcome.INFRA_ERROR, f"{progress.stage}: {type(error).__name__}: {error}")
        finally:
            self._sessions.forget(task.episode_id)
        record = _sealed(task, progress, ending)
        if ending.cause is not None:
            self._on_cause(record.episode_id, ending.cause)
        if record.outcome is Outcome.INFRA_ERROR:
            logs.event(
                _log, "episode-failed", level=logging.WARNING, episode=record.episode_id, error=record.error
            )
        return record

    def _out_of_time(self, progress: EpisodeProgress) -> Ending:
        """The ending of an episode whose time is up, with what it waited for."""
        rules, tool = self._rules, progress.tool
        waited = progress.stage if tool is None else f"tool {tool}"
        text = f"the episode did not end within {rules.timeout_seconds:g} s; it was waiting for {waited}"
        cause = None
        if tool is not None:
            message = f"tool {tool} has not returned by the end of the episode's time"
            cause = Cause(HANGS, message, ENTRYPOINT)
        elif progress.judge is not None:
            text += f", which waits for judge {progress.judge}"
            cause = Cause("JudgeSlow", text, judge_field(progress.judge))
        elif progress.stage == AGENT and rules.agent_field is not None:
            cause = Cause(AGENT_HANGS, text, rules.agent_field)
        return Ending(Outcome.INFRA_ERROR, text, cause, timed_out=True)

    def _agents(self, why: str) -> Cause | None:
        """A failure of the agent, as a cause. None if the agent is not the user's own."""
        field = self._rules.agent_field
        return None if field is None else Cause(AGENT_FAILED, f"the agent failed: {why}", field)

    async def _live(self, task: Task, progress: EpisodeProgress) -> Ending:
        limit = self._rules.timeout_seconds
        async with self._sandbox(task, progress) as sandbox:
            context: EpisodeContext | None = None
            try:
                async with _within(limit):
                    progress.stage = "the environment's reset"
                    with progress.session.clock.timed("reset"):
                        first = await sandbox.reset(task.row, task.environment_seed)
                    self._on_first(first)
                    progress.stage, progress.acting_since = AGENT, time.monotonic()
                    context = EpisodeContext(
                        session=progress.session,
                        sandbox=sandbox,
                        purpose=task.purpose,
                        row=task.row,
                        first=first.messages,
                        tools=first.tools,
                        messages=progress.messages,
                    )
                    with progress.session.clock.timed("agent"):
                        outcome, played = await self._act(context)
                    if not progress.session.taken and outcome is not Outcome.TRUNCATED:
                        why = played.why or "it gave no reason"
                        cause = self._agents(f"it ended without a single turn: {why}")
                        raise InfraError(f"the agent ended without a single turn: {why}", cause)
                    return await self._judged(sandbox, progress, outcome, played)
            except TimeoutError:
                if context is None or not _slow_by_itself(context, progress):
                    raise
            async with _within(min(limit, JUDGEMENT_SECONDS)):
                late = AgentResult(
                    truncated=True,
                    why=f"the episode did not end within {limit:g} s, because its turns were slow",
                )
                ending = await self._judged(sandbox, progress, Outcome.TRUNCATED, late)
                return replace(ending, timed_out=True)

    async def _judged(
        self, sandbox: Sandbox, progress: EpisodeProgress, outcome: Outcome, played: AgentResult
    ) -> Ending:
        """The ending of an episode whose agent has ended, as the environment judges it."""
        progress.stage, progress.why = "the environment's judgement", played.why
        unfinished, taken = outcome is not Outcome.COMPLETED, progress.session.taken

        async def finish(judges: list[str]) -> FinishReply:
            reported = (played.reported, played.metrics)
            return await sandbox.finish(progress.messages, unfinished, *reported, taken, judges)

        def waits(judge: str | None) -> None:
            progress.judge = judge

        with progress.session.clock.timed("judgement"):
            reply = await self._judges.finished(
                sandbox, finish, progress.judgements.append, waits, progress.session.spending
            )
        check_reward(reply, self._rules.reward_range, taken)
        check_sizes(reply)
        cause = self._agents(played.why or "") if outcome is Outcome.AGENT_ERROR else None
        return Ending(outcome, played.why, cause, reply)

    async def _act(self, context: EpisodeContext) -> tuple[Outcome, AgentResult]:
        try:
            played = await self._agent.play(context)
        except AgentError as fault:
            return Outcome.AGENT_ERROR, AgentResult(truncated=True, why=str(fault))
        return (Outcome.TRUNCATED if played.truncated else Outcome.COMPLETED), played

    @asynccontextmanager
    async def _sandbox(self, task: Task, progress: EpisodeProgress) -> AsyncIterator[Sandbox]:
        """A leased sandbox. Notes how long it was in use."""
        waiting = asyncio.timeout(self._rules.timeout_seconds)
        leased = self._broker.lease(task.episode_id, self._rules.sandbox_seconds, self._rules.timeout_seconds)
        clock = progress.session.clock
        leased_at_last = clock.begin("sandbox")
        returned = leased_at_last
        try:
            async with waiting, leased as sandbox:
                leased_at_last()
                waiting.reschedule(None)
                start = time.monotonic()
                progress.sandbox, sandbox.clock = sandbox, clock
                try:
                    yield sandbox
                finally:
                    # A sandbox is not in use beyond its longest life: the rest is a wait for its end.
                    used = time.monotonic() - start
                    progress.sandbox_seconds = min(used, self._rules.sandbox_seconds)
                    returned = clock.begin("release")
        finally:
            leased_at_last()
            returned()


def _sealed(task: Task, progress: EpisodeProgress, ending: Ending) -> EpisodeRecord:
    """The episode's record. If it cannot be made, the episode is an InfraError, and the job goes on.

    The record then has the turns and the judgements, which are billed, and no training row.
    """
    try:
        return seal(task, progress, ending)
    except Exception as error:
        _log.exception("the record of episode %s cannot be made", task.episode_id)
        why = explained(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        return EpisodeRecord(
            **_of_any_record(task, progress, ending),
            outcome=Outcome.INFRA_ERROR,
            error=_storable(f"its record cannot be made: {why}"),
            messages=[],
            rows=[],
            turns=progress.session.turns,
        )


def seal(task: Task, progress: EpisodeProgress, ending: Ending) -> EpisodeRecord:
    """The record of an episode that has ended.

    Raises:
        ValidationError: a part of the episode breaks a bound of the record.
    """
    reply, turns = ending.reply, progress.session.record
    return EpisodeRecord(
        **_of_any_record(task, progress, ending),
        outcome=ending.outcome,
        token_limited=ending.outcome is Outcome.TRUNCATED and progress.session.limited,
        error=_storable(ending.error),
        cause=ending.cause.reason if ending.cause else None,
        reward=reply.reward if reply else None,
        turn_rewards=by_index(reply.turn_rewards, turns) if reply and reply.turn_rewards else None,
        score=reply.score if reply else None,
        metrics=reply.metrics if reply else {},
        messages=progress.messages,
        turns=turns,
        rows=linearize(progress.session.graph, progress.session.untrained),
        forks=progress.session.forks,
        drifts=list(progress.session.drifts.values()),
        ignored=dict(progress.session.ignored),
        spans=progress.session.clock.spans,
    )


def _of_any_record(task: Task, progress: EpisodeProgress, ending: Ending) -> dict[str, Any]:
    """The fields that every record of an episode has, whatever its result."""
    return {
        "episode_id": task.episode_id,
        "group_id": task.group_id,
        "index": task.index,
        "attempt": task.attempt,
        "timed_out": ending.timed_out,
        "judgements": progress.judgements,
        "sandbox_seconds": progress.sandbox_seconds,
        "queued_at": task.queued_at,
        "started_at": progress.started_at,
        "finished_at": time.time(),
    }


def _slow_by_itself(context: EpisodeContext, progress: EpisodeProgress) -> bool:
    """Whether an episode whose time is up was slow by itself, and did not wait for a part that hangs."""
    if progress.stage != AGENT or not context.session.taken or context.fault() is not None:
        return False
    return keeps_pace(progress.acting_since, context.session.answered_at, time.monotonic())


def keeps_pace(began: float, answered: Sequence[float], now: float) -> bool:
    """Whether the agent's current wait has taken at most `PACE` times its longest wait before.

    Args:
        began: when the agent began, in monotonic seconds.
        answered: when each of the agent's turns was answered.
        now: the current time.
    """
    waits = [after - before for before, after in pairwise([began, *answered])]
    return bool(waits) and now - answered[-1] <= PACE * max(waits)


def _storable(text: str | None) -> str | None:
    """Text that UTF-8 can encode, cut to `ERROR_LENGTH`: errors quote what others wrote."""
    return None if text is None else text[:ERROR_LENGTH].encode(errors="replace").decode()
