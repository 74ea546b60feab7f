"""Prepares each kind of candidate: on rollout servers, at an endpoint, or from a stored run."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp

from headway_api import logs, names
from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, WeightsManifest
from headway_api.sandbox_api import ResetReply
from headway_api.spec.candidate import Candidate
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.suite import BOUNDS, Suite, field_in_suite, field_of
from headway_api.status import ResolvedCandidate
from headway_api.store import Store
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.choice import GatewayAddresses, agent_of, suite_agent
from headway_coordinator.budget.gate import Budget, unbounded
from headway_coordinator.budget.worst import CONTEXTS, Limits
from headway_coordinator.endpoint.candidate import (
    connected,
    episodes_at_once,
    once_ready,
    patience,
    token_in_time,
)
from headway_coordinator.endpoint.chat import EndpointChat
from headway_coordinator.endpoint.owner import OfCandidate
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.proven import proven
from headway_coordinator.episode import Episodes, Rules, Sessions, Task
from headway_coordinator.evaluation import candidates, rescore
from headway_coordinator.evaluation.bounds import episode_limits
from headway_coordinator.evaluation.candidates import Readable
from headway_coordinator.evaluation.run import RunOfCandidate, Unit
from headway_coordinator.evaluation.servers import Served, served
from headway_coordinator.evaluation.state import EvalState
from headway_coordinator.faults import CandidateError, Cause
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend, TurnLimiter
from headway_coordinator.judges.answering import Judges
from headway_coordinator.recurring import Recurring
from headway_coordinator.sandboxes import Broker

RETRY_SECONDS: Final = 15.0
"""Seconds between two tries to fetch a missing model."""
_log = logging.getLogger(__name__)


class Nobody:
    """The `Sessions` of rescored episodes, for which no server has a session."""

    def forget(self, session: str) -> None:
        """Do nothing, because there is no session."""


@dataclass
class Units:
    """Makes the units of one job. Each unit closes whatever it has opened."""

    job: EvalConfig
    state: EvalState
    http: aiohttp.ClientSession
    key: str
    store: Store
    cache: Path
    broker: Broker
    first: ResetReply
    """How the environment begins the first row. Each candidate's context must have room for it."""
    server: GatewayServer
    """The gateway that agents outside this process call."""
    addresses: GatewayAddresses
    discover: Callable[[int], Discover]
    changed: Callable[[], None] = lambda: None
    suites: Mapping[str, Broker] = field(default_factory=dict)
    """Suite -> the broker of its sandboxes."""
    faults: Recurring = field(default_factory=Recurring)
    """Collects why episodes failed."""
    judges: Judges = field(default_factory=Judges)
    """The judges that the environment's reward and score may ask."""
    budget: Budget = field(default_factory=unbounded)
    """The limits on the job's usage."""
    contexts: dict[str, int] = field(default_factory=dict)
    """Candidate that has servers -> the most tokens of an episode."""
    endpoints: Path = field(
        default_factory=lambda: Path(os.environ.get(names.ENV_ENDPOINTS, names.ENDPOINTS_DIR))
    )
    """The folder with the tokens of endpoints."""
    fleets: dict[str, Fleet] = field(default_factory=dict)
    """Candidate that has servers now -> its fleet."""

    @property
    def _spec(self) -> RLEvalJobSpec:
        return self.job.spec

    def all(self) -> Iterator[Unit]:
        """All units: one for each set of servers, and one for each candidate without servers."""
        concurrency = self._spec.rollout.max_concurrency
        for number, members in sorted(self.job.server_sets.items()):
            limiter = AdaptiveSemaphore(concurrency)
            names = tuple(candidate.name for candidate in members)
            bring_up, model = (
                partial(self._on_servers, number, members, limiter),
                self.job.priced_as(members[0]),
            )
            yield Unit(names, "servers", bring_up, limiter, number, model=model, limits=self._limits)
        for resolved in self.job.candidates:
            asked = self._spec.entry_of(resolved.name)
            if asked.endpoint is not None:
                limiter = AdaptiveSemaphore(min(concurrency, episodes_at_once(self._spec, asked.endpoint)))
                bring_up, model = partial(self._at_endpoint, asked, limiter), asked.endpoint.model
                yield Unit((asked.name,), "endpoint", bring_up, limiter, model=model, limits=self._limits)
            if asked.rescore is not None:
                lost = set[str]()
                opened = partial(self._again, asked, lost)
                again = AdaptiveSemaphore(concurrency)
                yield Unit((asked.name,), "nobody", opened, again, settled=lost, limits=self._limits)

    def _limits(self, candidate: str, suite: str | None) -> Limits:
        """The bounds of a candidate's episode on a row, or on a sample of `suite`."""
        return episode_limits(self._spec, self.contexts.get(candidate, 0), suite)

    def _rules(self, backend: Backend | None = None) -> Rules:
        """The spec's rules for every episode. `backend` answers the episodes' turns, if any are sampled."""
        low, high = self._spec.reward.range
        sandbox = self._spec.environment.sandbox.deadline_seconds
        bounded = self._spec.agent.turn_limit is None
        return Rules(
            self._spec.rollout.timeout_seconds,
            sandbox,
            (low, high),
            self._spec.agent.field,
            partial(self._max_tokens, backend) if bounded else lambda: None,
        )

    def _max_tokens(self, backend: Backend | None) -> int | None:
        """The most tokens of an episode.

        Only an agent with its own loop has such a limit, and only under a budget.
        """
        if not self.budget.bounded or backend is None or backend.context_length is None:
            return None
        return CONTEXTS * backend.context_length

    def _player(self, backend: Backend, sessions: Sessions) -> groups.Run:
        agent = agent_of(self.job, backend, self.server, self.addresses, self.http)
        own = Episodes(self._rules(backend), agent, self.broker, sessions, self.faults.note, self.judges)
        by_suite = {suite.name: self._sampler(suite, backend, sessions) for suite in self._spec.suites}

        async def live(task: Task) -> EpisodeRecord:
            return await (own if task.suite is None else by_suite[task.suite]).run(task)

        return live

    def _sampler(self, suite: Suite, backend: Backend, sessions: Sessions) -> Episodes:
        """The runner of episodes on samples of a suite."""
        seconds, task = suite.sandbox.deadline_seconds, field_of(suite.name, "task")
        token_limit = partial(self._max_tokens, backend)
        rules = Rules(self._spec.rollout.timeout_seconds, seconds, BOUNDS, task, token_limit)
        agent = suite_agent(self.job, backend, self.server, self.addresses)

        def note(episode: str, cause: Cause) -> None:
            field = cause.field if cause.field == task else field_in_suite(suite.name, cause.field)
            self.faults.note(episode, dataclasses.replace(cause, field=field))

        return Episodes(rules, agent, self.suites[suite.name], sessions, note)

    @asynccontextmanager
    async def _on_servers(
        self, number: int, members: tuple[ResolvedCandidate, ...], limiter: AdaptiveSemaphore
    ) -> AsyncIterator[RunOfCandidate]:
        ready: dict[str, tuple[Readable, WeightsManifest]] = {}
        for candidate in members:
            if self._is_wanted(candidate.name):
                with self._fault_of(candidate.name):
                    ready[candidate.name] = await self._prepared(candidate)
                    self.contexts[candidate.name] = ready[candidate.name][0].context_length
        if not ready:
            yield {}
            return
        seconds = self._spec.rollout.timeout_seconds
        discover = self.discover(number)
        async with served(self.http, self.key, discover, ready, limiter, seconds) as found:
            self.fleets.update({name: one.fleet for name, one in found.items()})
            try:
                usable = await self._proven(found)
                yield {name: self._player(one.backend, one.fleet.router) for name, one in usable.items()}
            finally:
                for name in found:
                    del self.fleets[name]

    async def _prepared(self, candidate: ResolvedCandidate) -> tuple[Readable, WeightsManifest]:
        """Load a candidate's tokenizer, context length and manifest of weights.

        If the hub or the store does not answer, this retries.

        Raises:
            CandidateError: the model cannot be loaded, or not within `spec.pendingDeadlineSeconds`.
        """
        ends = time.monotonic() + self._spec.pending_deadline_seconds
        while True:
            try:
                return await asyncio.to_thread(self._prepare, candidate)
            except JobError as error:
                ending = error.termination
                logs.event(
                    _log,
                    "model-not-loaded",
                    level=logging.WARNING,
                    candidate=candidate.name,
                    error=ending.message,
                )
                if time.monotonic() > ends or not self._is_wanted(candidate.name):
                    field = candidates.model_fields(candidate.name, self._spec)[0]
                    raise CandidateError(ending.reason, ending.message, ending.field or field) from error
            await asyncio.sleep(RETRY_SECONDS)

    def _prepare(self, candidate: ResolvedCandidate) -> tuple[Readable, WeightsManifest]:
        manifest = candidates.manifest(candidate, self.store)
        found = candidates.readable(candidate, self._spec, self.first, self.store, self.cache)
        candidates.check_template(candidate, found, self.store)
        return found, manifest

    async def _proven(self, found: Mapping[str, Served]) -> dict[str, Served]:
        """The candidates whose weights are verified on servers. The others have failed."""

        served_at: float | None = None

        def served_since() -> float | None:
            nonlocal served_at
            if served_at is None and any(each.fleet.router.in_rotation() for each in found.values()):
                served_at = time.monotonic()
            return served_at

        async def one(name: str) -> None:
            field = candidates.model_fields(name, self._spec)[0]
            with self._fault_of(name):
                try:
                    patience = self._spec.pending_deadline_seconds
                    fleet, wanted = found[name].fleet, partial(self._is_wanted, name)
                    await proven(field, fleet, wanted, patience, served_since)
                except CandidateError:
                    # The weights may have been deleted meanwhile. If so, this raises the clearer error.
                    await asyncio.to_thread(candidates.manifest, self._resolved(name), self.store)
                    raise

        async with asyncio.TaskGroup() as tasks:
            for name in found:
                tasks.create_task(one(name))
        return {name: one for name, one in found.items() if self._is_wanted(name)}

    @asynccontextmanager
    async def _at_endpoint(
        self, asked: Candidate, limiter: AdaptiveSemaphore
    ) -> AsyncIterator[RunOfCandidate]:
        assert asked.endpoint is not None
        async with AsyncExitStack() as stack:
            chat: EndpointChat | None = None
            with self._fault_of(asked.name):
                before = self.state.candidates[asked.name].answered
                owner, token = OfCandidate(asked.name), await self._token(asked)
                opened = connected(
                    owner,
                    asked.endpoint,
                    token,
                    timeout=self._spec.rollout.timeout_seconds,
                    patience=patience(self._spec),
                    answered=before,
                )
                chat = await stack.enter_async_context(opened)
                await chat.probe()
            if chat is None or not self._is_wanted(asked.name):
                yield {}
                return
            self.state.candidates[asked.name].notes = chat.notes
            play = self._player(Backend(chat, TurnLimiter(limiter.follower())), chat)
            yield {asked.name: partial(once_ready, chat, play)}

    async def _token(self, asked: Candidate) -> str | None:
        """An endpoint's token, once its Secret exists.

        Until then, the candidate's message says that it waits for the Secret.
        """
        assert asked.endpoint is not None
        state, longest = self.state.candidates[asked.name], self._spec.pending_deadline_seconds

        def waits(why: str) -> bool:
            if state.message != why:
                state.message = why
                logs.event(_log, "token-missing", level=logging.WARNING, candidate=asked.name, error=why)
                self.changed()
            return self._is_wanted(asked.name)

        token = await token_in_time(asked.name, asked.endpoint, self.endpoints, longest, waits)
        state.message = None
        return token

    @asynccontextmanager
    async def _again(self, asked: Candidate, lost: set[str]) -> AsyncIterator[RunOfCandidate]:
        assert asked.rescore is not None
        stored: rescore.Stored = {}
        with self._fault_of(asked.name):
            stored = await asyncio.to_thread(rescore.stored, asked.name, asked.rescore, self.store)
        http = self._spec.agent.http
        reports = http is not None and http.reports_reward
        own_loop = not self._spec.agent.is_builtin
        agent = rescore.Rescorer(asked.name, asked.rescore, stored, reports, own_loop, lost)
        episodes = Episodes(self._rules(), agent, self.broker, Nobody(), self.faults.note, self.judges)

        async def judged(task: Task) -> EpisodeRecord:
            drawn = agent.environment_seed(self._spec.seed, task.episode_id)
            if drawn is not None:
                task = dataclasses.replace(task, environment_seed=drawn)
            return agent.counted(await episodes.run(task))

        yield {asked.name: judged} if self._is_wanted(asked.name) else {}

    def _resolved(self, name: str) -> ResolvedCandidate:
        return next(candidate for candidate in self.job.candidates if candidate.name == name)

    def _is_wanted(self, name: str) -> bool:
        return self.state.candidates[name].stage in ("Pending", "Running")

    @contextmanager
    def _fault_of(self, name: str) -> Iterator[None]:
        """Fail the candidate if the block raises a `CandidateError`, and continue after the block."""
        try:
            yield
        except CandidateError as fault:
            self.state.candidates[name].fault(fault)
            self.changed()
