"""The learner's HTTP client against a real server on the loopback that misbehaves in many ways."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import learner_rig as rig
import pytest
from aiohttp import web
from role_keys import TO_COORDINATOR

from headway_api.exits import JobError
from headway_api.names import STARTING
from headway_api.records import Batch, Finished
from headway_trainer import coordinator_client as client
from headway_trainer.coordinator_client import (
    CoordinatorClient,
    CoordinatorUnreachableError,
    StepNotAnnouncedError,
)

Answer = TypeVar("Answer")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE", 0.02)


async def off_loop(call: Callable[[], Answer]) -> Answer:
    return await asyncio.wait_for(asyncio.to_thread(call), 20)


async def test_a_batch_arrives_compressed_and_whole() -> None:
    served = rig.ScriptedCoordinator([rig.batch(1)])
    async with served.serving() as url:
        here = CoordinatorClient(url, TO_COORDINATOR)
        await off_loop(lambda: here.announce(rig.report(0)))
        assert await off_loop(lambda: here.poll(1)) == served.batches[0]


async def test_a_poll_says_that_no_batch_is_ready_or_will_come() -> None:
    served = rig.ScriptedCoordinator([], hold=1)
    async with served.serving() as url:
        here = CoordinatorClient(url, TO_COORDINATOR)
        await off_loop(lambda: here.announce(rig.report(0)))
        assert await off_loop(lambda: here.poll(1)) is None
        assert await off_loop(lambda: here.poll(1)) == Finished(reason="MaxSteps")


async def test_a_restarted_coordinator_wants_the_step_announced() -> None:
    async with rig.ScriptedCoordinator([rig.batch(1)]).serving() as url:
        here = CoordinatorClient(url, TO_COORDINATOR)
        with pytest.raises(StepNotAnnouncedError):
            await off_loop(lambda: here.poll(1))


async def test_a_starting_coordinator_does_not_count_as_unreachable() -> None:
    """A starting coordinator may read its store for longer than the learner waits for a silent one."""
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked > 40:
            return web.Response(status=204)
        return web.json_response({"reason": STARTING, "message": "not yet"}, status=503)

    app = web.Application()
    app.router.add_post("/v1/steps", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        here = CoordinatorClient(f"http://127.0.0.1:{runner.addresses[0][1]}", TO_COORDINATOR, patience=0.1)
        await off_loop(lambda: here.announce(rig.report(0)))
    finally:
        await runner.cleanup()
    assert asked == 41


@pytest.mark.parametrize("fault", ["503", "drop"])
async def test_temporary_faults_are_retried(fault: str) -> None:
    turn = itertools.count()

    def fails_twice_of_three(request: web.Request) -> str | None:
        return None if next(turn) % 3 == 2 else fault

    served = rig.ScriptedCoordinator([rig.batch(1)], fault=fails_twice_of_three)
    async with served.serving() as url:
        here = CoordinatorClient(url, TO_COORDINATOR, patience=30)
        await off_loop(lambda: here.announce(rig.report(0)))
        answers = [await off_loop(lambda: here.poll(1)) for _ in range(6)]
    assert [a for a in answers if a is not None] == [served.batches[0]] * 2
    assert {r.step for r in served.reports} == {0}


async def test_an_unreachable_coordinator_ends_the_process_retriably() -> None:
    here = CoordinatorClient(f"http://127.0.0.1:{rig.free_port()}", TO_COORDINATOR, patience=0.1)
    with pytest.raises(CoordinatorUnreachableError) as gone:
        await off_loop(lambda: here.announce(rig.report(0)))
    with pytest.raises(CoordinatorUnreachableError):  # at once, because the deadline has passed
        await off_loop(lambda: here.poll(1))
    assert gone.value.termination.reason == "CoordinatorUnreachable"
    assert not gone.value.permanent


async def test_an_unanswered_poll_times_out_shortly_after_its_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A short poll must end sooner than a long one, because somebody may stop the learner meanwhile."""
    monkeypatch.setattr(client, "SILENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        here = CoordinatorClient(f"http://127.0.0.1:{deaf.getsockname()[1]}", TO_COORDINATOR)
        for wait in (0.0, 0.5):
            started = time.monotonic()
            assert await off_loop(partial(here.poll, 1, wait)) is None
            assert wait + 0.2 <= time.monotonic() - started < wait + 15


async def test_an_answer_resets_the_patience() -> None:
    turn = itertools.count()
    served = rig.ScriptedCoordinator([], fault=lambda request: "503" if next(turn) % 2 else None, hold=100)
    async with served.serving() as url:
        here = CoordinatorClient(url, TO_COORDINATOR, patience=0.05)
        await off_loop(lambda: here.announce(rig.report(0)))
        for _ in range(30):  # half of them get no answer, in total for longer than the patience
            assert await off_loop(lambda: here.poll(1)) is None


async def test_a_wrong_key_is_not_retried() -> None:
    async with rig.ScriptedCoordinator([]).serving() as url:
        here = CoordinatorClient(url, "another job's key")
        with pytest.raises(JobError, match="401") as refused:
            await off_loop(lambda: here.announce(rig.report(0)))
    assert refused.value.termination.reason == "CoordinatorRefused"
    assert not refused.value.permanent


async def test_an_unreadable_batch_is_a_contract_mismatch() -> None:
    async def odd(request: web.Request) -> web.Response:
        return web.json_response({"step": 1, "surprise": True})

    app = web.Application()
    app.add_routes([web.get("/v1/batch", odd)])
    runner = web.AppRunner(app)
    await runner.setup()
    port = rig.free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        with pytest.raises(JobError) as mismatch:
            await off_loop(lambda: CoordinatorClient(f"http://127.0.0.1:{port}", TO_COORDINATOR).poll(1))
    finally:
        await runner.cleanup()
    assert mismatch.value.termination.reason == "ContractMismatch"
    assert mismatch.value.permanent


def test_a_batch_keeps_its_groups_across_the_wire() -> None:
    made = rig.batch(3, groups=4)
    assert Batch.model_validate_json(made.model_dump_json()) == made
