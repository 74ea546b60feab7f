"""The engine's processes: started in a group of their own, heard, and gone when the server is."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from typing import TYPE_CHECKING, Final

from headway_rollout.logs import event

if TYPE_CHECKING:
    from headway_rollout.server.launch import Launch

log = logging.getLogger(__name__)

KEPT_LINES: Final = 400
STOP_SECONDS: Final = 15.0
"""How long vLLM may take to end after SIGTERM before its group is killed."""


class EngineProcess:
    """vLLM under its guard.

    Invariant: once `stop` has returned, or this process has died, no process of the engine's group is left.
    The first is upheld by `_kill_group`, the second by `guard`.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, launch: Launch) -> EngineProcess:
        """Start vLLM; returns at once, long before it answers."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headway_rollout.server.guard", *launch.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=launch.env,
            process_group=0,
            limit=1 << 20,
        )  # fmt: skip
        event(log, "engine starting", pid=process.pid, argv=list(launch.argv))
        return cls(process)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line)
            event(log, "engine", logging.ERROR if " ERROR " in line else logging.INFO, line=line)

    @property
    def lines(self) -> list[str]:
        """The engine's last lines of output, oldest first."""
        return list(self._lines)

    @property
    def running(self) -> bool:
        """The engine's front process has not ended."""
        return self._process.returncode is None

    async def ended(self) -> int:
        """Wait for the engine's end: its exit code, or 128 + the signal that killed it."""
        code = await self._process.wait()
        self._kill_group()
        # Whoever still holds the pipe has just been killed; what they wrote is wanted whole.
        await asyncio.wait([self._listening], timeout=5)
        return code if code >= 0 else 128 - code

    async def stop(self) -> None:
        """End the engine: politely, then by force."""
        if self.running:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
            except TimeoutError:
                event(log, "engine did not end on SIGTERM", logging.WARNING, seconds=STOP_SECONDS)
        self._kill_group()
        await self._process.wait()
        await asyncio.wait([self._listening], timeout=5)

    def _kill_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # the group is empty, which is what is wanted
