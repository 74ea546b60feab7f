"""The frame of a coordinator process: HTTP, status, background tasks and the end.

Jobs of both kinds run this program. `coordinator.py` trains, `evaluation/job.py` evaluates.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
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
from headway_api.artifacts import Layout
from headway_api.conditions import Condition, merge
from headway_api.config import Identity
from headway_api.exits import JobError, job_error, not_final
from headway_api.grants import Grant
from headway_api.held import Holder
from headway_api.keys import Key, Keys
from headway_api.records import EpisodeRecord
from headway_api.spec.lifecycle import BudgetSpec, OtlpTracking, OutputSpec
from headway_api.store import Store
from headway_coordinator import page
from headway_coordinator import status as status_writer
from headway_coordinator.bounds import SUPERSEDED
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
from headway_coordinator.spool import Spool
from headway_wire.listening import listening

LAST_WORD_SECONDS: Final = 600.0
"""Longest it tries to write its last status: an API server that is upgraded is away for minutes."""
CLAIM_SECONDS: Final = 600.0
HELD_SECONDS: Final = 60.0
"""How often accelerator seconds go to the ledger: as often as the operator tells them."""
BUDGET_SECONDS: Final = 10.0
"""How often what time costs is held against the budget."""
HEARD_SECONDS: Final = 1.0
"""How often it is looked whether there are any."""
STORE_SECONDS: Final = 3600.0
"""Longest a blocking step of the start may take: a model's files, or the spool of a long run."""

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Process(ABC):
    """One process of one job."""

    def __init__(
        self,
        job: Identity,
        output: OutputSpec,
        keys: Keys,
        store: Store,
        cache: Path,
        sink: status_writer.Sink,
        *,
        begun: bool,
        broker_url: str | None,
        port: int,
        price_book: str | None,
        model: str,
        book: prices.PriceBook,
        budget: BudgetSpec | None,
        before: status_writer.Status,
    ) -> None:
        """
        Args:
            begun: a predecessor got past the preflight, so what it could use was right, and may be again.
            price_book: name of the ConfigMap that `spec.priceBook` asks for.
            model: the job's base model; empty where there are several.
            book: the price book where there is no ConfigMap.
            budget: what the spec lets the job use.
            before: what was said of the job when this process began.
        """
        self.layout = Layout(output.uri, job.namespace, job.name, job.uid)
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
        self._books = Books(store, self.layout, prices_file, price_book, model, book)
        self._exporter = Exporter(job.namespace, job.name, self._samples)
        self._budget = Budget(
            budget, Priced(self._ledger, lambda: self._book), self._budget_moved, opened=False
        )
        self._status = status_writer.Writer(sink, self.status, self._heard, self._written)
        self._stands = False
        """A status of this process was written."""
        self._grant_read = True
        """What the namespace grants could be read, or was not asked for."""
        self._budget_before = before.budget
        self._accelerators = before.accelerators
        """Pods with accelerators, as they were heard of last."""
        self._budget_said = [each for each in before.conditions if each.type in OF_BUDGET]
        self._enforcing = asyncio.Event()
        """The budget is exhausted, or is so no more."""
        self._held: Mapping[Holder, int] = {}
        """Accelerator seconds, as they were heard last."""
        self._counting_held = asyncio.Lock()
        self._preflight = st.Preflight(state="Running")
        self._model = model
        self._otlp: Otlp | None = None
        self._paged = False
        """The report that people open was written."""
        self.fault: BaseException | None = None
        """What ended a background task, and with it the process."""

    async def run(self) -> None:
        """Live the whole job, from preflight to report.

        Raises:
            JobError: something a person must mend.
        """
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            # No server that is called may leave something that is sent to another.
            jar = aiohttp.DummyCookieJar()
            session = aiohttp.ClientSession(connector=connector(), cookie_jar=jar)
            http = await stack.enter_async_context(session)
            await stack.enter_async_context(listening(self._app(), self._port))
            writer = self._background(stack, self._status.run())
            self._background(stack, self._count_held())
            self._background(stack, self._export_daily())
            self._background(stack, self._enforce_budget())
            try:
                await self._work(stack, http)
            finally:
                writer.cancel()
                self._budget.close()
                if not is_superseded(sys.exc_info()[1]):
                    await self._status.flush()

    @abstractmethod
    def status(self) -> status_writer.Status:
        """Everything this process owns of `.status`."""

    @abstractmethod
    def _app(self) -> web.Application:
        """Probes, metrics, and whatever other processes of the job call."""

    @abstractmethod
    async def _work(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        """What the job is there for."""

    @abstractmethod
    def _samples(self) -> Iterator[Sample]:
        """Everything `/metrics` shows but histograms."""

    @abstractmethod
    def _hear(self, heard: status_writer.Heard) -> None:
        """Take up what others have written to the job."""

    def _heard(self, heard: status_writer.Heard) -> None:
        self._held = heard.held or self._held
        self._accelerators = heard.accelerators or self._accelerators
        if heard.budget != "unheard":
            self._budget.set(heard.budget)
        if heard.grant != "unheard":
            self._take_grant(heard.grant)
        self._hear(heard)

    def _take_grant(self, grant: Grant | Literal["unread"] | None) -> None:
        """Take up what the namespace grants; where an operator of another version wrote it, what was granted
        before stands."""
        try:
            self._grant_read = grant != "unread"
            if grant != "unread":
                self._budget.set_grant(grant)
        except ValueError as error:
            self._grant_read = False
            logs.event(_log, "grant-not-read", level=logging.WARNING, error=str(error))

    def _written(self) -> None:
        self._stands = True
        self._open_budget()

    def _open_budget(self) -> None:
        """Let groups begin, once it is known what was used before and what the namespace grants, and what a
        predecessor said last is no longer in the status."""
        if self._stands and self._ledger.loaded and self._grant_read:
            self._budget.open()

    def stop(self) -> None:
        """Begin nothing more: the process is about to be cancelled."""
        self._budget.close()

    async def _count_held(self) -> None:
        """Write down now and then what accelerators were held, until cancelled."""
        while True:
            if not (self._ledger.loaded and self._held):
                await asyncio.sleep(HEARD_SECONDS)
                continue
            async with self._counting_held:
                await self._blocking(self._ledger.accelerators, self._held, time.time())
            self._status.changed()
            await asyncio.sleep(HELD_SECONDS)

    def _budget_moved(self) -> None:
        self._enforcing.set()
        self._status.waits = self._budget.awaits_grant
        self._status.changed()

    async def _enforce_budget(self) -> None:
        """Reserve what time will cost, and fail the job where its budget is exhausted and says so, until
        cancelled.

        Raises:
            JobError: `BudgetExhausted`, where the job is to fail by that.
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
        """Read what was used before. From then on groups may begin, so what time will cost is reserved."""
        await self._blocking(self._ledger.load)
        self._reserve_time()
        self._open_budget()

    def _reserve_time(self) -> None:
        counted, now = self._ledger.held_seconds(), datetime.now(UTC)
        self._budget.reserve_time(worst_case(self._accelerators, counted, now))

    def _shown_budget(self) -> st.Budget | None:
        """The budget as status shows it. What a predecessor said stands until the ledger is read."""
        if self._ledger.loaded:
            return shown.status(self._budget)
        before = self._budget_before
        return None if before is None else before.model_copy(update={"closed": None})

    def _conditions_of_budget(self) -> list[Condition]:
        """What is so of the budget, as old as it is."""
        if not self._ledger.loaded:
            return self._budget_said
        fresh = shown.conditions(self._budget)
        types = {each.type for each in fresh}
        self._budget_said = merge((each for each in self._budget_said if each.type in types), fresh)
        return self._budget_said

    async def _count_last(self) -> None:
        """Write down what has been held by the end, as far as it is known, and export the bill."""
        await self._status.flush()  # the answer tells what the operator has counted meanwhile
        async with self._counting_held:
            await self._blocking(self._ledger.accelerators, self._held, time.time(), last=True)
        await self._export()

    async def _export(self) -> None:
        """Write the bill in the forms that other tools read."""
        wanted = self._identity, self._store, self.layout, self._ledger, self._book
        try:
            days = await self._blocking(export.write, *wanted)
        except JobError as error:  # the job need not fail for it: the segments are there
            logs.event(_log, "not-exported", level=logging.WARNING, error=str(error))
        else:
            logs.event(_log, "exported", days=days)

    async def _export_daily(self) -> None:
        """Do so when a day is over, until cancelled."""
        day = datetime.now(UTC).date()
        while True:
            await asyncio.sleep(HELD_SECONDS)
            if (today := datetime.now(UTC).date()) > day and self._ledger.loaded:
                await self._export()
                day = today

    async def _incarnation(self) -> int:
        """The number of this process among all coordinators of the job."""
        with not_final(self._begun):
            number = await self._blocking(self._spool.incarnation)
            await self._blocking(self._spool.describe, self._identity)
            return number

    async def _write_page(self, decode: Decode | None) -> None:
        """Write the report that people open. `decode`: text of token ids; None: tokens are not shown."""
        self._paged = await self._blocking(page.write, self._store, self.layout, self._identity.kind, decode)

    async def _claimed(self, http: aiohttp.ClientSession, incarnation: int, url: str | None = None) -> Broker:
        """A broker, which hands out sandboxes to this process and to none before it; without `url` the job's
        own."""
        owner = f"{self._identity.name}-{incarnation}"
        on_tool = partial(self._exporter.observe, "sandbox/tool_call_seconds")
        broker = Broker(http, url or self._broker_url, self._keys[Key.COORDINATOR_TO_BROKER], owner, on_tool)
        # The model took minutes to load: to claim what a successor holds would end that one.
        await self._blocking(self._spool.refuse_superseded, incarnation)
        await broker.claim(CLAIM_SECONDS)
        return broker

    @property
    def _book(self) -> prices.PriceBook:
        """The price book in force, for the job's model."""
        return self._books.now

    def _usage(self) -> st.Usage:
        """The bill so far."""
        return usage(
            self._ledger.days, self._book, datetime.now(UTC).date(), self._books, self._ledger.used()
        )

    async def _follow_prices(self) -> None:
        """Take up each change of the price book; call it once the ledger is loaded."""
        await self._blocking(self._books.begin, self._ledger.used())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await self._blocking(self._books.look, self._ledger.used()):
                self._status.changed()

    async def _last_word(self) -> None:
        """The final status stands.

        Raises:
            JobError: `StatusNotWritten`, retriable.
        """
        self._budget.close()
        if not await self._status.settle(LAST_WORD_SECONDS):
            raise JobError("StatusNotWritten", "the API server takes no status", permanent=False)

    def _checked(self, preflight: st.Preflight) -> None:
        """A check is over. May be called from another thread."""
        self._preflight = preflight
        self._loop.call_soon_threadsafe(self._status.changed)

    def _ended(self, episode: EpisodeRecord) -> None:
        """An episode ended."""
        seconds = episode.finished_at - episode.started_at
        self._exporter.observe("episodes/seconds", seconds, outcome=episode.outcome.value)
        if self._otlp is not None:
            self._otlp.give(otel.of_episode(self._identity, self._model, episode))

    def _send_traces(
        self, stack: AsyncExitStack, http: aiohttp.ClientSession, wanted: OtlpTracking | None
    ) -> None:
        """Send traces of episodes from now on, where the spec asks for it."""
        if wanted is not None:
            self._otlp = Otlp(
                http, wanted.endpoint, self._identity, {each.name: each.value for each in wanted.headers}
            )
            stack.push_async_callback(self._otlp.close)
            self._background(stack, self._otlp.run())

    def _background(self, stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until the end; if it fails before, the whole process fails."""
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


async def serve(process: Process, ended: Callable[[], None] = lambda: None) -> None:
    """Run until the job is over, or until SIGTERM: what is durable is enough for a successor.

    `ended` is called then, before what still runs in threads is waited for.
    """
    task = asyncio.ensure_future(process.run())
    loop = asyncio.get_running_loop()

    def stop() -> None:
        process.stop()
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if process.fault is not None:
            raise process.fault from None
        logs.event(_log, "stopped")
        raise
    finally:
        ended()


def is_superseded(error: BaseException | None) -> bool:
    """Whether a process ends since another has taken its place: the status is that one's to write."""
    found = job_error(error)
    return found is not None and found.termination.reason == SUPERSEDED
