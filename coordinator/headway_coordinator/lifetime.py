"""The life of a coordinator process: until its job is over, or until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from headway_api import logs
from headway_coordinator.process import Process

_log = logging.getLogger(__name__)


async def serve(process: Process, ended: Callable[[], None] = lambda: None) -> None:
    """Run until the job is over, or until SIGTERM: the durable state is enough for a successor.

    A SIGTERM after the job's last status changes nothing about how the job ended.

    `ended` is called at the end in any case. Afterwards the process waits for calls that run in threads.
    """
    task = asyncio.ensure_future(process.run())
    loop = asyncio.get_running_loop()

    def stop() -> None:
        process.stop()
        if not process.over:
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
