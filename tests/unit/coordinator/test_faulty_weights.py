"""How a fault in published weights reaches the job's condition, and how the condition recovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from role_keys import TO_ROLLOUT
from served_weights import Process, Server
from versions import chained, path, whole

from headway_api.conditions import Condition
from headway_api.weights_format import DELTA_FILE, MODEL_FILE
from headway_coordinator import conditions
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Endpoint
from headway_rollout.agent import application


@dataclass
class Job:
    """A fleet of one server, and the conditions that the job reports."""

    server: Server
    fleet: Fleet
    reported: tuple[Condition, ...] = ()

    def condition(self) -> tuple[str, str]:
        self.reported = tuple(conditions.after(self.reported, self.fleet.router))
        return self.reported[0].status, self.reported[0].reason

    async def until(self, status: str, reason: str) -> None:
        async with asyncio.timeout(20):
            while self.condition() != (status, reason):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Job]:
    server = Server(folder)
    agent = TestServer(application(Process(server), TO_ROLLOUT))
    await agent.start_server()
    endpoint = Endpoint("http://engine:8000", str(agent.make_url("")).rstrip("/"))

    async def discover() -> set[Endpoint]:
        return {endpoint}

    async with aiohttp.ClientSession() as http:
        fleet = Fleet(http, TO_ROLLOUT, discover)
        task = asyncio.create_task(fleet.run())
        try:
            yield Job(server, fleet)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await agent.close()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(cut, "VerificationFailed"), (Path.unlink, "UpdateFailed")],
    ids=["damaged", "missing"],
)
async def test_broken_link_keeps_server_out_of_rotation_until_mended(
    tmp_path: Path, fault: Callable[[Path], None], reason: str
) -> None:
    first, second = chained(tmp_path, 1, 2)
    async with running(tmp_path) as job:
        await job.fleet.want(first)
        await job.until("True", "Synced")
        file = path(second, DELTA_FILE)
        kept = file.read_bytes()
        fault(file)
        await job.fleet.want(second)
        await job.until("False", reason)
        assert not job.fleet.router.in_rotation()
        assert DELTA_FILE in job.reported[0].message
        assert "http://engine:8000" in job.reported[0].message
        file.write_bytes(kept)
        await job.until("True", "Synced")
        assert job.server.state.version == second.version


async def test_the_next_full_version_repairs_a_broken_link(tmp_path: Path) -> None:
    first, second = chained(tmp_path, 1, 2)
    async with running(tmp_path) as job:
        await job.fleet.want(first)
        await job.until("True", "Synced")
        cut(path(second, DELTA_FILE))
        await job.fleet.want(second)
        await job.until("False", "VerificationFailed")
        await job.fleet.want(whole(tmp_path, 3))
        await job.until("True", "Synced")


async def test_a_servers_damaged_copy_changes_no_condition(tmp_path: Path) -> None:
    first, second = chained(tmp_path, 1, 2)
    async with running(tmp_path) as job:
        await job.fleet.want(first)
        await job.until("True", "Synced")
        cut(job.server.copy(1))
        await job.fleet.want(second)
        async with asyncio.timeout(20):
            while job.server.state.version != second.version:
                assert job.condition() == ("True", "Synced")
                await asyncio.sleep(0.02)
        assert job.server.store.models()[-2:] == [f"000002/{DELTA_FILE}", f"000001/{MODEL_FILE}"]


@pytest.mark.parametrize("fault", ["canary", "refusal"])
async def test_untrusted_engine_is_replaced_and_takes_the_chain(tmp_path: Path, fault: str) -> None:
    first, second = chained(tmp_path, 1, 2)
    async with running(tmp_path) as job:
        await job.fleet.want(first)
        await job.until("True", "Synced")
        right = job.server.engine.answers
        if fault == "canary":
            job.server.engine.answers = lambda context: -9.0
        else:
            job.server.engine.refuses = True
        await job.fleet.want(second)
        await job.until("False", "VerificationFailed" if fault == "canary" else "UpdateFailed")
        assert not job.fleet.router.in_rotation()
        assert not await Process(job.server).ready()
        job.server.engine.answers, job.server.engine.refuses = right, False
        job.server.restart()
        await job.until("True", "Synced")
        assert job.server.state.version == second.version
