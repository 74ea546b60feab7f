"""Blocking calls off the event loop, never two at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STORE_SECONDS = 300.0
"""Longest a write to the artifact store may take, its wait for the ones before it and the client's own
retries included."""


class OneAtATime:
    """Runs calls in one thread, in the order they were made.

    A caller that gives up does not end its call: the thread goes on, and what comes after waits for it.
    """

    def __init__(self, seconds: float = STORE_SECONDS) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._seconds = seconds

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `call` returns or raises.

        Raises:
            TimeoutError: not within the seconds allowed; a call that had not begun is never made.
        """
        async with asyncio.timeout(self._seconds):
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, partial(call, *args, **kwargs)
            )
