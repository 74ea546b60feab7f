"""The serial executor never runs two writes at once, even if a caller gives up on one."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from headway_coordinator.serial_executor import SerialExecutor


class Busy:
    """A call that notices if another one runs at the same time."""

    def __init__(self) -> None:
        self.running = 0
        self.overlapped = False
        self.made: list[int] = []
        self.go_on = threading.Event()

    def __call__(self, number: int, wait: bool = False) -> int:
        self.running += 1
        self.overlapped |= self.running > 1
        self.made.append(number)
        if wait:
            self.go_on.wait(10)
        time.sleep(0.001)
        self.running -= 1
        return number


async def test_calls_run_in_order_and_one_by_one() -> None:
    busy, run = Busy(), SerialExecutor()
    assert await asyncio.gather(*(run(busy, n) for n in range(20))) == list(range(20))
    assert busy.made == list(range(20))
    assert not busy.overlapped


async def test_a_call_its_caller_left_still_blocks_the_next_call() -> None:
    busy, run = Busy(), SerialExecutor()
    first = asyncio.create_task(run(busy, 1, wait=True))
    async with asyncio.timeout(20):
        while not busy.running:
            await asyncio.sleep(0.001)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(run(busy, 2))
    await asyncio.sleep(0.02)
    assert busy.made == [1]
    busy.go_on.set()
    assert await second == 2
    assert not busy.overlapped


async def test_a_call_that_never_began_is_not_made_later() -> None:
    busy, run = Busy(), SerialExecutor()
    waiting = [asyncio.create_task(run(busy, n, wait=True)) for n in (1, 2)]
    async with asyncio.timeout(20):
        while not busy.running:
            await asyncio.sleep(0.001)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    busy.go_on.set()
    assert await run(busy, 3) == 3
    assert busy.made == [1, 3]


async def test_the_executor_says_for_how_long_a_call_has_run() -> None:
    busy, run = Busy(), SerialExecutor()
    assert run.busy == 0
    running = asyncio.create_task(run(busy, 1, wait=True))
    async with asyncio.timeout(20):
        while run.busy < 0.05:
            await asyncio.sleep(0.001)
    busy.go_on.set()
    await running
    assert run.busy == 0


async def test_a_calls_error_is_raised_to_its_caller() -> None:
    def broken() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await SerialExecutor()(broken)
