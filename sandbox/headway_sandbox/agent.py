"""The agent as a program beside the server, in its pod (`spec.agent.sandboxed`).

The program runs as the server's own user and is trusted as little as the model that speaks in it. Before it
starts, the server makes itself unreadable: a process of the same user could otherwise read the lease's token
and the environment's state out of /proc.

Imported when a coordinator asks for an agent and not before: other episodes would pay for these imports too.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys

from headway_sandbox import warden
from headway_sandbox.http import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

COMMAND_FIELD = "spec.agent.sandboxed.command"
EPISODE_FILE = "/run/headway/episode.json"
"""Equal to `headway_api.names.EPISODE_FILE`."""
ENV_EPISODE_FILE = "HEADWAY_EPISODE_FILE"
OWN_VARIABLES = "HEADWAY_"
"""Begins the names of the variables that are the server's and not the agent's."""
TAIL = 4096
"""Bytes of the program's output that are kept to be shown; all of it goes to the pod's log."""
END_SECONDS = 2.0
"""How long the warden may take to end the program before both are killed by their group."""
PASSING = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY}
"""Why a program may fail to start this time and not the next."""


class Agent:
    """One program, from its start to its end."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Start it; raises Refusal `AgentNotStarted`."""
        self._tail = b""
        self._exit_code: int | None = None
        self._ended, self._drained = _thread.allocate_lock(), _thread.allocate_lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", warden.__file__, *command],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._ended.acquire()
        self._drained.acquire()
        _thread.start_new_thread(self._read, ())
        _thread.start_new_thread(self._reap, ())
        said = self._control.recv(1024)
        if said != warden.STARTED:
            raise not_started(command[0], said)

    def state(self) -> dict[str, Any]:
        """`headway_api.sandbox_api.AgentState`."""
        code = self._exit_code
        return {"running": code is None, "exit_code": code, "output": self._tail.decode(errors="replace")}

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        if not self._ended.acquire(timeout=seconds):
            return False
        self._ended.release()
        return True

    def end(self) -> None:
        """Kill it and all that it started, if it still runs."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if not self.wait(END_SECONDS):  # the program has stopped its warden
            self._kill_group()
            self.wait(END_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while piece := os.read(output.fileno(), 65536):
                self._tail = (self._tail + piece)[-TAIL:]
                sys.stderr.buffer.write(piece)
                sys.stderr.buffer.flush()
        self._drained.release()

    def _reap(self) -> None:
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._kill_group()  # what is left where the warden was killed; the group's number is still taken
        code = self._process.wait()
        self._drained.acquire(timeout=END_SECONDS)
        self._exit_code = warden.exit_status(code)
        self._ended.release()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def start(command: list[str], episode: Mapping[str, Any], variables: Mapping[str, str]) -> Agent:
    """Write the episode to its file and start the program; raises Refusal `AgentNotStarted`."""
    path = os.environ.get(ENV_EPISODE_FILE, EPISODE_FILE)
    try:
        with open(path, "w") as file:
            json.dump(episode, file)
        warden.prctl(warden.PR_SET_DUMPABLE, 0)
        return Agent(command, environment_of(os.environ, path, variables))
    except (OSError, ValueError) as error:  # the latter for what no argument or variable may hold
        raise Refusal(500, "AgentNotStarted", f"the agent's program was not started: {error}") from error


def environment_of(server: Mapping[str, str], path: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The container's variables but for the server's own, where the program may write, and those given."""
    inherited = {name: value for name, value in server.items() if not name.startswith(OWN_VARIABLES)}
    folder = os.path.dirname(path)
    return {**inherited, "HOME": folder, "TMPDIR": folder, **variables, ENV_EPISODE_FILE: path}


def not_started(program: str, said: bytes) -> Refusal:
    """What the warden said, for whoever wrote the command."""
    code, _, words = said.decode(errors="replace").partition(" ")
    if not code:
        return Refusal(500, "AgentNotStarted", f"{program} was not started: its parent process ended")
    permanent = int(code) not in PASSING
    return Refusal(
        500,
        "AgentNotStarted",
        f"{program} cannot be started in the environment's image: {words}",
        field=COMMAND_FIELD if permanent else None,
        permanent=permanent,
    )
