"""Runs a blocking call in a daemon thread, so that the process can exit while the call still runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def within(seconds: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of the call. An error of the call is raised again.

    Raises:
        TimeoutError: the call took longer than `seconds`. Its thread goes on, and its result is dropped.
    """
    result = Future[T]()
    result.set_running_or_notify_cancel()  # a running future cannot be cancelled, so the thread can set it

    def work() -> None:
        try:
            result.set_result(call(*args, **kwargs))
        except BaseException as error:  # the caller gets it
            result.set_exception(error)

    threading.Thread(target=work, name="left-call", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await asyncio.wrap_future(result)
