"""The process in the container `runner` of a sandbox pod: `python3 -m headway_sandbox.runner`.

It connects to the server's socket once, and carries out the requests that arrive there. It is the first
process of its PID namespace, so no process inside can kill it, and its own user cannot read it. So a command
cannot forge the result of another, and does not survive `sweep`. All processes here end with the server.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

from headway_sandbox import process
from headway_sandbox.runner import ENV_RUNNER
from headway_sandbox.runner.client import ENV_EPISODE_FILE, EPISODE_FILE, MESSAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

OWN_VARIABLES = "HEADWAY_"
"""Prefix of Headway's own variables, which commands do not get."""
CONNECT_SECONDS = 60.0
CONNECT_PAUSE_SECONDS = 0.02
AT_ONCE = 64
"""Maximum requests that are carried out at once. A further one waits."""
LIMITS = {
    "memory_bytes": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "file_bytes": resource.RLIMIT_FSIZE,
}


class Daemon:
    """The runner's process."""

    def __init__(self) -> None:
        self._folder = os.path.dirname(os.environ.get(ENV_EPISODE_FILE, EPISODE_FILE))
        self._lock = threading.Lock()
        self._commands: dict[int, socket.socket] = {}
        """pid of a command -> the channel to which its exit status is sent."""
        self._started = threading.Event()
        self._busy = threading.Semaphore(AT_ONCE)

    def serve(self, control: socket.socket) -> None:
        """Carry out requests until the server is gone."""
        _thread.start_new_thread(self._reap, ())
        while True:
            try:
                message, files, _, _ = socket.recv_fds(control, 1, 1)
            except OSError:
                message, files = b"", []
            if not message:
                process.sweep(everything=os.getpid() == 1)
                os._exit(0)
            for file in files:
                self._busy.acquire()
                _thread.start_new_thread(self._answer, (socket.socket(fileno=file),))

    def _answer(self, channel: socket.socket) -> None:
        try:
            with channel, contextlib.suppress(OSError):  # the server no longer waits
                request = json.loads(channel.recv(MESSAGE))
                {"run": self._run, "put": self._put, "get": self._get, "sweep": self._sweep}[request["do"]](
                    channel, request
                )
        finally:
            self._busy.release()

    def _run(self, channel: socket.socket, request: Mapping[str, Any]) -> None:
        """Start a command, and kill it if the server asks for that or closes the channel."""
        pipes = [os.pipe() for _ in range(3)]
        theirs, ours = [pipes[0][0], pipes[1][1], pipes[2][1]], [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            try:
                pid = self._spawn(channel, request, theirs, ours)
            finally:
                close(theirs)
        except (OSError, ValueError) as error:  # ValueError: an illegal character in the command
            answer(channel, error_reply(error))
            return
        finally:
            close(ours)
        try:
            while channel.recv(MESSAGE):
                self._kill(pid)
        finally:
            self._kill(pid)

    def _spawn(
        self, channel: socket.socket, request: Mapping[str, Any], pipes: list[int], ours: list[int]
    ) -> int:
        # The lock keeps the reaper from looking for the command before it is known, and from reporting its
        # end before its start.
        with self._lock:
            try:
                started = subprocess.Popen(
                    request["command"],
                    stdin=pipes[0],
                    stdout=pipes[1],
                    stderr=pipes[1] if request["merged"] else pipes[2],
                    env=self._variables(request["variables"]),
                    cwd=request["folder"],
                    start_new_session=True,
                    preexec_fn=bound(request["limits"]),
                )
            except subprocess.SubprocessError as error:
                raise OSError(errno.ENOMEM, "the limits leave no room to start it") from error
            started.returncode = 0  # the reaper waits for it, not Popen
            self._started.set()
            try:
                socket.send_fds(channel, [json.dumps({"started": started.pid}).encode()], ours)
            except (OSError, ValueError):
                process.kill(started.pid, group=True)
                raise
            self._commands[started.pid] = channel
        return started.pid

    def _variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """A command's variables: the container's without Headway's own, its writable folder, and `given`."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
        path = os.environ.get(ENV_EPISODE_FILE, EPISODE_FILE)
        return {**inherited, "HOME": self._folder, "TMPDIR": self._folder, **given, ENV_EPISODE_FILE: path}

    def _kill(self, pid: int) -> None:
        """Kill a command, its group and its current descendants."""
        with self._lock:
            if pid in self._commands:
                descendants = process.living(pid)
                process.kill(pid, group=True)
                for each in descendants:
                    process.kill(each)

    def _reap(self) -> None:
        """Reap commands and their orphans until the process ends."""
        while True:
            self._started.wait()
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                with self._lock:
                    if not self._commands:
                        self._started.clear()
                continue
            if found is not None:
                with self._lock, contextlib.suppress(ChildProcessError):
                    self._ended(found.si_pid)

    def _ended(self, pid: int) -> None:
        """Handle the end of a process. For a command, end the rest of its group and report its status."""
        channel = self._commands.pop(pid, None)
        if channel is not None:
            process.kill(pid, group=True)  # before its pid can be reused
        code = process.exit_status(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if channel is not None:
            answer(channel, {"code": code})

    def _put(self, channel: socket.socket, request: Mapping[str, Any]) -> None:
        """Write a temporary file and rename it, so that no link is followed and no reader sees a part."""
        path = os.path.join(self._folder, request["path"])
        beside = f"{path}.{os.urandom(8).hex()}"
        try:
            with open(beside, "xb") as file:
                while file.tell() < request["size"]:
                    if not (piece := channel.recv(MESSAGE)):
                        raise ConnectionResetError(errno.ECONNRESET, "the server is gone")
                    file.write(piece)
            os.replace(beside, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            answer(channel, error_reply(error))
        else:
            answer(channel, {})

    def _get(self, channel: socket.socket, request: Mapping[str, Any]) -> None:
        path = os.path.join(self._folder, request["path"])
        try:
            content = regular(path, request["max_bytes"])
        except FileNotFoundError:
            answer(channel, {"missing": True})
        except OSError as error:
            answer(channel, error_reply(error))
        else:
            answer(channel, {"size": len(content)})
            for start in range(0, len(content), MESSAGE):
                channel.sendall(content[start : start + MESSAGE])

    def _sweep(self, channel: socket.socket, _: Mapping[str, Any]) -> None:
        answer(channel, {"left": process.sweep(everything=os.getpid() == 1)})


def bound(limits: Mapping[str, int | None]) -> Callable[[], None] | None:
    """A function that limits the calling process; None if there are no limits. A lower hard limit stays.

    The function runs between fork and exec, so that the limits hold for everything that the command does.
    Other threads may hold locks at that time, so the function only makes system calls.
    """
    wanted = []
    for name, max_bytes in limits.items():
        if max_bytes is not None:
            _, hard = resource.getrlimit(LIMITS[name])
            lower = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
            wanted.append((LIMITS[name], (lower, lower)))
    if not wanted:
        return None
    setrlimit = resource.setrlimit

    def limit() -> None:
        for which, both in wanted:
            setrlimit(which, both)

    return limit


def regular(path: str, max_bytes: int) -> bytes:
    """The content of a regular file. It does not block on a FIFO or the like that a command put there.

    Raises:
        OSError: it is not a regular file, has more than `max_bytes` bytes, or cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", path)
    return content


def close(files: list[int]) -> None:
    """Close descriptors."""
    for file in files:
        os.close(file)


def answer(channel: socket.socket, document: Mapping[str, Any]) -> None:
    """Send a message, and ignore a server that has given up the request."""
    with contextlib.suppress(OSError):
        channel.send(json.dumps(document).encode())


def error_reply(error: OSError | ValueError) -> dict[str, Any]:
    """An error in the form that the server receives."""
    if isinstance(error, OSError):
        return {"errno": error.errno or errno.EIO, "says": error.strerror or str(error)}
    return {"errno": errno.EINVAL, "says": str(error)}


def connect(path: str) -> socket.socket | None:
    """Connect to the server once it listens; None if it has ended, or does not listen in time."""
    deadline = time.monotonic() + CONNECT_SECONDS
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        try:
            control.connect(path)
            return control
        except ConnectionRefusedError:
            return None
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return None
            time.sleep(CONNECT_PAUSE_SECONDS)


def serve(control: socket.socket) -> None:
    """Carry out the requests from `control` until the server is gone."""
    process.hide()
    process.adopt_orphans()
    # Python's own handler would let a command interrupt this process. The default does nothing to PID 1.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Daemon().serve(control)


def main() -> None:
    """Entry point."""
    process.hide()
    if (control := connect(os.environ[ENV_RUNNER])) is None:
        sys.exit("the server of this sandbox is not running")
    serve(control)


if __name__ == "__main__":
    main()
