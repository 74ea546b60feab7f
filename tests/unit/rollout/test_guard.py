"""The guard with real processes. A shell that starts two sleeping processes stands for the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rollout_server import group_members

from headway_rollout.launch import Launch
from headway_rollout.process import EngineProcess

ENGINE = "sleep 300 & sleep 300 & echo up; wait"
DEAF = "trap '' TERM; " + ENGINE


def launch(script: str) -> Launch:
    return Launch(argv=("/bin/sh", "-c", script), env=dict(os.environ))


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    for _ in iter(condition, True):
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)


async def lines_of(process: EngineProcess, wanted: str) -> None:
    await until(lambda: wanted in process.lines)


async def gone(group: int) -> None:
    await until(lambda: not group_members(group))


async def test_stop_leaves_no_process_of_the_group() -> None:
    process = await EngineProcess.start(launch(ENGINE))
    await lines_of(process, "up")
    assert len(group_members(process.pid)) == 4
    await process.stop()
    await gone(process.pid)


async def test_an_engine_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway_rollout.process.STOP_SECONDS", 0.2)
    process = await EngineProcess.start(launch(DEAF))
    await lines_of(process, "up")
    await process.stop()
    await gone(process.pid)


async def test_kill_does_not_wait_for_a_clean_exit() -> None:
    process = await EngineProcess.start(launch(DEAF))
    await lines_of(process, "up")
    await process.kill()
    await gone(process.pid)


async def test_an_engine_that_ends_takes_its_orphans_with_it() -> None:
    process = await EngineProcess.start(launch("sleep 300 & echo up; exit 7"))
    async with asyncio.timeout(30):
        assert await process.ended() == 7
    await gone(process.pid)


async def test_a_signal_is_distinguished_from_an_exit() -> None:
    process = await EngineProcess.start(launch("echo last words; kill -9 $$"))
    async with asyncio.timeout(30):
        assert await process.ended() == 128 + signal.SIGKILL
    assert process.lines == ["last words"]


async def test_a_front_process_that_outlives_its_core_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway_rollout.process.GONE_SECONDS", 0.2)
    process = await EngineProcess.start(launch("echo engine core exited unexpectedly; " + ENGINE))
    async with asyncio.timeout(30):
        assert await process.ended() == 128 + signal.SIGKILL
    await gone(process.pid)


async def test_a_kill_by_the_server_is_not_reported_as_an_engines_end() -> None:
    process = await EngineProcess.start(launch("echo last words; sleep 300"))
    await lines_of(process, "last words")
    ended = asyncio.create_task(process.ended())
    await process.kill()
    await gone(process.pid)
    await asyncio.wait({ended}, timeout=0.2)
    assert not ended.done()
    ended.cancel()


async def test_the_engine_ends_when_the_guard_is_killed() -> None:
    process = await EngineProcess.start(launch(ENGINE))
    await lines_of(process, "up")
    os.kill(process.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        assert await process.ended() == 128 + signal.SIGKILL
    await gone(process.pid)


def test_kill_of_the_server_leaves_no_engine_process(tmp_path: Path) -> None:
    server = """
import asyncio, os, sys
from headway_rollout.launch import Launch
from headway_rollout.process import EngineProcess
async def main():
    process = await EngineProcess.start(Launch(argv=("/bin/sh", "-c", sys.argv[1]), env=dict(os.environ)))
    while "up" not in process.lines:
        await asyncio.sleep(0.01)
    print(process.pid, flush=True)
    await asyncio.sleep(300)
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", server, DEAF], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert len(group_members(group)) == 4
    parent.kill()
    parent.wait(30)
    deadline = time.monotonic() + 30
    while group_members(group):
        assert time.monotonic() < deadline, "engine processes outlived the server"
        time.sleep(0.01)
