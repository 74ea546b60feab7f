"""The sources of baseline episodes: the job's model on a rollout server, or an endpoint that a user named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Protocol

import aiohttp

from headway_api.baseline_endpoint import BaselineEndpoint
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, SampledBy, WeightsManifest
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.endpoint.candidate import connected, episodes_at_once, once_ready, patience
from headway_coordinator.endpoint.chat import EndpointChat
from headway_coordinator.endpoint.owner import OfBaseline
from headway_coordinator.engines.concurrency import Concurrency
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.proven import proven
from headway_coordinator.episode import Task
from headway_coordinator.episode_runners import EpisodeRunners
from headway_coordinator.faults import CandidateError
from headway_coordinator.group import Run
from headway_coordinator.sandboxes import Witness

NOT_ASKED: Final = "the preflight samples nothing now"
PATIENCE_SECONDS: Final = 120.0
"""The longest time that an endpoint may have no success. It is short, because a person waits meanwhile."""
Witnesses = Callable[[str], Witness]
"""Episode id -> the witness that notes the answers of the episode's sandbox."""


class Source(Protocol):
    """A model that samples the turns of baseline episodes."""

    @property
    def state(self) -> Literal["Sampling", "Running"]:
        """The preflight's state while this source samples. `Sampling` makes the operator start a server."""

    @property
    def sampled_by(self) -> SampledBy:
        """The value of `GroupRecord.sampled_by`."""

    @property
    def model(self) -> str | None:
        """The name of the endpoint's model; None: the job's own model samples."""

    @property
    def note(self) -> str | None:
        """A remark for the summary, if the weights are not those that the job starts from."""

    @property
    def limiter(self) -> AdaptiveSemaphore:
        """Bounds the episodes in flight."""

    def serving(self, *, answered: bool) -> AbstractAsyncContextManager[None]:
        """Wait until the source answers, and keep it available during the block.

        Args:
            answered: whether an earlier process had answers from this source.

        Raises:
            JobError: the source does not answer.
        """

    def episode(self, episode_runners: EpisodeRunners, witness: Witnesses) -> Run:
        """A function that runs an episode. Call this inside the block of `serving`."""

    def problem(self) -> str | None:
        """Why turns cannot be sampled now; None if they can."""


@dataclass
class OnServer:
    """The job's model on one rollout server."""

    fleet: Fleet
    note: str | None
    limiter: AdaptiveSemaphore
    http: aiohttp.ClientSession
    key: str
    """The coordinator's key for rollout servers."""
    patience: float
    """The longest time, in seconds, that the server may fail to load the weights."""
    state: Literal["Sampling"] = "Sampling"
    sampled_by: SampledBy = "servers"
    model: str | None = None

    @classmethod
    async def of(
        cls,
        spec: RLTrainingJobSpec,
        weights: tuple[WeightsManifest, str | None],
        http: aiohttp.ClientSession,
        key: str,
        discover: Discover,
    ) -> OnServer:
        """A source on the server that `discover` finds.

        `weights` is the result of `start.manifest`: the weights, and a remark about them.
        """
        manifest, note = weights
        fleet = Fleet(http, key, discover, unannounced=NOT_ASKED)
        await fleet.want(manifest)
        # The same number of episodes as in a validation, which also has one server.
        limiter = AdaptiveSemaphore(spec.validation_episodes)
        return cls(fleet, note, limiter, http, key, spec.pending_deadline_seconds)

    @asynccontextmanager
    async def serving(self, *, answered: bool) -> AsyncIterator[None]:
        running = [
            asyncio.create_task(self.fleet.run()),
            asyncio.create_task(Concurrency(self.http, self.key, self.fleet.router, self.limiter).run()),
        ]
        try:
            try:
                await proven("spec.model.base", self.fleet, lambda: True, self.patience)
            except CandidateError as fault:
                raise JobError(fault.reason, str(fault), field=fault.field, permanent=False) from fault
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def episode(self, episode_runners: EpisodeRunners, witness: Witnesses) -> Run:
        return episode_runners.on(self.fleet, self.limiter, witness)

    def problem(self) -> str | None:
        found = self.fleet.router.problem()
        return None if found is None else f"rollout servers: {found}"


class AtEndpoint:
    """A model behind an OpenAI-compatible endpoint. No rollout server starts."""

    state: Literal["Running"] = "Running"
    sampled_by: SampledBy = "endpoint"

    def __init__(self, spec: RLTrainingJobSpec, asked: BaselineEndpoint) -> None:
        at_once = min(spec.validation_episodes, episodes_at_once(spec, asked.spec))
        self.limiter = AdaptiveSemaphore(at_once)
        self.model: str | None = asked.spec.model
        self.note: str | None = f"sampled at an endpoint by {asked.spec.model}"
        self._spec = spec
        self._asked = asked
        self._chat: EndpointChat | None = None

    @asynccontextmanager
    async def serving(self, *, answered: bool) -> AsyncIterator[None]:
        opened = connected(
            OfBaseline(),
            self._asked.spec,
            self._asked.token,
            timeout=self._spec.rollout.timeout_seconds,
            patience=min(PATIENCE_SECONDS, patience(self._spec)),
            answered=answered,
        )
        async with opened as self._chat:
            try:
                await self._chat.probe()
            except CandidateError as fault:
                raise _final(fault) from fault
            yield

    def episode(self, episode_runners: EpisodeRunners, witness: Witnesses) -> Run:
        assert self._chat is not None, "serving has begun"
        return partial(self._play, self._chat, episode_runners.at(self._chat, self.limiter, witness))

    async def _play(self, chat: EndpointChat, play: Run, task: Task) -> EpisodeRecord:
        try:
            return await once_ready(chat, play, task)
        except CandidateError as fault:
            raise _final(fault) from fault

    def problem(self) -> str | None:
        return self._chat.problem if self._chat is not None else None


def _final(fault: CandidateError) -> JobError:
    return JobError(fault.reason, str(fault), field=fault.field)
