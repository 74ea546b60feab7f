"""The coordinator of a training job: connects the parts, and holds no logic."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web

from headway_analysis.measures.figures import Figures
from headway_analysis.report.page.episodes import Decode
from headway_api import baseline_endpoint, logs, names, prices
from headway_api import status as st
from headway_api.conditions import Condition, ConditionType, find
from headway_api.config import JobConfig
from headway_api.keys import Key, Keys
from headway_api.records import Purpose
from headway_api.store import Store
from headway_coordinator import conditions, training_status, view, whole_weights
from headway_coordinator import status as status_writer
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.choice import Where, agent_url, where
from headway_coordinator.budget import shown as budget_shown
from headway_coordinator.engines.concurrency import Concurrency
from headway_coordinator.engines.discovery import Discover, by_dns
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Router
from headway_coordinator.episode_runners import EpisodeRunners, episode_limits
from headway_coordinator.estimate.job import TrainingEstimates
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.connected import of_job
from headway_coordinator.kept_figures import KeptFigures
from headway_coordinator.learner_api import LearnerApi
from headway_coordinator.ledger import costs
from headway_coordinator.metrics import otel
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.metrics.steps import StepFigures
from headway_coordinator.metrics.tracking import final_artifacts, tracker_of
from headway_coordinator.pause import Pauses
from headway_coordinator.preflight.dynamic import Dynamic
from headway_coordinator.preflight.run import Ready, Runner
from headway_coordinator.process import Process
from headway_coordinator.recurring import Recurring
from headway_coordinator.remedies import shown
from headway_coordinator.remedies.tags import RemedyTags
from headway_coordinator.sandboxes import Broker
from headway_coordinator.signals import Signals
from headway_coordinator.stall import Watch, training_watch
from headway_coordinator.state import State
from headway_coordinator.training import Callbacks, Training
from headway_coordinator.training_bounds import fits
from headway_coordinator.training_report import training_report
from headway_coordinator.validation_servers import validation_servers
from headway_coordinator.validations import Beside
from headway_wire.listening import listening

FAREWELL_SECONDS = 60.0
"""The longest that a finished coordinator waits for the learner to hear of the end."""
LAST_CHECKPOINT_SECONDS = 3600.0
"""The longest wait for a checkpoint of the last step. Then the job ends without it."""

_log = logging.getLogger(__name__)


class Coordinator(Process):
    """The process that runs one RLTrainingJob."""

    def __init__(
        self,
        job: JobConfig,
        keys: Keys,
        store: Store,
        cache: Path,
        sink: status_writer.Sink,
        *,
        previous: st.RLTrainingJobStatus | None = None,
        broker_url: str | None = None,
        discover: Discover | None = None,
        discover_validation: Discover | None = None,
        port: int = names.PORT_COORDINATOR,
        gateway_port: int = names.PORT_GATEWAY,
        at: Where | None = None,
        book: prices.PriceBook = prices.DEFAULT,
    ) -> None:
        self.job, self.spec = job, job.spec
        self._started = time.time()
        self._previous = previous or st.RLTrainingJobStatus()
        """The predecessor's status, shown until this process knows as much."""
        super().__init__(
            job,
            job.spec,
            keys,
            store,
            cache,
            sink,
            begun=begun(self._previous),
            broker_url=broker_url,
            port=port,
            model=job.spec.model.base,
            book=book,
            before=self._previous,
        )
        self._discover = discover or by_dns(job.rollout_host)
        self._discover_validation = discover_validation or by_dns(job.validation_host)
        self._gateway_port = gateway_port
        self._where = at or where(job, os.environ.get(names.ENV_POD_IP, "127.0.0.1"), gateway_port)
        self._api = LearnerApi(keys[Key.LEARNER_TO_COORDINATOR], self._metrics)
        self._replicas = job.spec.rollout.replicas
        self._reported = False
        """Whether report.json was written."""
        self._order: str | None = None
        """A person's latest order for a remedy."""
        self._tags = RemedyTags(job.spec)
        self._conditions = conditions.Conditions(self._previous.conditions)
        self._signals = Signals(job.spec, self._previous.conditions)
        self._faults = Recurring()
        self._figures = StepFigures(job.spec, self._signals)
        self._pauses = Pauses(job, job.spec.collapse, self._previous)
        self._kept_figures = KeptFigures(lambda each: self._blocking(self._spool.keep_figures, each))
        self._training: Training | None = None
        self._watch: Watch | None = None
        self._fleet: Fleet | None = None
        self._beside: Beside | None = None
        self._episode_runners: EpisodeRunners | None = None
        self._dynamic: Dynamic | None = None
        self._estimates = TrainingEstimates(
            self.spec, self.layout, store, self._ledger, self._tariff, self._previous.estimate
        )
        self._decode: Decode | None = None
        """Decodes the model's token ids, once its tokenizer is loaded."""
        self._restoring = True
        """While this is true, figures that a predecessor saw are shown again, and are tracked if it could not
        track them."""

    def _app(self) -> web.Application:
        return self._api.app()

    async def _work(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        self._send_traces(stack, http, self.spec.tracking.otlp)
        start_number = await self._take_start_number()
        runner = Runner(self.spec, self.layout, self._checked, self._begun)
        await self._blocking(runner.prices, self._books)
        ready = await self._blocking(runner.basics, self._store, self._cache)
        await self._blocking(self._spool.keep_template, ready.template)
        self._estimates.planned(ready.data)
        if not self._begun and self.spec.budget is not None:
            await self._blocking(
                runner.budget,
                partial(fits, self._budget, self.spec, episode_limits(self.spec, ready.context_length)),
            )
        self._decode = ready.renderer.text
        broker = await self._claimed(http, start_number)
        await self._load_ledger()
        if self.spec.agent.http is not None:
            await runner.agent(http, agent_url(self.job, self.spec.agent.http))
        judges = of_job(self.job, http, self._store, self.layout)
        judges.spending = self._budget
        await runner.judges(judges, self._store, self._cache)
        await runner.environment(ready, broker, start_number, judges)
        await self._blocking(self._estimates.before, ready, runner)
        self._status.changed()
        self._background(stack, self._follow_prices())
        replay = await self._blocking(self._spool.replay)
        episode_runners = await self._open(stack, http, broker, ready, judges)
        self._dynamic = self._second_half(http, broker, ready, runner, episode_runners, start_number)
        await self._dynamic.run(begun=bool(replay.reports))
        self._budget.ungrouped_billed()
        if (kept := self._dynamic.kept) is not None:
            await self._blocking(self._estimates.measured, kept.measured, kept.seconds_each)
        self._track(stack)
        training = self._assemble(http, broker, ready, episode_runners, start_number)
        for lost in await self._blocking(self._figures.restore, self._spool, replay):
            self._kept_figures.add(lost)
        await training.restore(replay)
        self._moved()
        self._restoring = False
        self._pauses.begin(training.state.step)
        self._judge()
        self._api.training = training
        assert self._fleet is not None
        assert self._watch is not None
        self._background(stack, self._fleet.run())
        key = self._keys[Key.COORDINATOR_TO_ROLLOUT]
        self._background(stack, Concurrency(http, key, self._fleet.router, training.limiter).run())
        if (beside := self._beside) is not None:
            self._background(stack, beside.fleet.run())
            if beside.limiter is not None:
                self._background(stack, Concurrency(http, key, beside.fleet.router, beside.limiter).run())
        self._background(stack, self._watch.run())
        self._background(stack, self._kept_figures.run())
        await training.run()
        await self._finish(training)

    async def _open(
        self, stack: AsyncExitStack, http: aiohttp.ClientSession, broker: Broker, ready: Ready, judges: Judges
    ) -> EpisodeRunners:
        """Make the parts that run episodes. From now on agents outside this process may call the gateway."""
        server = GatewayServer()
        if not self.spec.agent.is_builtin:
            agents = listening(server.app(), self._gateway_port, leave_with_client=True)
            await stack.enter_async_context(agents)
        where, faults, budget = self._where, self._faults, self._budget
        self._episode_runners = EpisodeRunners(
            self.job, ready, broker, http, server, where, faults, budget, judges
        )
        return self._episode_runners

    def _second_half(
        self,
        http: aiohttp.ClientSession,
        broker: Broker,
        ready: Ready,
        runner: Runner,
        episode_runners: EpisodeRunners,
        start_number: int,
    ) -> Dynamic:
        return Dynamic(
            self.spec, self.layout, ready, runner, self._store, self._spool, self._ledger, broker,
            episode_runners, http, self._keys[Key.COORDINATOR_TO_ROLLOUT], self._discover, start_number,
            self._faults, self._api.opened, self._status.changed, self._ended, self._book,
            self._estimates.plan, self._estimates.price, baseline_endpoint.from_environ(os.environ),
        )  # fmt: skip

    def _assemble(
        self,
        http: aiohttp.ClientSession,
        broker: Broker,
        ready: Ready,
        episode_runners: EpisodeRunners,
        start_number: int,
    ) -> Training:
        spec, rollout = self.spec, self.spec.rollout
        on_load = partial(self._exporter.observe, "weights/sync_seconds")
        key = self._keys[Key.COORDINATOR_TO_ROLLOUT]
        fleet = self._fleet = Fleet(http, key, self._discover, on_load, self._synced)
        fleet.router.replicas = self._replicas
        limiter = AdaptiveSemaphore(rollout.max_concurrency)
        episode_runners.places.clear()  # those of the preflight, which has ended
        episode = episode_runners.on(fleet, limiter)
        self._beside = validation_servers(
            self.job, http, key, episode_runners, self._discover, self._discover_validation, self._replicas
        )
        self._figures.tasks = ready.data.tasks.get("train")
        training = Training(
            spec,
            ready.data,
            fleet,
            self._spool,
            self._ledger,
            episode,
            start_number,
            limiter,
            Callbacks(
                on_change=self._moved,
                on_validation=self._validated,
                on_test=self._tested,
                on_episode=self._ended,
                paused=lambda: self._pauses.is_paused,
            ),
            beside=self._beside,
            signals=self._signals,
            faults=self._faults,
            relative=episode_runners.relative,
            budget=self._budget,
            limits=episode_runners.limits,
            started=self._started,
        )
        self._budget.busy, self._budget.drain = training.learner_may_step, training.drain
        training.remedies.order = self._order
        self._training = training
        self._watch = training_watch(
            training, fleet.router, broker.pool, self._status.changed, rollout.timeout_seconds
        )
        return training

    async def _finish(self, training: Training) -> None:
        """Wait for the learner's last checkpoint, write report and final status, and tell the learner."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_CHECKPOINT_SECONDS):
                await training.until_durable()
                await whole_weights.until_whole(self._store, training.state.reports[-1].weights)
                training.state.exported = True
        await self._kept_figures.all()
        await self._count_last()
        self._scrapes.final()
        report = training_report(
            self.job.name, self.spec, training, self.layout, self._ledger, self._books, self._usage(),
            self._estimates,
        )  # fmt: skip
        await self._blocking(self._store.put, self.layout.report, json.dumps(report, indent=2).encode())
        self._reported = True
        await self._show_end()
        await self._last_word()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                while not self._api.has_sent_finished:
                    await asyncio.sleep(0.2)
        logs.event(_log, "finished", reason=training.state.finished, informed=self._api.has_sent_finished)

    async def _show_end(self) -> None:
        """Write the report that people open, and have the run in MLflow show it."""
        await self._write_page(self._decode)
        if (tracker := self._figures.tracker) is not None:
            tracker.finish(final_artifacts(self.job, self._store, self.layout))

    def status(self) -> st.RLTrainingJobStatus:
        """Everything this process owns of `.status`."""
        training, fleet = self._training, self._fleet
        router = fleet.router if fleet else Router()
        found = training_status.known(
            self._previous,
            self.spec,
            self.layout,
            conditions=self._current_conditions(router),
            preflight=self._preflight,
            pause=self._pauses.last,
            estimate=self._estimate,
            budget=self._shown_budget(),
            reported=self._reported,
            paged=self._paged,
        )
        if training is None or fleet is None or self._restoring:
            if self._dynamic is not None and self._dynamic.sampler is not None:
                found.usage = self._usage()
            return found
        found.usage = self._usage()
        stalled = self._watch.stalled if self._watch else None
        found.progress = view.progress(training, self._ledger.episodes, router.wanted, stalled)
        training_status.add_training(found, training, self.spec, self.layout, self._signals)
        if (run := self._figures.run) is not None:
            found.tracking = st.Tracking(mlflow=run)
        return found

    def _tariff(self) -> prices.Tariff:
        """The price book's tariff for this job's model."""
        return prices.Tariff(self._book)

    @property
    def _estimate(self) -> st.Estimate | None:
        """The estimate for the whole job. It is the predecessor's until this process has its own."""
        return self._estimates.status(None if self._restoring else self._training) or self._previous.estimate

    def _current_conditions(self, router: Router) -> list[Condition]:
        """The conditions of this process. The predecessor's view of health is shown until then."""
        synced = self._conditions.current(router, time.monotonic(), self._dedicated())
        synced += self._conditions_of_budget()
        healthy = find(self._previous.conditions, ConditionType.HEALTHY)
        if self._restoring and not self._faults.standing:
            return [*synced, *([healthy] if healthy else [])]
        return [*synced, self._signals.condition(self._faults.standing)]

    def _apply(self, update: status_writer.JobUpdate) -> None:
        """Apply changes to the job: another number of rollout servers, or a person's order for a remedy."""
        self._order = update.remedy
        if self._training is not None:
            self._training.remedies.order = update.remedy
        if update.replicas is None:
            return
        self._replicas = update.replicas
        if self._fleet is not None:
            self._fleet.router.replicas = update.replicas
        if self._beside is not None and self._beside.limiter is None:
            self._beside.fleet.router.replicas = update.replicas

    def _dedicated(self) -> Router | None:
        """The router of the server for held-out rows; None if there is none."""
        return self._beside.dedicated if self._beside is not None else None

    def _moved(self) -> None:
        """Update figures and status after progress of the job."""
        if self._training is not None:
            found = self._figures.batch(
                self._training.state, again=self._restoring, cost=lambda: self._usage().cost
            )
            if found is not None:
                self._kept_figures.add(found)
                self._trace_step(self._training.state)
            self._judge()
            self._tags.write(self._figures.tracker, self._training.remedies)
        self._status.changed()

    def _validated(self, step: int, found: Figures) -> None:
        """A validation is complete."""
        self._figures.validation(step, found, again=self._restoring)
        self._judge()

    def _judge(self) -> None:
        """Pause the job if signals ask for it, once this process knows all that its predecessor knew."""
        if self._training is None or self._restoring:
            return
        step, done = max(0, self._training.state.step), self._training.scheduler.done
        self._pauses.look(step, self._signals.raised, done=done)

    def _tested(self, step: int, found: Figures) -> None:
        """The test split has a result."""
        self._figures.test(step, found, again=True)

    def _trace_step(self, state: State) -> None:
        """Send the trace of the last step."""
        if self._otlp is not None and state.trained is not None:
            episodes = [each.episode_id for group in state.last_batch for each in group.episodes]
            self._otlp.give(otel.of_step(self.job, state.trained, episodes))

    def _synced(self, step: int, seconds: float) -> None:
        """The first server serves the weights of a step."""
        self._figures.sync(step, seconds, again=self._restoring)
        if self._otlp is not None:
            self._otlp.give([otel.of_update(self.job, step, time.time(), seconds)])

    def _samples(self) -> Iterator[Sample]:
        cost = float(self._usage().cost or 0)
        # If counters began at 0 again, Prometheus would count a predecessor's bill twice.
        days = None if self._restoring else self._ledger.days
        fleets = {} if self._fleet is None else {Purpose.TRAIN: self._fleet}
        if self._beside is not None and self._beside.limiter is not None:
            fleets[Purpose.VALIDATION] = self._beside.fleet
        places = [] if self._episode_runners is None else self._episode_runners.places
        yield from view.samples(self._figures.shown(), self._training, days, cost, fleets, places)
        if days is not None:
            yield from costs.samples(self._ledger.used(), self._ledger.accelerator_totals(), self._book)
            yield from budget_shown.samples(self._budget)
        if self._dynamic is not None:
            yield from self._dynamic.samples()
        yield from self._signals.samples()
        yield from self._estimates.samples(None if self._restoring else self._training)
        # If a predecessor's changes followed a count of 0, they would look as if they were made now.
        if self._training is not None and not self._restoring:
            yield from shown.samples(self._training.remedies.course)

    def _track(self, stack: AsyncExitStack) -> None:
        """Log to MLflow if the spec asks for it."""
        tracker = self._figures.tracker = tracker_of(self.job, self._store, self.layout)
        if tracker is not None:
            tracker.start()
            stack.push_async_callback(asyncio.to_thread, tracker.close)


def begun(previous: st.RLTrainingJobStatus) -> bool:
    """Whether a predecessor got past the preflight. If so, the spec was right, and a failure now may pass."""
    return previous.progress is not None
