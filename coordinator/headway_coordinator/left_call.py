"""A blocking call that may be left: it runs in a daemon thread, which keeps no process from its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def within(seconds: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of the call. Raises what it raises.

    Raises:
        TimeoutError: the call took longer than `seconds`. Its thread goes on, and its result is dropped.
    """
    result = Future[T]()
    result.set_running_or_notify_cancel()  # so that nobody cancels it, and the thread may always set it

    def work() -> None:
        try:
            result.set_result(call(*args, **kwargs))
        except BaseException as error:  # the caller gets it
            result.set_exception(error)

    threading.Thread(target=work, name="left-call", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await asyncio.wrap_future(result)
