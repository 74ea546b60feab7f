"""What a coordinator process reports about its budget at its start and in its last status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from budgeted import Running, plan, settle
from episodes import a_group

from headway_api import prices
from headway_api import status as st
from headway_api.config import Identity
from headway_api.document import Json
from headway_api.exits import JobError
from headway_api.spec.lifecycle import BudgetSpec, OutputSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import FileStore
from headway_coordinator import status as status_writer
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.process import Process
from headway_operator.plan import grants

Work = Callable[["Played"], Awaitable[None]]
UID = "0b5e8a1c-1111-2222-3333-444455556666"


class Played(Process):
    """A coordinator process whose work is a function of the test."""

    work: Work

    def status(self) -> st.RLTrainingJobStatus:
        return st.RLTrainingJobStatus(conditions=self._conditions_of_budget(), budget=self._shown_budget())

    def _app(self) -> web.Application:
        return web.Application()

    def _samples(self) -> Iterator[Sample]:
        return iter(())

    def _apply(self, update: status_writer.JobUpdate) -> None:
        pass

    async def _work(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        await self.work(self)


class Stored:
    """A job as the API server stores it, and the processes that write its status."""

    def __init__(self, folder: Path, grant: Json | None = None, budget: Json | None = None) -> None:
        self.folder = folder
        metadata = {"name": "refunds", "namespace": "team", "uid": UID}
        self.job: Json = {"kind": "RLTrainingJob", "metadata": metadata, "spec": {}, "status": {}}
        self.job["spec"] |= {"budget": budget} if budget else {}
        self.job["status"] |= {"grant": grant} if grant else {}

    @property
    def budget(self) -> Json:
        """The `budget` block of the job's status."""
        found: Json = self.job["status"].get("budget", {})
        return found

    def sink(self, status: Json) -> status_writer.JobUpdate:
        grant = self.job["status"].get("grant")
        self.job["status"] = status | ({"grant": grant} if grant else {})
        return status_writer._update(self.job)

    def process(self, work: Work) -> Played:
        """A coordinator of a job that has run before, if its last status says so."""
        spec = self.job["spec"].get("budget")
        made = Played(
            Identity(kind="RLTrainingJob", name="refunds", namespace="team", uid=UID),
            RLTrainingJobSpec.model_construct(
                output=OutputSpec.model_construct(uri=f"file://{self.folder}"),
                budget=None if spec is None else BudgetSpec.model_validate(spec),
            ),
            {},
            FileStore(),
            self.folder,
            self.sink,
            begun=True,
            broker_url="http://127.0.0.1:1",
            port=0,
            model="",
            book=prices.DEFAULT,
            before=st.RLTrainingJobStatus(
                budget=st.Budget.model_validate(self.budget) if self.budget else None
            ),
        )
        made.work = work
        return made


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


async def ended(process: Played, task: asyncio.Task[None]) -> None:
    """End the process as SIGTERM does."""
    process.stop()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "LEAST_SECONDS", 0.02)


def part(granted: int, refused: str | None = None) -> Json:
    found = {"name": "tokens.sample", "granted": str(granted)}
    return {"parts": [found | ({"refused": refused} if refused else {})]}


async def waits(process: Played) -> None:
    """The process's work: one group that waits for the budget."""
    await process._load_ledger()
    async with asyncio.TaskGroup() as tasks:
        one = Running(process._budget, plan(0))
        tasks.create_task(asyncio.wait_for(one.task, None))
        await asyncio.Event().wait()


async def test_an_exhausted_job_shows_it_after_it_was_stopped(tmp_path: Path) -> None:
    stored = Stored(tmp_path, budget={"tokens": {"sample": 1}})
    process = stored.process(waits)
    task = asyncio.create_task(process.run())
    await until(lambda: stored.budget.get("exhaustedTime"))
    before = stored.budget
    await ended(process, task)
    assert stored.budget == before | {"closed": True}
    assert stored.budget["limits"][0]["needed"] == before["limits"][0]["needed"]


async def test_a_job_its_namespace_refused_shows_it_after_a_stop(tmp_path: Path) -> None:
    stored = Stored(tmp_path, grant=part(0))
    process = stored.process(waits)
    task = asyncio.create_task(process.run())
    await until(lambda: stored.budget.get("limits", [{}])[0].get("needed"))
    need = stored.budget["limits"][0]["needed"]
    assert "exhaustedTime" not in stored.budget
    stored.job["status"]["grant"] = part(0, refused=need)
    await until(lambda: stored.budget.get("exhaustedTime"))
    await ended(process, task)
    assert stored.budget["exhaustedTime"]
    assert stored.budget["limits"][0]["needed"] == need
    assert grants.claim(stored.job).needed == {"tokens.sample": Decimal(need)}


async def test_the_last_status_is_final_only_if_the_ledger_was_read(tmp_path: Path) -> None:
    stored = Stored(tmp_path, grant=part(500))

    async def plays(process: Played) -> None:
        await process._load_ledger()
        await process._blocking(process._ledger.group, a_group("t-0", [1.0, 0.0]))
        process._status.changed()
        await asyncio.Event().wait()

    first = stored.process(plays)
    task = asyncio.create_task(first.run())
    await until(lambda: grants.claim(stored.job).spent.get("tokens.sample"))
    spent = grants.claim(stored.job).spent
    await ended(first, task)
    assert stored.budget["closed"] is True

    async def fails(process: Played) -> None:
        await until(lambda: "closed" not in stored.budget)
        raise JobError("StoreUnreachable", "the store does not answer", permanent=False)

    with pytest.raises(JobError):
        await stored.process(fails).run()
    assert "closed" not in stored.budget
    assert grants.claim(stored.job).spent == spent


@pytest.mark.parametrize("first", ["ledger", "status"])
async def test_group_waits_until_ledger_is_read_and_status_is_stored(tmp_path: Path, first: str) -> None:
    stored = Stored(tmp_path)
    allowed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def sink(status: Json) -> status_writer.JobUpdate:
        if first == "ledger":
            asyncio.run_coroutine_threadsafe(allowed.wait(), loop).result(20)
        return Stored.sink(stored, status)

    stored.sink = sink  # type: ignore[method-assign]
    begun: list[bool] = []

    async def work(process: Played) -> None:
        one = Running(process._budget, plan(0))
        if first == "ledger":
            await process._load_ledger()
        else:
            await until(lambda: process._restored)
        await settle()
        begun.append(one.begun)
        allowed.set()
        if first == "status":
            await process._load_ledger()
        await until(lambda: one.begun)
        begun.append(one.begun)
        await one.end()

    await stored.process(work).run()
    assert begun == [False, True]


async def test_nothing_begins_if_the_grant_is_unreadable(tmp_path: Path) -> None:
    stored = Stored(tmp_path, grant={"parts": [{"name": "tokens.dreamt", "granted": "5"}]})
    begun: list[bool] = []

    async def work(process: Played) -> None:
        await process._load_ledger()
        one = Running(process._budget, plan(0))
        await until(lambda: process._restored)
        await settle()
        begun.append(one.begun)
        stored.job["status"]["grant"] = part(500)
        process._status.changed()
        process._budget_conditions = []
        await until(lambda: one.begun)
        await one.end()

    process = stored.process(work)
    process._status.waits = True
    await process.run()
    assert begun == [False]
