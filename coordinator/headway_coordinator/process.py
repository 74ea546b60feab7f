"""The frame of a coordinator process: HTTP, status, background tasks and the end.

Jobs of both kinds run this program. `coordinator.py` trains, `evaluation/job.py` evaluates.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import aiohttp
from aiohttp import web

from headway_api import logs, prices
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.config import Identity
from headway_api.exits import JobError, job_error, not_final
from headway_api.keys import Key, Keys
from headway_api.records import EpisodeRecord
from headway_api.spec.lifecycle import OutputSpec
from headway_api.store import Store
from headway_coordinator import status as status_writer
from headway_coordinator.bounds import SUPERSEDED
from headway_coordinator.http import connector
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.metrics.prometheus import Exporter, Sample
from headway_coordinator.sandboxes import Broker
from headway_coordinator.spool import Spool
from headway_wire.listening import listening

LAST_WORD_SECONDS: Final = 600.0
"""Longest it tries to write its last status: an API server that is upgraded is away for minutes."""
CLAIM_SECONDS: Final = 600.0
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
        book: prices.PriceBook,
    ) -> None:
        """`begun`: a predecessor got past the preflight, so what it could use was right, and may be again."""
        self.layout = Layout(output.uri, job.namespace, job.name, job.uid)
        self._identity = job
        self._keys = keys
        self._store = store
        self._cache = cache
        self._begun = begun
        self._broker_url = broker_url or job.broker_url
        self._port = port
        self._book = book
        self._spool = Spool(store, self.layout)
        self._ledger = Ledger(store, self.layout)
        self._exporter = Exporter(job.namespace, job.name, self._samples)
        self._status = status_writer.Writer(sink, self.status, self._hear)
        self._preflight = st.Preflight(state="Running")
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
            try:
                await self._work(stack, http)
            finally:
                writer.cancel()
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

    async def _incarnation(self) -> int:
        """The number of this process among all coordinators of the job."""
        with not_final(self._begun):
            return await self._blocking(self._spool.incarnation)

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

    async def _last_word(self) -> None:
        """The final status stands.

        Raises:
            JobError: `StatusNotWritten`, retriable.
        """
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


async def serve(process: Process, ended: Callable[[], None] = lambda: None) -> None:
    """Run until the job is over, or until SIGTERM: what is durable is enough for a successor.

    `ended` is called then, before what still runs in threads is waited for.
    """
    task = asyncio.ensure_future(process.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
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
