"""The coordinator process, `python -m headway_coordinator`: wires the rooms and decides nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import aiohttp
import uvloop

from headway_api import config, logs, names, prices
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.exits import JobError, job_error, leave, not_final
from headway_api.records import EpisodeRecord, GroupRecord, PolicyVersion, WeightsManifest
from headway_api.store import NotFound, Store, open_store
from headway_api.store_away import Patience, store_explained
from headway_api.weights_format import EXPORT_FILE
from headway_coordinator import conditions, view
from headway_coordinator import status as status_writer
from headway_coordinator.agents.choice import Where, agent_of, agent_url, where
from headway_coordinator.bounds import SUPERSEDED
from headway_coordinator.engines.concurrency import Concurrency
from headway_coordinator.engines.fleet import Discover, Fleet, by_dns
from headway_coordinator.engines.router import Router
from headway_coordinator.episode import Episodes, Rules
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend, Places
from headway_coordinator.http import connector, listen
from headway_coordinator.learner_api import LearnerApi
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.ledger.usage import usage
from headway_coordinator.metrics import mlflow
from headway_coordinator.metrics.prometheus import Exporter, Sample
from headway_coordinator.metrics.steps import StepFigures
from headway_coordinator.preflight.run import Ready, Runner
from headway_coordinator.room import Room
from headway_coordinator.sandboxes import Broker
from headway_coordinator.spool import Spool
from headway_coordinator.stall import Watch
from headway_coordinator.training import Training

FAREWELL_SECONDS = 60.0
"""Longest a finished coordinator waits for the learner to hear of it."""
LAST_CHECKPOINT_SECONDS = 3600.0
"""Longest it waits for the last step to become durable; then it ends as it is, and status says what is."""
EXPORT_POLL_SECONDS = 1.0
LAST_WORD_SECONDS = 600.0
"""Longest it tries to write its last status: an API server that is upgraded is away for minutes."""
CLAIM_SECONDS = 600.0
STORE_SECONDS = 3600.0
"""Longest a blocking step of the start may take: a model's files, or the spool of a long run."""

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Coordinator:
    """One process of one job."""

    def __init__(
        self,
        job: JobConfig,
        token: str,
        store: Store,
        cache: Path,
        sink: status_writer.Sink,
        *,
        told: st.RLTrainingJobStatus | None = None,
        broker_url: str | None = None,
        discover: Discover | None = None,
        port: int = names.PORT_COORDINATOR,
        gateway_port: int = names.PORT_GATEWAY,
        at: Where | None = None,
        book: prices.PriceBook = prices.DEFAULT,
    ) -> None:
        self.job = job
        self.spec = job.spec
        self.layout = Layout(job.spec.output.uri, job.namespace, job.name, job.uid)
        self._token = token
        self._store = store
        self._cache = cache
        self._broker_url = broker_url or job.broker_url
        self._discover = discover or by_dns(job.rollout_host)
        self._port = port
        self._gateway_port = gateway_port
        self._where = at or where(job, os.environ.get(names.ENV_POD_IP, "127.0.0.1"), gateway_port)
        self._book = book
        self._spool = Spool(store, self.layout)
        self._ledger = Ledger(store, self.layout)
        self._exporter = Exporter(job.namespace, job.name, self._samples)
        self._api = LearnerApi(token, self._exporter.text)
        self._status = status_writer.Writer(sink, self.status, self._scaled)
        self._replicas = job.spec.rollout.replicas
        self._told = told or st.RLTrainingJobStatus()
        """What a predecessor said: it stands until this process knows as much."""
        self._conditions = conditions.Conditions(self._told.conditions)
        self._preflight = st.Preflight(state="Running")
        self._figures = StepFigures(job.spec)
        self._training: Training | None = None
        self._watch: Watch | None = None
        self._fleet: Fleet | None = None
        self._places: Places | None = None
        self._restoring = True
        """What a predecessor saw is shown again, and tracked where it could not be any more."""
        self.fault: BaseException | None = None
        """What ended a background task, and with it the process."""

    async def run(self) -> None:
        """Live the whole job, from preflight to report.

        Raises:
            JobError: something a person must mend.
        """
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector()))
            await listen(stack, self._api.app(), self._port)
            writer = self._background(stack, self._status.run())
            try:
                await self._work(stack, http)
            finally:
                writer.cancel()
                if not is_superseded(sys.exc_info()[1]):
                    await self._status.flush()

    async def _work(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        with not_final(begun(self._told)):
            incarnation = await self._blocking(self._spool.incarnation)
        runner = Runner(self.spec, self.layout, self._checked, begun(self._told))
        ready = await self._blocking(runner.basics, self._store, self._cache)
        owner = f"{self.job.name}-{incarnation}"
        on_tool = partial(self._exporter.observe, "sandbox/tool_call_seconds")
        broker = Broker(http, self._broker_url, self._token, owner, on_tool)
        # The model took minutes to load: to claim what a successor holds would end that one.
        await self._blocking(self._spool.refuse_superseded, incarnation)
        await broker.claim(CLAIM_SECONDS)
        if self.spec.agent.http is not None:
            await runner.agent(http, agent_url(self.job, self.spec.agent.http))
        await runner.environment(ready, broker, incarnation)
        await self._blocking(self._ledger.load)
        replay = await self._blocking(self._spool.replay)
        self._track(stack)
        training = await self._assemble(stack, http, broker, ready, incarnation)
        await training.restore(replay)
        self._moved()
        self._restoring = False
        self._api.training = training
        assert self._fleet is not None
        assert self._watch is not None
        self._background(stack, self._fleet.run())
        self._background(stack, Concurrency(http, self._fleet.router, training.room).run())
        self._background(stack, self._watch.run())
        await training.run()
        await self._finish(training)

    async def _assemble(
        self,
        stack: AsyncExitStack,
        http: aiohttp.ClientSession,
        broker: Broker,
        ready: Ready,
        incarnation: int,
    ) -> Training:
        spec, rollout = self.spec, self.spec.rollout
        on_load = partial(self._exporter.observe, "weights/sync_seconds")
        fleet = self._fleet = Fleet(http, self._token, self._discover, on_load, self._synced)
        fleet.router.replicas = self._replicas
        room = Room(rollout.max_concurrency)
        rules = Rules(
            timeout_seconds=rollout.timeout_seconds,
            sandbox_seconds=spec.environment.sandbox.deadline_seconds,
            reward_range=(spec.reward.range[0], spec.reward.range[1]),
        )
        gateway = Gateway(ready.renderer, fleet, ready.context_length, rollout.timeout_seconds)
        self._places = Places(room.follower())
        server = GatewayServer()
        if not spec.agent.is_builtin:
            await listen(stack, server.app(), self._gateway_port, leave_with_client=True)
        agent = agent_of(self.job, Backend(gateway, self._places), server, self._where, http)
        episodes = Episodes(rules, agent, broker, fleet.router)
        training = self._training = Training(
            spec,
            ready.data,
            fleet,
            self._spool,
            self._ledger,
            episodes.run,
            incarnation,
            room,
            on_change=self._moved,
            on_validation=self._validated,
            on_episode=self._ended,
        )
        self._watch = Watch(
            training, fleet.router, broker.pool, self._status.changed, rollout.timeout_seconds
        )
        return training

    async def _finish(self, training: Training) -> None:
        """The learner's last checkpoint, report, final status, and a word to the learner."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_CHECKPOINT_SECONDS):
                await training.until_durable()
                await self._until_whole(training.state.reports[-1].weights)
                training.state.exported = True
        report = view.report(
            self.job.name,
            self.spec,
            self.layout,
            training.state,
            self._ledger.days,
            self._book,
            self._ledger.episodes,
        )
        await self._blocking(self._store.put, self.layout.report, json.dumps(report, indent=2).encode())
        if not await self._status.settle(LAST_WORD_SECONDS):
            raise JobError("StatusNotWritten", "the API server takes no status", permanent=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                while not self._api.told_finished:
                    await asyncio.sleep(0.2)
        logs.event(_log, "finished", reason=training.state.finished, told=self._api.told_finished)

    async def _until_whole(self, newest: WeightsManifest) -> None:
        """Return once the folder of the newest weights holds all of them: it is completed at the end."""
        while not newest.whole and not await self._blocking(self._is_exported, newest):
            await asyncio.sleep(EXPORT_POLL_SECONDS)

    def _is_exported(self, weights: WeightsManifest) -> bool:
        # Any other file there may be one of a learner that was undone, or the first of many.
        try:
            found = self._store.get(f"{weights.uri}/{EXPORT_FILE}")
        except NotFound:
            return False
        return PolicyVersion.model_validate_json(found) == weights.version

    def status(self) -> st.RLTrainingJobStatus:
        """Everything this process owns of `.status`."""
        training = self._training
        router = self._fleet.router if self._fleet else Router()
        finished = training is not None and training.state.finished is not None
        found = self._told.model_copy(
            update={
                "conditions": self._conditions.current(router, time.monotonic()),
                "preflight": self._preflight,
                "algorithm": view.algorithm(self.spec),
                "artifacts": view.artifacts(self.layout, finished=finished),
            }
        )
        if training is None or self._fleet is None or self._restoring:
            return found
        found.usage = usage(self._ledger.days, self._book, datetime.now(UTC).date())
        evaluations = view.curve(training.state)
        stalled = self._watch.stalled if self._watch else None
        found.progress = view.progress(training, self._ledger.episodes, router.wanted, stalled)
        found.reward = view.reward(training.state)
        found.validation = view.validation(evaluations)
        found.checkpoints = view.checkpoints(self.layout, training.state, evaluations)
        if (run := self._figures.run) is not None:
            found.tracking = st.Tracking(mlflow=run)
        return found

    def _scaled(self, replicas: int) -> None:
        """The job asks for so many rollout servers."""
        self._replicas = replicas
        if self._fleet is not None:
            self._fleet.router.replicas = replicas

    def _moved(self) -> None:
        """The job went forward: new figures, a new status."""
        if self._training is not None:
            self._figures.batch(self._training.state, again=self._restoring)
        self._status.changed()

    def _validated(self, step: int, groups: Sequence[GroupRecord]) -> None:
        """A validation is complete."""
        self._figures.validation(step, groups, again=self._restoring)

    def _ended(self, episode: EpisodeRecord) -> None:
        """An episode ended."""
        seconds = episode.finished_at - episode.started_at
        self._exporter.observe("episodes/seconds", seconds, outcome=episode.outcome.value)

    def _synced(self, step: int, seconds: float) -> None:
        """The first server is in rotation with the weights of a step."""
        self._figures.sync(step, seconds, again=self._restoring)

    def _samples(self) -> Iterator[Sample]:
        cost = float(usage(self._ledger.days, self._book, datetime.now(UTC).date()).cost or 0)
        # Counters that began at 0 again would have Prometheus count a predecessor's bill twice.
        days = None if self._restoring else self._ledger.days
        return view.samples(self._figures.shown(), self._training, days, cost, self._fleet, self._places)

    def _checked(self, preflight: st.Preflight) -> None:
        """A check is over. May be called from another thread."""
        self._preflight = preflight
        self._loop.call_soon_threadsafe(self._status.changed)

    def _track(self, stack: AsyncExitStack) -> None:
        """Log to MLflow, where the spec asks for it."""
        wanted = self.spec.tracking.mlflow
        if wanted is None:
            return
        experiment = wanted.experiment or f"{self.job.namespace}/{self.job.name}"
        name = f"{self.job.name}-{self.job.uid[:8]}"
        tracker = mlflow.connect(wanted.uri, self._store, self.layout, experiment, name)
        self._figures.tracker = tracker
        tracker.start()
        stack.push_async_callback(asyncio.to_thread, tracker.close)

    def _background(self, stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until the end; if it fails before, the whole process fails."""
        main = asyncio.current_task()
        task = asyncio.create_task(work)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None and main is not None:
                self.fault = task.exception()
                main.cancel()

        async def stop() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        task.add_done_callback(ended)
        stack.push_async_callback(stop)
        return task

    async def _blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with asyncio.timeout(STORE_SECONDS):
            return await asyncio.to_thread(call, *args, **kwargs)


async def serve(coordinator: Coordinator, ended: Callable[[], None] = lambda: None) -> None:
    """Run until the job is over, or until SIGTERM: what is durable is enough for a successor.

    `ended` is called then, before what still runs in threads is waited for.
    """
    task = asyncio.ensure_future(coordinator.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if coordinator.fault is not None:
            raise coordinator.fault from None
        logs.event(_log, "stopped")
        raise
    finally:
        ended()


def main() -> None:
    """Entry point of the coordinator's pod."""
    logs.setup()
    try:
        job = config.load(os.environ)
        cache = Path(os.environ.get(names.ENV_CACHE, names.CACHE_DIR))
        sink, told = status_writer.log_sink, st.RLTrainingJobStatus()
        if in_cluster(os.environ):
            api = status_writer.kubernetes_client()
            sink, told = status_writer.kubernetes_sink(job, api), status_writer.told(job, api)
        with not_final(begun(told)):
            store = open_store(job.spec.output, patience := Patience())
        coordinator = Coordinator(job, config.load_token(os.environ), store, cache, sink, told=told)
        with store_explained():
            uvloop.run(serve(coordinator, patience.over.set))
    except asyncio.CancelledError:
        sys.exit(143)
    except (Exception, BaseExceptionGroup) as error:
        found = job_error(error)
        if found is None:
            _log.exception("failed")
            found = JobError("CoordinatorFailed", f"{type(error).__name__}: {error}", permanent=False)
        leave(found)


def begun(told: st.RLTrainingJobStatus) -> bool:
    """Whether a predecessor got past the preflight: what it could use was right, and may be again."""
    return told.progress is not None


def in_cluster(environ: Mapping[str, str]) -> bool:
    """Whether this process is a pod, which has a status to write."""
    return "KUBERNETES_SERVICE_HOST" in environ


def is_superseded(error: BaseException | None) -> bool:
    """Whether a process ends since another has taken its place: the status is that one's to write."""
    found = job_error(error)
    return found is not None and found.termination.reason == SUPERSEDED
