"""The coordinator of a training job: connects the parts, and holds no logic."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web

from headway_analysis.report.page.episodes import Decode
from headway_api import baseline_endpoint, logs, names, prices
from headway_api import status as st
from headway_api.conditions import Condition, ConditionType, find
from headway_api.config import JobConfig
from headway_api.keys import Key, Keys
from headway_api.store import Store
from headway_coordinator import conditions, projections, training_status
from headway_coordinator import status as status_writer
from headway_coordinator.agents.choice import GatewayAddresses, addresses_of, agent_url
from headway_coordinator.budget import shown as budget_shown
from headway_coordinator.engines.discovery import Discover, by_dns
from headway_coordinator.engines.router import Router
from headway_coordinator.episode_runners import EpisodeRunners, episode_limits
from headway_coordinator.estimate.job import TrainingEstimates
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.connected import of_job
from headway_coordinator.learner_api import LearnerApi
from headway_coordinator.ledger import costs
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.preflight.dynamic import Dynamic
from headway_coordinator.preflight.run import Ready, Runner
from headway_coordinator.process import Process
from headway_coordinator.recurring import Recurring
from headway_coordinator.remedies import shown
from headway_coordinator.sandboxes import Broker
from headway_coordinator.training import Training
from headway_coordinator.training_bounds import fits
from headway_coordinator.training_end import until_exported, until_informed
from headway_coordinator.training_outlets import TrainingOutlets
from headway_coordinator.training_parts import Accounts, RolloutServers, TrainingParts, assembled
from headway_coordinator.training_report import training_report
from headway_wire.listening import listening

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
        at: GatewayAddresses | None = None,
        book: prices.PriceBook = prices.DEFAULT,
    ) -> None:
        self.job, self.spec = job, job.spec
        self._started = time.time()
        self._previous = previous or st.RLTrainingJobStatus()
        """The predecessor's status. Its fields are shown until this process knows their values."""
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
        self._addresses = at or addresses_of(job, os.environ.get(names.ENV_POD_IP, "127.0.0.1"), gateway_port)
        self._api = LearnerApi(keys[Key.LEARNER_TO_COORDINATOR], self._metrics)
        self._replicas = job.spec.rollout.replicas
        self._reported = status_writer.has_report(self._previous)
        """Whether report.json was written."""
        self._order: str | None = None
        """A person's latest order for a remedy."""
        self._conditions = conditions.Conditions(self._previous.conditions)
        self._faults = Recurring()
        self._outlets = TrainingOutlets(
            job,
            self._previous,
            keep=lambda each: self._blocking(self._spool.keep_metrics, each),
            cost=lambda: self._usage().cost,
            otlp=lambda: self._otlp,
            changed=self._status.changed,
        )
        self._parts: TrainingParts | None = None
        self._episode_runners: EpisodeRunners | None = None
        self._dynamic: Dynamic | None = None
        self._estimates = TrainingEstimates(
            self.spec, self.layout, store, self._ledger, self._tariff, self._previous.estimate
        )
        self._decode: Decode | None = None
        """Decodes the model's token ids, once its tokenizer is loaded."""

    def _app(self) -> web.Application:
        return self._api.app()

    async def _work(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        self._send_traces(stack, http, self.spec.tracking.otlp)
        start_number = await self._take_start_number()
        runner = Runner(self.spec, self.layout, self._checked, self._begun)
        ready = await self._check(runner)
        broker = await self._claimed(http, start_number)
        judges = await self._check_services(http, runner, ready, broker, start_number)
        self._background(stack, self._follow_prices())
        replay = await self._blocking(self._spool.replay)
        episode_runners = await self._open(stack, http, broker, ready, judges)
        self._dynamic = self._second_half(http, broker, ready, runner, episode_runners, start_number)
        await self._dynamic.run(begun=bool(replay.reports))
        self._budget.ungrouped_billed()
        if (kept := self._dynamic.kept) is not None:
            await self._blocking(self._estimates.measured, kept.measured, kept.seconds_each)
        outlets = self._outlets
        outlets.track(stack, self._store, self.layout)
        parts = self._parts = self._assembled(http, broker, ready, episode_runners, start_number)
        for lost in await self._blocking(outlets.metrics.restore, self._spool, replay):
            outlets.kept_metrics.add(lost)
        await parts.training.restore(replay)
        outlets.moved()
        outlets.begin(parts.training)
        self._api.training = parts.training
        for work in (*parts.background(), outlets.kept_metrics.run()):
            self._background(stack, work)
        await parts.training.run()
        await self._finish(parts.training)

    async def _check(self, runner: Runner) -> Ready:
        """Run the preflight's checks that need no other process. Returns what these checks have loaded."""
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
        return ready

    async def _check_services(
        self, http: aiohttp.ClientSession, runner: Runner, ready: Ready, broker: Broker, start_number: int
    ) -> Judges:
        """Run the checks of the agent, the judges and the environment. Returns the judges."""
        await self._load_ledger()
        if self.spec.agent.http is not None:
            await runner.agent(http, agent_url(self.job, self.spec.agent.http))
        judges = of_job(self.job, http, self._store, self.layout)
        judges.spending = self._budget
        await runner.judges(judges, self._store, self._cache)
        await runner.environment(ready, broker, start_number, judges)
        await self._blocking(self._estimates.before, ready, runner)
        self._status.changed()
        return judges

    async def _open(
        self, stack: AsyncExitStack, http: aiohttp.ClientSession, broker: Broker, ready: Ready, judges: Judges
    ) -> EpisodeRunners:
        """Make the parts that run episodes. From now on agents outside this process may call the gateway."""
        self.on_loaded()
        server = GatewayServer()
        if not self.spec.agent.is_builtin:
            agents = listening(server.app(), self._gateway_port, leave_with_client=True)
            await stack.enter_async_context(agents)
        addresses, faults, budget = self._addresses, self._faults, self._budget
        self._episode_runners = EpisodeRunners(
            self.job, ready, broker, http, server, addresses, faults, budget, judges
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

    def _assembled(
        self,
        http: aiohttp.ClientSession,
        broker: Broker,
        ready: Ready,
        episode_runners: EpisodeRunners,
        start_number: int,
    ) -> TrainingParts:
        servers = RolloutServers(
            http,
            self._keys[Key.COORDINATOR_TO_ROLLOUT],
            self._discover,
            self._discover_validation,
            self._replicas,
            partial(self._exporter.observe, "weights/sync_seconds"),
        )
        parts = assembled(
            self.job,
            ready,
            servers,
            Accounts(self._spool, self._ledger, self._budget, self._faults, self._ended),
            self._outlets,
            broker,
            episode_runners,
            start_number=start_number,
            started=self._started,
            changed=self._status.changed,
        )
        parts.training.remedies.order = self._order
        return parts

    async def _finish(self, training: Training) -> None:
        """Wait for the learner's last checkpoint, write report and final status, and tell the learner."""
        await until_exported(training, self._store)
        await self._outlets.kept_metrics.all()
        await self._count_last()
        self._scrapes.final()
        report = training_report(
            self.job.name, self.spec, training, self.layout, self._ledger, self._books, self._usage(),
            self._estimates,
        )  # fmt: skip
        await self._blocking(self._store.put, self.layout.report, json.dumps(report, indent=2).encode())
        self._reported = True
        self._status.changed()  # the operator then allows `FINISHING_SECONDS` beyond the deadline
        await self._show_end()
        await self._write_final_status()
        await until_informed(self._api)
        logs.event(_log, "finished", reason=training.state.finished, informed=self._api.has_sent_finished)

    async def _show_end(self) -> None:
        """Write `report.html`, and have the run in MLflow show it."""
        await self._write_page(lambda: self._decode)
        self._outlets.finish(self._store, self.layout)

    def status(self) -> st.RLTrainingJobStatus:
        """The fields of `.status` that this process owns."""
        parts, outlets = self._parts, self._outlets
        router = parts.fleet.router if parts else Router()
        found = training_status.known(
            self._previous,
            self.spec,
            self.layout,
            conditions=self._current_conditions(router),
            preflight=self._preflight,
            pause=outlets.pauses.last,
            estimate=self._estimates.status(self._restored_training) or self._previous.estimate,
            budget=self._shown_budget(),
            reported=self._reported,
            paged=self._paged,
        )
        if parts is None or outlets.restoring:
            if self._dynamic is not None and self._dynamic.sampler is not None:
                found.usage = self._usage()
            return found
        found.usage = self._usage()
        found.progress = projections.progress(
            parts.training, self._ledger.episodes, router.wanted, parts.watch.stalled
        )
        training_status.add_training(found, parts.training, self.spec, self.layout, outlets.signals)
        if (run := outlets.metrics.run) is not None:
            found.tracking = st.Tracking(mlflow=run)
        return found

    @property
    def _restored_training(self) -> Training | None:
        """The training, once the predecessor's state is restored."""
        return None if self._parts is None or self._outlets.restoring else self._parts.training

    def _tariff(self) -> prices.Tariff:
        """The price book's tariff for this job's model."""
        return prices.Tariff(self._book)

    def _current_conditions(self, router: Router) -> list[Condition]:
        """The current conditions.

        Until the predecessor's state is restored, its condition Healthy is shown, unless episodes fail.
        """
        dedicated = None if self._parts is None else self._parts.dedicated
        synced = self._conditions.current(router, time.monotonic(), dedicated)
        synced += self._conditions_of_budget()
        healthy = find(self._previous.conditions, ConditionType.HEALTHY)
        if self._outlets.restoring and not self._faults.standing:
            return [*synced, *([healthy] if healthy else [])]
        return [*synced, self._outlets.signals.condition(self._faults.standing)]

    def _apply(self, update: status_writer.JobUpdate) -> None:
        """Apply changes to the job: another number of rollout servers, or a person's order for a remedy."""
        self._order = update.remedy
        if self._parts is not None:
            self._parts.training.remedies.order = update.remedy
        if update.replicas is None:
            return
        self._replicas = update.replicas
        if self._parts is not None:
            self._parts.set_replicas(update.replicas)

    def _samples(self) -> Iterator[Sample]:
        parts, outlets = self._parts, self._outlets
        cost = float(self._usage().cost or 0)
        # If counters began at 0 again, Prometheus would count a predecessor's bill twice.
        days = None if outlets.restoring else self._ledger.days
        training, fleets = (None, {}) if parts is None else (parts.training, parts.fleets)
        places = [] if self._episode_runners is None else self._episode_runners.places
        yield from projections.samples(outlets.metrics.shown(), training, days, cost, fleets, places)
        if days is not None:
            yield from costs.samples(self._ledger.used(), self._ledger.accelerator_totals(), self._book)
            yield from budget_shown.samples(self._budget)
        if self._dynamic is not None:
            yield from self._dynamic.samples()
        yield from outlets.signals.samples()
        yield from self._estimates.samples(self._restored_training)
        # If the counter of remedies began at 0, a predecessor's remedies would look as if they were new.
        if self._restored_training is not None:
            yield from shown.samples(self._restored_training.remedies.course)


def begun(previous: st.RLTrainingJobStatus) -> bool:
    """Whether a predecessor got past the preflight. If so, the spec was right: a failure may be transient."""
    return previous.progress is not None
