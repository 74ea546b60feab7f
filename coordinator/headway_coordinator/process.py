"""What the coordinators of both kinds of job share: HTTP, status, background tasks and the process's end.

`coordinator.py` adds the work of an RLTrainingJob, and `evaluation/job.py` that of an RLEvalJob.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, TypeVar

import aiohttp
from aiohttp import web

from headway_analysis.report.page.episodes import Decode
from headway_api import logs, names, prices
from headway_api import status as st
from headway_api.accelerators import Holder
from headway_api.artifacts import Layout
from headway_api.conditions import Condition, merge
from headway_api.config import Identity
from headway_api.exits import JobError, job_error, not_final
from headway_api.finishing import LAST_STATUS_SECONDS
from headway_api.grants import Grant
from headway_api.keys import Key, Keys
from headway_api.records import EpisodeRecord
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.lifecycle import OtlpTracking
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import Store
from headway_coordinator import page
from headway_coordinator import status as status_writer
from headway_coordinator.bounds import is_superseded
from headway_coordinator.budget import shown
from headway_coordinator.budget.accelerators import worst_case
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.priced import Priced
from headway_coordinator.conditions import OF_BUDGET
from headway_coordinator.http import connector
from headway_coordinator.ledger import export
from headway_coordinator.ledger.books import LOOK_SECONDS, Books
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.ledger.usage import usage
from headway_coordinator.metrics import otel
from headway_coordinator.metrics.otlp import Otlp
from headway_coordinator.metrics.prometheus import Exporter, Sample
from headway_coordinator.sandboxes import Broker
from headway_coordinator.scrapes import Scrapes
from headway_coordinator.spool import Spool
from headway_wire.listening import listening

CLAIM_SECONDS: Final = 600.0
COUNT_SECONDS: Final = 60.0
"""Seconds between two writes of accelerator seconds to the ledger. The operator reports them as often."""
BUDGET_SECONDS: Final = 10.0
"""Seconds between two checks of the cost of accelerator time against the budget."""
POLL_SECONDS: Final = 1.0
"""Seconds between two checks for the first accelerator seconds."""
STORE_SECONDS: Final = 3600.0
"""The longest that a blocking call may take. The longest ones are at the start: they load a model's files, or
the spool of a long run."""

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Process(ABC):
    """The process that runs one job."""

    def __init__(
        self,
        job: Identity,
        spec: RLTrainingJobSpec | RLEvalJobSpec,
        keys: Keys,
        store: Store,
        cache: Path,
        sink: status_writer.Sink,
        *,
        begun: bool,
        broker_url: str | None,
        port: int,
        model: str,
        book: prices.PriceBook,
        before: status_writer.Status,
    ) -> None:
        """
        Args:
            begun: whether a predecessor got past the preflight. If so, the spec was right, and a failure may
                be transient.
            model: the job's base model; empty if there are several.
            book: the price book if there is no ConfigMap.
            before: the job's status when this process began.
        """
        self.layout = Layout(spec.output.uri, job.namespace, job.name, job.uid)
        self._identity = job
        self._keys = keys
        self._store = store
        self._cache = cache
        self._begun = begun
        self._broker_url = broker_url or job.broker_url
        self._port = port
        self._spool = Spool(store, self.layout)
        self._ledger = Ledger(store, self.layout)
        prices_file = Path(os.environ.get(names.ENV_PRICES, names.PRICES_DIR)) / names.PRICES_KEY
        self._books = Books(store, self.layout, prices_file, spec.price_book, model, book)
        self._exporter = Exporter(job.namespace, job.name, self._samples)
        self._budget = Budget(
            spec.budget, Priced(self._ledger, lambda: self._book), self._budget_moved, opened=False
        )
        self._status = status_writer.Writer(sink, self.status, self._on_update, self._written)
        self._restored = False
        """Whether a status of this process was written."""
        self._grant_read = True
        """Whether the namespace's last grant could be read. True while there is no grant."""
        self._budget_before = before.budget
        self._accelerators = before.accelerators
        """Pods with accelerators, as the operator last reported them."""
        self._budget_conditions = [each for each in before.conditions if each.type in OF_BUDGET]
        self._enforcing = asyncio.Event()
        """Set when the budget's state changes, so that the loop of `_enforce_budget` looks at once."""
        self._accelerator_seconds: Mapping[Holder, int] = {}
        """Accelerator seconds, as the operator last reported them."""
        self._counting_accelerators = asyncio.Lock()
        self._preflight = st.Preflight(state="Running")
        self._model = model
        self._otlp: Otlp | None = None
        self._paged = before.artifacts is not None and before.artifacts.page is not None
        """Whether `report.html` was written."""
        self._scrapes = Scrapes()
        self._status_written = False
        """Whether the final status was written."""
        self.on_loaded: Callable[[], None] = lambda: None
        """Called before the first episode, once everything is loaded."""
        self.over = False
        """Whether all work is done and written. The process may still wait for a last scrape."""
        self.fault: BaseException | None = None
        """The error that ended a background task, and with it the process."""

    async def run(self) -> None:
        """Run the whole job, from preflight to report. Then wait for a last scrape of its metrics.

        Raises:
            JobError: something that a person must correct.
        """
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            # No server may set a cookie that is sent to another.
            jar = aiohttp.DummyCookieJar()
            session = aiohttp.ClientSession(connector=connector(), cookie_jar=jar)
            http = await stack.enter_async_context(session)
            await stack.enter_async_context(listening(self._app(), self._port))
            ended: JobError | None = None
            try:
                await self._run(http)
            except JobError as error:  # such as a gate that is not passed: the results are valid
                ended = error
            if self._status_written:
                self.over = True
                await self._scrapes.last()
            if ended is not None:
                raise ended

    async def _run(self, http: aiohttp.ClientSession) -> None:
        """Do the job's work, and keep its status up to date meanwhile."""
        async with AsyncExitStack() as stack:
            writer = self._background(stack, self._status.run())
            self._background(stack, self._count_accelerators())
            self._background(stack, self._export_daily())
            self._background(stack, self._enforce_budget())
            try:
                await self._work(stack, http)
            except (JobError, ExceptionGroup, asyncio.CancelledError) as error:
                if (failed := job_error(self.fault or error)) is not None and failed.permanent:
                    await self._show_end()
                raise
            finally:
                writer.cancel()
                self._budget.close()
                if not is_superseded(sys.exc_info()[1]):
                    await self._status.flush()

    @abstractmethod
    def status(self) -> status_writer.Status:
        """The fields of `.status` that this process owns."""

    @abstractmethod
    def _app(self) -> web.Application:
        """Probes, metrics, and the routes for other processes of the job."""

    @abstractmethod
    async def _work(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        """Do the job's work, from the first check to the final status."""

    async def _show_end(self) -> None:  # noqa: B027
        """Publish the results of a job that failed permanently. An evaluation has done so earlier, and does
        nothing here."""

    @abstractmethod
    def _samples(self) -> Iterator[Sample]:
        """Everything that `/metrics` shows except histograms."""

    @abstractmethod
    def _apply(self, update: status_writer.JobUpdate) -> None:
        """Apply what users and the operator have written to the job."""

    def _on_update(self, update: status_writer.JobUpdate) -> None:
        self._accelerator_seconds = update.accelerator_seconds or self._accelerator_seconds
        self._accelerators = update.accelerators or self._accelerators
        if update.budget != "unknown":
            self._budget.set(update.budget)
        if update.grant != "unknown":
            self._take_grant(update.grant)
        self._apply(update)

    def _take_grant(self, grant: Grant | Literal["unread"] | None) -> None:
        """Apply the namespace's grant.

        The earlier grant remains if this one cannot be read, because an operator of another version wrote it.
        """
        try:
            self._grant_read = grant != "unread"
            if grant != "unread":
                self._budget.set_grant(grant)
        except ValueError as error:
            self._grant_read = False
            logs.event(_log, "grant-not-read", level=logging.WARNING, error=str(error))

    def _written(self) -> None:
        self._restored = True
        self._open_budget()

    def _open_budget(self) -> None:
        """Let groups begin, once everything that bounds the budget is known.

        The earlier usage and the namespace's grant must be read. The predecessor's budget must no longer be
        in the status.
        """
        if self._restored and self._ledger.loaded and self._grant_read:
            self._budget.open()

    def stop(self) -> None:
        """Begin no group and wait for no scrape any more, because the process is about to be cancelled."""
        self._budget.close()
        self._scrapes.leave()

    def _metrics(self) -> bytes:
        """The content of `/metrics`. The read is noted as a scrape."""
        text = self._exporter.text()
        self._scrapes.read()
        return text

    async def _count_accelerators(self) -> None:
        """Write the seconds of held accelerators to the ledger at intervals, until cancelled."""
        while True:
            if not (self._ledger.loaded and self._accelerator_seconds):
                await asyncio.sleep(POLL_SECONDS)
                continue
            async with self._counting_accelerators:
                await self._blocking(self._ledger.accelerators, self._accelerator_seconds, time.time())
            self._status.changed()
            await asyncio.sleep(COUNT_SECONDS)

    def _budget_moved(self) -> None:
        self._enforcing.set()
        self._status.waits = self._budget.awaits_grant
        self._status.changed()

    async def _enforce_budget(self) -> None:
        """Reserve the coming cost of accelerator time at intervals, until cancelled.

        If the budget is exhausted and `onExhausted` is Fail, fail the job.

        Raises:
            JobError: `BudgetExhausted`, if an exhausted budget fails the job.
        """
        while True:
            self._enforcing.clear()
            if self._ledger.loaded:
                self._reserve_time()
            spec = self._budget.spec
            if spec is not None and spec.on_exhausted == "Fail" and self._budget.exhausted_at is not None:
                raise shown.exhausted(self._budget)
            with suppress(TimeoutError):
                async with asyncio.timeout(BUDGET_SECONDS):
                    await self._enforcing.wait()

    async def _load_ledger(self) -> None:
        """Read the earlier usage, and reserve the cost of accelerator time. Groups may begin after that."""
        await self._blocking(self._ledger.load)
        self._reserve_time()
        self._open_budget()

    def _reserve_time(self) -> None:
        counted, now = self._ledger.accelerator_totals(), datetime.now(UTC)
        self._budget.reserve_time(worst_case(self._accelerators, counted, now))

    def _shown_budget(self) -> st.Budget | None:
        """The budget as the status shows it. It is the predecessor's until the ledger is read."""
        if self._ledger.loaded:
            return shown.status(self._budget)
        before = self._budget_before
        return None if before is None else before.model_copy(update={"closed": None})

    def _conditions_of_budget(self) -> list[Condition]:
        """The conditions of the budget. They are the predecessor's until the ledger is read."""
        if not self._ledger.loaded:
            return self._budget_conditions
        fresh = shown.conditions(self._budget)
        types = {each.type for each in fresh}
        self._budget_conditions = merge(
            (each for each in self._budget_conditions if each.type in types), fresh
        )
        return self._budget_conditions

    async def _count_last(self) -> None:
        """Write the accelerator seconds that are known at the end, and export the bill."""
        await self._status.flush()  # the reply has the seconds that the operator has counted meanwhile
        async with self._counting_accelerators:
            await self._blocking(self._ledger.accelerators, self._accelerator_seconds, time.time(), last=True)
        await self._export()

    async def _export(self) -> None:
        """Write the bill in the formats that other tools read."""
        wanted = self._identity, self._store, self.layout, self._ledger, self._book
        try:
            days = await self._blocking(export.write, *wanted)
        except JobError as error:  # the job need not fail, because the ledger's segments hold the whole bill
            logs.event(_log, "not-exported", level=logging.WARNING, error=str(error))
        else:
            logs.event(_log, "exported", days=days)

    async def _export_daily(self) -> None:
        """Export the bill at the end of each day, until cancelled."""
        day = datetime.now(UTC).date()
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            if (today := datetime.now(UTC).date()) > day and self._ledger.loaded:
                await self._export()
                day = today

    async def _take_start_number(self) -> int:
        """The number of this process among all coordinators of the job."""
        with not_final(self._begun):
            number = await self._blocking(self._spool.take_start_number)
            await self._blocking(self._spool.describe, self._identity)
            return number

    async def _write_page(self, decode: Callable[[], Decode | None]) -> None:
        """Write `report.html`. `decode` loads the function from token ids to text."""
        self._paged = await page.write_in_time(self._store, self.layout, self._identity.kind, decode)

    async def _claimed(
        self, http: aiohttp.ClientSession, start_number: int, url: str | None = None
    ) -> Broker:
        """A broker that hands out sandboxes to this process, and no longer to its predecessors.

        `url` is the broker's address. Without it, the job's own broker is used.
        """
        owner = f"{self._identity.name}-{start_number}"
        on_tool = partial(self._exporter.observe, "sandbox/tool_call_seconds")
        broker = Broker(http, url or self._broker_url, self._keys[Key.COORDINATOR_TO_BROKER], owner, on_tool)
        # Loading the model took minutes. If a successor has begun meanwhile, a claim by this process would
        # end the successor.
        await self._blocking(self._spool.refuse_superseded, start_number)
        await broker.claim(CLAIM_SECONDS)
        return broker

    @property
    def _book(self) -> prices.PriceBook:
        """The current price book, for the job's model."""
        return self._books.now

    def _usage(self) -> st.Usage:
        """The bill so far."""
        today = datetime.now(UTC).date()
        return usage(self._ledger.days, self._book, today, self._books, self._ledger.used())

    async def _follow_prices(self) -> None:
        """Apply each change of the price book. Call it once the ledger is loaded."""
        await self._blocking(self._books.begin, self._ledger.used())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await self._blocking(self._books.look, self._ledger.used()):
                self._status.changed()

    async def _write_final_status(self) -> None:
        """Write the final status.

        Raises:
            JobError: `StatusNotWritten`, retriable.
        """
        self._budget.close()
        if not await self._status.settle(LAST_STATUS_SECONDS):
            raise JobError("StatusNotWritten", "the API server does not accept the status", permanent=False)
        self._status_written = True

    def _checked(self, preflight: st.Preflight) -> None:
        """Show the preflight after a check has ended. May be called from another thread."""
        self._preflight = preflight
        self._loop.call_soon_threadsafe(self._status.changed)

    def _ended(self, episode: EpisodeRecord) -> None:
        seconds = episode.finished_at - episode.started_at
        self._exporter.observe("episodes/seconds", seconds, outcome=episode.outcome.value)
        if self._otlp is not None:
            self._otlp.give(otel.of_episode(self._identity, self._model, episode))

    def _send_traces(
        self, stack: AsyncExitStack, http: aiohttp.ClientSession, wanted: OtlpTracking | None
    ) -> None:
        """Send traces of episodes from now on, if the spec asks for it."""
        if wanted is not None:
            headers = {each.name: each.value for each in wanted.headers}
            self._otlp = Otlp(http, wanted.endpoint, self._identity, headers)
            stack.push_async_callback(self._otlp.close)
            self._background(stack, self._otlp.run())

    def _background(self, stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until the end. If it fails earlier, the whole process fails."""
        main = asyncio.current_task()
        task = asyncio.create_task(work)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None and main is not None:
                self.fault = task.exception()
                self.stop()
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
