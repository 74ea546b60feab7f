"""Runs the agent as a program in its pod (`spec.agent.sandboxed`), through the container `runner`.

The program is trusted as little as the model that drives it. It runs as another user, in its own PID
namespace, and may write to one folder, which is not the server's. The episode ends with the program, and the
program ends before the judgement.

This module is imported only when a coordinator asks for an agent, so other episodes do not pay for its
imports.
"""

from __future__ import annotations

import _thread
import errno
import json
import os
import sys

from headway_sandbox import runner
from headway_sandbox.http import HttpError
from headway_sandbox.process import exit_status
from headway_sandbox.runner.client import ENV_EPISODE_FILE, EPISODE_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

COMMAND_FIELD = "spec.agent.sandboxed.command"
TAIL = 4096
"""Bytes from the end of the program's output that are kept for messages. All of it goes to the pod's log."""
END_SECONDS = 2.0
"""Seconds to wait for the rest of the program's output after its end."""
KILLED = exit_status(-9)
PASSING = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY}
"""Numbers of errors at a program's start that a retry may fix."""


class Agent:
    """One program, from its start to its end."""

    def __init__(self, command: list[str], variables: Mapping[str, str]) -> None:
        """Start the program; raises CommandStartError, RunnerLostError."""
        self._tail = b""
        self._exit_code: int | None = None
        self._lost: runner.RunnerLostError | None = None
        self._ended, self._drained = _thread.allocate_lock(), _thread.allocate_lock()
        self._runner = runner.current()
        self._running = self._runner.start(command, variables, merged=True)
        os.close(self._running.stdin)
        self._running.stdin = -1
        self._ended.acquire()
        self._drained.acquire()
        _thread.start_new_thread(self._read, ())
        _thread.start_new_thread(self._wait, ())

    def state(self) -> dict[str, Any]:
        """The program's `headway_api.sandbox_api.AgentState`; raises HttpError `RunnerLost`."""
        if self._lost is not None:
            raise HttpError(500, "RunnerLost", str(self._lost))
        code = self._exit_code
        return {"running": code is None, "exit_code": code, "output": self._tail.decode(errors="replace")}

    def wait(self, seconds: float) -> bool:
        """Wait for the program's end; returns whether it has ended."""
        if not self._ended.acquire(timeout=seconds):
            return False
        self._ended.release()
        return True

    def _read(self) -> None:
        while piece := os.read(self._running.stdout, 65536):
            self._tail = (self._tail + piece)[-TAIL:]
            sys.stderr.buffer.write(piece)
            sys.stderr.buffer.flush()
        self._drained.release()

    def _wait(self) -> None:
        try:
            code = self._running.wait()
            self._runner.sweep()
        except runner.RunnerLostError as error:
            # If the runner has no container of its own, the program itself may have killed it.
            code, self._lost = KILLED, error if self._runner.walled else None
        self._drained.acquire(timeout=END_SECONDS)
        self._exit_code = code
        self._ended.release()


def start(command: list[str], episode: Mapping[str, Any], variables: Mapping[str, str]) -> Agent:
    """Write the episode to its file and start the program.

    Raises:
        HttpError: `AgentNotStarted` or `RunnerLost`.
    """
    path = os.environ.get(ENV_EPISODE_FILE, EPISODE_FILE)
    try:
        runner.put(path, json.dumps(episode))
        return Agent(command, variables)
    except runner.RunnerLostError as error:
        raise HttpError(500, "RunnerLost", str(error)) from error
    except runner.CommandStartError as error:
        raise not_started(command[0], f"{error.errno} {error.strerror}".encode()) from error
    except (OSError, runner.NoRunnerError) as error:
        raise HttpError(500, "AgentNotStarted", f"the agent's program was not started: {error}") from error


def not_started(program: str, output: bytes) -> HttpError:
    """The error for a program that cannot be started. `output`: errno and message from the runner."""
    code, _, words = output.decode(errors="replace").partition(" ")
    if not code:
        return HttpError(500, "AgentNotStarted", f"{program} was not started: its parent process ended")
    permanent = int(code) not in PASSING
    return HttpError(
        500,
        "AgentNotStarted",
        f"{program} cannot be started in the environment's image: {words}",
        field=COMMAND_FIELD if permanent else None,
        permanent=permanent,
    )
