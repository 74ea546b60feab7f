"""Runs the engine in a process group of its own, reads its output, and ends it with the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from typing import TYPE_CHECKING, Final

from headway_api.logs import event
from headway_rollout import deaths

if TYPE_CHECKING:
    from headway_rollout.launch import Launch

log = logging.getLogger(__name__)

KEPT_LINES: Final = 400
"""Maximum last lines of the engine's output that are kept."""
DEATH_LINES: Final = 1000
"""Maximum further lines that are kept after the first line about a death, such as a dump of the threads."""
LONGEST_LINE: Final = 1 << 20
GONE_SECONDS: Final = 10.0
"""Seconds that vLLM's front process may outlive EngineCore. It notices the death within 5 s and ends, but
only after every answer is sent. If EngineCore was moving weights, the front process waits for its answer
forever."""
REMAINING_OUTPUT_SECONDS: Final = 5.0
"""Maximum seconds to read the remaining output of an engine that was killed."""
STOP_SECONDS: Final = 15.0
"""Seconds that vLLM may take to end after SIGTERM before its group is killed."""


class Transcript:
    """The engine's last lines of output, and the lines about the first death of one of its processes.

    The latter are kept separately: after a death, the front process writes hundreds of lines for each request
    in flight.
    """

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._death: list[str] = []
        self._wanted = 0

    def add(self, line: str) -> None:
        """Add a line of output."""
        if self._wanted == 0 and deaths.begins(line):
            self._death, self._wanted = list(self._last), DEATH_LINES
            self._last.clear()
        if self._wanted > 0:
            self._death.append(line)
            self._wanted -= 1
        else:
            self._last.append(line)

    @property
    def lines(self) -> list[str]:
        """The lines that are kept, oldest first."""
        return [*self._death, *self._last]


class EngineProcess:
    """vLLM under its guard.

    Invariant: once `stop` has returned, or this process has died, no process of the engine's group is left.
    `_kill_group` ensures this after `stop`. `guard` ensures it after the death of this process.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, output: asyncio.StreamReader, lifeline: int
    ) -> None:
        self._process = process
        self._output = output
        self._lifeline = lifeline
        self._transcript = Transcript()
        self._killed = False
        self._core_gone = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, launch: Launch) -> EngineProcess:
        """Start vLLM. It returns at once, long before vLLM answers."""
        # These pipes are not asyncio's: `wait` would then also wait for every process that inherited them.
        read_output, write_output = os.pipe()
        read_lifeline, write_lifeline = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headway_rollout.guard", *launch.argv),
            stdin=read_lifeline,
            stdout=write_output,
            stderr=asyncio.subprocess.STDOUT,
            env=launch.env,
            process_group=0,
        )
        os.close(read_lifeline)
        os.close(write_output)
        output = asyncio.StreamReader(limit=LONGEST_LINE)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_output, "rb")
        )
        event(log, "engine starting", pid=process.pid, argv=list(launch.argv))
        return cls(process, output, write_lifeline)

    async def _listen(self) -> None:
        async for raw in self._output:
            line = raw.decode(errors="replace").rstrip()
            self._transcript.add(line)
            if deaths.of_core(line):
                self._core_gone.set()
            event(log, "engine", logging.ERROR if " ERROR " in line else logging.INFO, line=line)

    @property
    def pid(self) -> int:
        """The guard's process id, which is also the id of the engine's process group."""
        return self._process.pid

    @property
    def lines(self) -> list[str]:
        """The engine's last lines of output and those about a death, oldest first."""
        return self._transcript.lines

    @property
    def running(self) -> bool:
        """Whether the engine's front process is still running."""
        return self._process.returncode is None

    async def ended(self) -> int:
        """Wait until the engine ends by itself. Return its exit code, or 128 + the signal that killed it.

        After a call of `kill` it never returns, because that exit code says nothing about the engine.
        """
        gone = asyncio.create_task(self._core_gone_too_long())
        exited = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({exited, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            exited.cancel()
            gone.cancel()
        if self._killed:
            await asyncio.Event().wait()
        await self._kill_group()
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def _core_gone_too_long(self) -> None:
        """Return once EngineCore has been gone for `GONE_SECONDS`."""
        await self._core_gone.wait()
        await asyncio.sleep(GONE_SECONDS)
        event(log, "the front process outlives EngineCore", logging.WARNING, seconds=GONE_SECONDS)

    async def stop(self) -> None:
        """End the engine: with SIGTERM, then by force."""
        if self.running:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
            except TimeoutError:
                event(log, "engine did not end on SIGTERM", logging.WARNING, seconds=STOP_SECONDS)
        await self._kill_group()

    async def kill(self) -> None:
        """End the engine at once: no request in flight gets an answer. `lines` is complete afterwards."""
        self._killed = True
        await self._kill_group()

    async def _kill_group(self) -> None:
        """Kill the remaining processes of the group, and read the rest of their output."""
        # The error means that the group has no process left.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.wait([self._listening], timeout=REMAINING_OUTPUT_SECONDS)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
