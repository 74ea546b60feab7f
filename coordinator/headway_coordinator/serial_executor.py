"""Runs blocking calls outside the event loop, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SerialExecutor:
    """Runs calls in one thread, in the order in which they were made, each to its end.

    Cancelling a caller does not end its call: the thread goes on, and later calls wait for it. If its
    call has not begun, the call is never made.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._since: float | None = None

    @property
    def busy(self) -> float:
        """Seconds that the current call has taken; 0 if none runs."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `call` returns or raises. The call must end by itself, as calls to the artifact store do."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._timed, partial(call, *args, **kwargs)
        )

    def _timed(self, call: Callable[[], T]) -> T:
        self._since = time.monotonic()
        try:
            return call()
        finally:
            self._since = None
