"""The coordinator's process for an evaluation: connects the parts, and has no logic of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from headway_analysis.comparison import HEADLINE, Comparison, compare_all
from headway_analysis.estimate import prompts
from headway_analysis.measures.candidate import priced
from headway_analysis.report.page.episodes import Decode
from headway_api import logs, names, prices
from headway_api import status as st
from headway_api.conditions import merge
from headway_api.config import EvalConfig
from headway_api.finishing import TRACKING_SECONDS
from headway_api.keys import Key, Keys
from headway_api.sandbox_api import ResetReply
from headway_api.store import Store
from headway_coordinator import stall
from headway_coordinator import status as status_writer
from headway_coordinator.agents.choice import GatewayAddresses, addresses_of, agent_url
from headway_coordinator.budget import shown
from headway_coordinator.conditions import OF_BUDGET
from headway_coordinator.engines.discovery import Discover, by_dns
from headway_coordinator.evaluation import first_prompts, projections, results
from headway_coordinator.evaluation.bounds import fits
from headway_coordinator.evaluation.candidates import readable_models
from headway_coordinator.evaluation.estimates import EvalEstimates
from headway_coordinator.evaluation.run import Evaluation, Unit
from headway_coordinator.evaluation.stall import blocker, idle
from headway_coordinator.evaluation.units import Units
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.connected import of_job
from headway_coordinator.learner_api import Probes
from headway_coordinator.ledger import costs
from headway_coordinator.left_call import within
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.preflight.evaluation import EvalRunner
from headway_coordinator.process import Process
from headway_coordinator.projections import bill
from headway_coordinator.recurring import Recurring
from headway_coordinator.sandboxes import Broker, pool_of
from headway_wire.listening import listening

COMPARE_SECONDS: Final = 3.0
"""The minimum pause, in seconds, between two comparisons of the candidates."""
REST_FOR_EACH: Final = 9.0
"""Seconds of pause for each second that the last comparison took: intervals of many tries cost CPU time."""
_log = logging.getLogger(__name__)


class EvalCoordinator(Process):
    """The process that runs one RLEvalJob."""

    def __init__(
        self,
        job: EvalConfig,
        keys: Keys,
        store: Store,
        cache: Path,
        sink: status_writer.Sink,
        *,
        previous: st.RLEvalJobStatus | None = None,
        broker_url: str | None = None,
        suite_broker_urls: Mapping[str, str] | None = None,
        discover: Callable[[int], Discover] | None = None,
        port: int = names.PORT_COORDINATOR,
        gateway_port: int = names.PORT_GATEWAY,
        at: GatewayAddresses | None = None,
        book: prices.PriceBook = prices.DEFAULT,
    ) -> None:
        self.job = job
        self.spec = job.spec
        self._previous = previous or st.RLEvalJobStatus()
        """The predecessor's status. Its values are shown until this process knows new ones, because the
        operator deletes servers that the status does not list as needed."""
        self._conditions = [each for each in self._previous.conditions if each.type not in OF_BUDGET]
        super().__init__(
            job,
            job.spec,
            keys,
            store,
            cache,
            sink,
            begun=self._previous.progress is not None,
            broker_url=broker_url,
            port=port,
            model=job.model,
            book=book,
            before=self._previous,
        )
        self._suite_urls = suite_broker_urls or {
            suite.name: job.suite_broker_url(suite.name) for suite in job.spec.suites
        }
        self._discover = discover or (lambda number: by_dns(job.rollout_host(number)))
        self._gateway_port = gateway_port
        self._addresses = at or addresses_of(job, os.environ.get(names.ENV_POD_IP, "127.0.0.1"), gateway_port)
        self._api = Probes(self._metrics)
        self._server = GatewayServer()
        self._faults = Recurring()
        self._evaluation: Evaluation | None = None
        self._watch: stall.Watch | None = None
        self._compared: Comparison | None = None
        self._stale = asyncio.Event()
        self._tracked: st.MlflowRun | None = None
        self._estimates = EvalEstimates(
            job, self.layout, store, self._ledger, lambda: prices.Tariff(self._book), self._previous.estimate
        )
        self._final = False
        """Whether the results cover all rows and are written."""

    def status(self) -> st.RLEvalJobStatus:
        """The part of `.status` that the coordinator owns."""
        finished = self._final or status_writer.has_report(self._previous)
        found = st.RLEvalJobStatus(
            preflight=self._preflight,
            artifacts=projections.artifacts(self.layout, finished=finished, paged=self._paged),
        )
        compared, before = self._compared, self._previous
        # Merged, so that an unchanged condition keeps the time of its last change.
        fresh = projections.gate_passed(self.spec, compared, self._final, self._conditions)
        fresh += projections.healthy(self._conditions, self._faults.standing)
        self._conditions = merge(self._conditions, fresh)
        found.conditions = [*self._conditions, *self._conditions_of_budget()]
        found.budget = self._shown_budget()
        found.progress, found.usage = before.progress, before.usage
        found.results, found.headline = before.results, before.headline
        found.gate, found.tracking = before.gate, before.tracking
        if self._evaluation is None:
            found.estimate = before.estimate or self._estimates.status(None)
            return found
        found.estimate = self._estimates.status(None)
        state, today = self._evaluation.state, datetime.now(UTC).date()
        found.progress = projections.progress(state, self._watch.stalled if self._watch else None)
        found.usage = self._usage()
        if compared is not None:
            found.results = projections.results(state, compared, self._book, today)
            judged = before.gate is not None and before.gate.result != "Pending"
            found.gate = (
                before.gate if judged and not self._final else projections.gate(compared, self._final)
            )
            found.headline = projections.headline(self.spec, compared)
        if self._tracked is not None:
            found.tracking = st.Tracking(mlflow=self._tracked)
        return found

    def _app(self) -> web.Application:
        return self._api.app()

    async def _work(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        self._send_traces(stack, http, self.spec.tracking.otlp)
        start_number = await self._take_start_number()
        runner = EvalRunner(self.spec, self._checked, self._begun)
        await self._blocking(runner.prices, self._books)
        if not self._begun:
            runner.gate_prices(self.job, self._book.on(datetime.now(UTC).date()))
        rows = await self._blocking(runner.rows, self._store)
        models = await self._blocking(readable_models, self.job, self._store, self._cache)
        if not self._begun and self.spec.budget is not None:
            contexts = {name: model.context_length for name, model in models.items()}
            await self._blocking(runner.budget, partial(fits, self._budget, self.job, contexts))
        broker = await self._claimed(http, start_number)
        if self.spec.agent.http is not None:
            await runner.agent(http, agent_url(self.job, self.spec.agent.http))
        await self._load_ledger()
        suites = {
            name: await self._claimed(http, start_number, url) for name, url in self._suite_urls.items()
        }
        judges = of_job(self.job, http, self._store, self.layout)
        judges.spending = self._budget
        await runner.judges(judges, self._store, self._cache)
        first = await runner.environment(rows[0], broker, start_number, suites, judges)
        known = await self._blocking(first_prompts.openings, self.job, first, models, rows)
        why = prompts.unknown(self.job, models)
        del models  # tokenizers are large, and units load their own
        await self._blocking(self._estimates.before, len(rows), known, why)
        self._status.changed()
        self._background(stack, self._follow_prices())
        evaluation = Evaluation(
            self.spec,
            rows,
            [*self._names()],
            self._spool,
            self._ledger,
            start_number,
            on_change=self._moved,
            on_episode=self._ended,
            faults=self._faults,
            budget=self._budget,
        )
        await evaluation.restore(self._previous.progress.server_sets if self._previous.progress else ())
        for name, why in self.job.unresolved.items():
            evaluation.state.candidates[name].fail("CandidateMissing", why)
        units = self._units(evaluation, http, broker, suites, first, judges)
        self._estimates.restored()
        await self._estimate(evaluation)
        self._evaluation = evaluation
        self._api.ready = True
        self._watch = stall.Watch(
            idle(evaluation),
            lambda pool: blocker(evaluation, units.fleets, pool, self.spec.rollout.timeout_seconds),
            partial(pool_of, [broker, *suites.values()]),
            self._status.changed,
        )
        self._background(stack, self._watch.run())
        self.on_loaded()
        if self.spec.opens_gateway:
            agents = listening(self._server.app(), self._gateway_port, leave_with_client=True)
            await stack.enter_async_context(agents)
        await self._measure(stack, evaluation, [*units.all()])

    def _units(
        self,
        evaluation: Evaluation,
        http: aiohttp.ClientSession,
        broker: Broker,
        suites: Mapping[str, Broker],
        first: ResetReply,
        judges: Judges,
    ) -> Units:
        """The factory of the units that measure the candidates."""
        return Units(
            self.job,
            evaluation.state,
            http,
            self._keys[Key.COORDINATOR_TO_ROLLOUT],
            self._store,
            self._cache,
            broker,
            first,
            self._server,
            self._addresses,
            self._discover,
            self._moved,
            suites,
            self._faults,
            judges,
            budget=self._budget,
        )

    async def _measure(self, stack: AsyncExitStack, evaluation: Evaluation, units: Sequence[Unit]) -> None:
        """Measure every row, then finish. Comparisons of partial results stop first, so the last is final."""
        looking = self._background(stack, self._compare_again(evaluation))
        await evaluation.run(units)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await self._finish(evaluation)

    def _names(self) -> Iterator[str]:
        """The names of all candidates, resolved or not, in the order of the spec."""
        known = {candidate.name for candidate in self.job.candidates} | self.job.unresolved.keys()
        return (name for name in self.spec.candidate_names if name in known)

    async def _finish(self, evaluation: Evaluation) -> None:
        """Write the results and the final status. The gate and the candidates decide how the job ends.

        Raises:
            JobError: `CandidateFailed` or `GateNotPassed`. The results are still valid.
        """
        compared = self._compared = await self._compare(evaluation, None)
        await self._count_last()
        await self._estimate(evaluation)
        self._scrapes.final()
        run = self._run_of(evaluation)
        written = await self._blocking(results.write, self._store, self.layout, run, compared)
        self._final = True
        self._status.changed()  # once it sees this, the operator allows `FINISHING_SECONDS` past the deadline
        await self._write_page(self._decoder)
        await self._track(written)
        await self._write_final_status()
        logs.event(_log, "finished", groups=evaluation.state.groups_done)
        if (error := projections.ending(evaluation.state, compared)) is not None:
            raise error

    async def _track(self, written: results.Written) -> None:
        """Log the results to MLflow, if the spec asks for it. Give up after `TRACKING_SECONDS`."""
        wanted = self._store, self.layout, written, self._show_run
        try:
            await within(TRACKING_SECONDS, results.track, *wanted)
        except TimeoutError:
            text = f"the tracking server did not take everything within {TRACKING_SECONDS:g} s"
            logs.event(_log, "mlflow-failed", level=logging.WARNING, error=text)

    def _show_run(self, run: st.MlflowRun) -> None:
        """Show the job's MLflow run in the status. This may be called from another thread."""
        self._tracked = run

    def _decoder(self) -> Decode | None:
        """A function that decodes token ids as text; None if the candidates have different models."""
        models = readable_models(self.job, self._store, self._cache) if self.job.model else {}
        return next((model.renderer.text for model in models.values()), None)

    def _run_of(self, evaluation: Evaluation) -> results.Run:
        """The finished run, for writing the results."""
        estimate = self._estimates.report(self._usage())
        return results.Run(self.job, evaluation.state, self._ledger.days, self._book, estimate)

    async def _compare_again(self, evaluation: Evaluation) -> None:
        """Compare the candidates again after each change, in a thread, until cancelled."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            began = time.monotonic()
            self._compared = await self._compare(evaluation, [HEADLINE])
            await self._estimate(evaluation)
            self._status.changed()
            await asyncio.sleep(max(COMPARE_SECONDS, REST_FOR_EACH * (time.monotonic() - began)))

    async def _estimate(self, evaluation: Evaluation) -> None:
        """Estimate the whole job again."""
        found = await asyncio.to_thread(self._estimates.look, self._estimates.progress(evaluation.state))
        self._estimates.show(found)

    async def _compare(self, evaluation: Evaluation, compared: list[str] | None) -> Comparison:
        """Compare the candidates by their tries.

        Args:
            evaluation: has the tries.
            compared: the measures whose differences are computed; None: all.
        """
        return await asyncio.to_thread(
            compare_all,
            {name: candidate.all_tries for name, candidate in evaluation.state.candidates.items()},
            self.spec.evaluation.pass_k,
            self.spec.effective_baseline,
            projections.gate_of(self.spec),
            priced(self._book),
            compared,
            evaluation.state.failed,
        )

    def _moved(self) -> None:
        """Request another comparison and a new status, because the evaluation has changed."""
        self._stale.set()
        self._status.changed()

    def _apply(self, update: status_writer.JobUpdate) -> None:
        """Apply an update from the operator: candidates whose servers it has given up fail."""
        if self._evaluation is not None:
            for name, (reason, message) in update.lost.items():
                self._evaluation.lose(name, reason, message)

    def _samples(self) -> Iterator[Sample]:
        if self._evaluation is not None:
            days = self._ledger.days
            cost = float(self._usage().cost or 0)
            yield from bill(days, cost)
            yield from costs.samples(self._ledger.used(), self._ledger.accelerator_totals(), self._book)
            yield from shown.samples(self._budget)
            yield from self._estimates.samples(None)
            yield Sample("store/busy_seconds", self._evaluation.store_busy)
        yield from projections.samples(self._compared, self._evaluation.state if self._evaluation else None)
