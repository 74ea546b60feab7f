"""The parts of a training job that run once its preflight has passed: servers, steps and their watch."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from headway_api.config import JobConfig
from headway_api.records import EpisodeRecord, Purpose
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.budget.gate import Budget
from headway_coordinator.engines.concurrency import Concurrency
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Router
from headway_coordinator.episode_runners import EpisodeRunners
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.preflight.run import Ready
from headway_coordinator.recurring import Recurring
from headway_coordinator.sandboxes import Broker
from headway_coordinator.spool import Spool
from headway_coordinator.stall import Watch, training_watch
from headway_coordinator.training import Callbacks, Training
from headway_coordinator.training_outlets import TrainingOutlets
from headway_coordinator.validation_servers import validation_servers
from headway_coordinator.validations import ConcurrentValidation


@dataclass(frozen=True)
class RolloutServers:
    """How the job's rollout servers are found and called."""

    http: aiohttp.ClientSession
    key: str
    discover: Discover
    discover_validation: Discover
    replicas: int
    on_load: Callable[[float], None]
    """Called with the seconds of each load of weights."""


@dataclass(frozen=True)
class Accounts:
    """What the process records of the job: groups, usage, budget and faults."""

    spool: Spool
    ledger: Ledger
    budget: Budget
    faults: Recurring
    on_episode: Callable[[EpisodeRecord], None]


@dataclass(frozen=True)
class TrainingParts:
    """The parts of one training job. They are made together."""

    servers: RolloutServers
    training: Training
    fleet: Fleet
    watch: Watch
    concurrent: ConcurrentValidation | None
    """Samples held-out rows while training goes on."""

    @property
    def dedicated(self) -> Router | None:
        """The router of the server for held-out rows; None if there is none."""
        return self.concurrent.dedicated if self.concurrent is not None else None

    @property
    def fleets(self) -> dict[Purpose, Fleet]:
        """The servers, by the purpose of the episodes that they sample."""
        found = {Purpose.TRAIN: self.fleet}
        if self.concurrent is not None and self.concurrent.limiter is not None:
            found[Purpose.VALIDATION] = self.concurrent.fleet
        return found

    def set_replicas(self, replicas: int) -> None:
        """Expect another number of rollout servers."""
        self.fleet.router.replicas = replicas
        if self.concurrent is not None and self.concurrent.limiter is None:
            self.concurrent.fleet.router.replicas = replicas

    def background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The coroutines to run beside the training until it ends."""
        http, key = self.servers.http, self.servers.key
        yield self.fleet.run()
        yield Concurrency(http, key, self.fleet.router, self.training.limiter).run()
        if (concurrent := self.concurrent) is not None:
            yield concurrent.fleet.run()
            if concurrent.limiter is not None:
                yield Concurrency(http, key, concurrent.fleet.router, concurrent.limiter).run()
        yield self.watch.run()


def assembled(
    job: JobConfig,
    ready: Ready,
    servers: RolloutServers,
    accounts: Accounts,
    outlets: TrainingOutlets,
    broker: Broker,
    episode_runners: EpisodeRunners,
    *,
    start_number: int,
    started: float,
    changed: Callable[[], None],
) -> TrainingParts:
    """The parts of a job, connected with each other. Nothing runs yet."""
    spec, rollout = job.spec, job.spec.rollout
    fleet = Fleet(servers.http, servers.key, servers.discover, servers.on_load, outlets.synced)
    fleet.router.replicas = servers.replicas
    limiter = AdaptiveSemaphore(rollout.max_concurrency)
    episode_runners.places.clear()  # the turn limiters of the preflight, which has ended
    episode = episode_runners.on(fleet, limiter)
    concurrent = validation_servers(
        job,
        servers.http,
        servers.key,
        episode_runners,
        servers.discover,
        servers.discover_validation,
        servers.replicas,
    )
    outlets.metrics.tasks = ready.data.tasks.get("train")
    training = Training(
        spec,
        ready.data,
        fleet,
        accounts.spool,
        accounts.ledger,
        episode,
        start_number,
        limiter,
        Callbacks(
            on_change=outlets.moved,
            on_validation=outlets.validated,
            on_test=outlets.tested,
            on_episode=accounts.on_episode,
            paused=lambda: outlets.pauses.is_paused,
        ),
        concurrent=concurrent,
        signals=outlets.signals,
        faults=accounts.faults,
        relative=episode_runners.relative,
        budget=accounts.budget,
        limits=episode_runners.limits,
        started=started,
    )
    accounts.budget.busy, accounts.budget.drain = training.learner_may_step, training.drain
    outlets.training = training
    watch = training_watch(training, fleet.router, broker.pool, changed, rollout.timeout_seconds)
    return TrainingParts(servers, training, fleet, watch, concurrent)
