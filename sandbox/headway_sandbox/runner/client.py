"""The server's side of the runner: one connection, made before any of the model's code runs.

For each request, the server makes a socket pair and sends one end over the control socket. Messages are JSON
(SOCK_SEQPACKET separates them). The reply to a command carries the command's three pipes, which the runner's
user created. The exit status follows in a later message.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time

from headway_sandbox import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MESSAGE = 64 * 1024
"""Maximum bytes of a message: a request, an answer, or a piece of a file."""
CONNECT_SECONDS = 50.0
"""Seconds that the server waits for its runner. The broker waits longer for the server."""
ANSWER_SECONDS = 30.0
"""Seconds that the runner may take for any request except running a command."""
CHILD_SECONDS = 3.0
"""Seconds that a runner that is the server's child may take to sweep. A command may have stopped it."""
LEFT_OVER = 16
"""Maximum pieces of unread output that are read after a command has ended; a pipe holds one."""
ENV_EPISODE_FILE = "HEADWAY_EPISODE_FILE"
EPISODE_FILE = "/run/headway/episode.json"
"""Equal to `headway_api.names.EPISODE_FILE`."""


class RunnerLostError(Exception):
    """The runner's container has ended, or does not answer."""


class CommandStartError(OSError):
    """A command cannot be started: errno, and the system's message."""


class Runner:
    """The runner at the other end of `control`."""

    walled = True
    """Whether the runner is in a container of its own, as another user."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.folder = os.path.dirname(os.environ.get(ENV_EPISODE_FILE, EPISODE_FILE))

    def start(
        self,
        command: list[str],
        variables: Mapping[str, str],
        folder: str | None = None,
        limits: Mapping[str, int | None] | None = None,
        *,
        merged: bool = False,
    ) -> Running:
        """Start a program. `merged`: stdout and stderr are one pipe.

        Raises:
            CommandStartError: there is no such program or folder, or the command is too long for a message.
            RunnerLostError: the runner is gone.
        """
        request = {
            "do": "run",
            "command": command,
            "variables": dict(variables),
            "folder": folder,
            "limits": dict(limits or {}),
            "merged": merged,
        }
        channel = self._ask(request)
        try:
            answer, pipes = receive_with_files(channel)
            if "errno" in answer:
                raise CommandStartError(answer["errno"], answer["says"])
        except BaseException:
            channel.close()
            raise
        return Running(channel, pipes)

    def put(self, path: str, content: bytes) -> None:
        """Write a file."""
        with self._ask({"do": "put", "path": path, "size": len(content)}) as channel:
            with contextlib.suppress(OSError):  # the runner's reply below says why it stopped
                for start in range(0, len(content), MESSAGE):
                    channel.sendall(content[start : start + MESSAGE])
            _raise_from(receive(channel))

    def get(self, path: str, max_bytes: int) -> bytes | None:
        """Read a file; None if there is none."""
        with self._ask({"do": "get", "path": path, "max_bytes": max_bytes}) as channel:
            answer = receive(channel)
            if answer.get("missing"):
                return None
            _raise_from(answer)
            content = bytearray()
            while len(content) < answer["size"]:
                if not (piece := received(channel)):
                    raise RunnerLostError("the runner ended inside an answer")
                content += piece
            return bytes(content)

    def sweep(self) -> None:
        """End everything that was run.

        Raises:
            RunnerLostError: the runner is gone, or a process could not be ended.
        """
        self._sweep(ANSWER_SECONDS)

    def _sweep(self, seconds: float) -> None:
        with self._ask({"do": "sweep"}) as channel:
            channel.settimeout(seconds)
            if left := receive(channel)["left"]:
                raise RunnerLostError(f"{left} processes in the container `runner` could not be ended")

    def _ask(self, request: Mapping[str, Any]) -> socket.socket:
        message = json.dumps(request).encode()
        if len(message) > MESSAGE:
            text = f"command and variables above {MESSAGE} bytes; write long data to a file or to stdin"
            raise CommandStartError(7, text)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.settimeout(ANSWER_SECONDS)
        try:
            with theirs:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            mine.sendall(message)
        except OSError as error:
            mine.close()
            raise gone() from error
        return mine


class ChildRunner(Runner):
    """A runner that is the server's child and has its user, for trying an environment without a pod."""

    walled = False

    def __init__(self) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = os.path.dirname(os.path.dirname(process.__file__))
        program = (
            f"import sys; sys.path.insert(0, {root!r}); import socket; "
            "from headway_sandbox.runner.__main__ import serve; serve(socket.socket(fileno=0))"
        )
        process.adopt_orphans()  # adopt the commands of the runner if one of them kills it
        with theirs:
            actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
            command = [sys.executable, "-I", "-S", "-c", program]
            self._pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
        super().__init__(mine)

    def sweep(self) -> None:
        """End everything through the runner, or without it if a command has killed or stopped it."""
        try:
            self._sweep(CHILD_SECONDS)
        except RunnerLostError:
            process.kill(self._pid)
            if left := process.sweep(everything=False):
                raise RunnerLostError(f"{left} processes could not be ended") from None

    def close(self) -> None:
        """End the runner, and everything that it runs."""
        self.sweep()
        self._control.close()
        os.waitpid(self._pid, 0)


class Running:
    """A running command."""

    def __init__(self, channel: socket.socket, pipes: list[int]) -> None:
        self._channel = channel
        self.stdin, self.stdout, self.stderr = pipes

    def wait(self) -> int:
        """Wait for the end; returns the exit status.

        Raises:
            RunnerLostError: the exit status will never be known.
        """
        self._channel.settimeout(None)
        return int(receive(self._channel)["code"])

    def end(self) -> None:
        """Kill the command."""
        with contextlib.suppress(OSError):
            self._channel.send(b"{}")

    def close(self) -> None:
        """Close the command's channel and pipes. A command that still runs is killed."""
        self._channel.close()
        for pipe in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.close(pipe)
        self.stdin = self.stdout = self.stderr = -1

    def communicate(
        self, data: bytes, seconds: float, max_bytes: int
    ) -> tuple[int, bytes, bytes, bool, bool]:
        """Write stdin, read output and wait for the end: (code, stdout, stderr, timed out, truncated).

        Raises:
            RunnerLostError: the exit status will never be known.
        """
        try:
            return self._communicate(memoryview(data), seconds, max_bytes)
        finally:
            self.close()

    def _communicate(
        self, data: memoryview, seconds: float, max_bytes: int
    ) -> tuple[int, bytes, bytes, bool, bool]:
        captured = {self.stdout: CapturedOutput(max_bytes), self.stderr: CapturedOutput(max_bytes)}
        poller = select.poll()
        for pipe in (*captured, self.stdin):
            os.set_blocking(pipe, False)
            poller.register(pipe, select.POLLOUT if pipe == self.stdin else select.POLLIN)
        poller.register(self._channel, select.POLLIN)
        deadline, timed_out, code = time.monotonic() + seconds, False, None
        while code is None:
            if (left := deadline - time.monotonic()) <= 0:
                if timed_out:
                    raise RunnerLostError("the runner does not end a command")
                deadline, timed_out = time.monotonic() + ANSWER_SECONDS, True
                self.end()
                continue
            for ready, _ in poller.poll(min(left, ANSWER_SECONDS) * 1000):
                if ready == self._channel.fileno():
                    code = int(receive(self._channel)["code"])
                elif ready == self.stdin:
                    data = write_some(ready, data)
                    if not data:
                        poller.unregister(ready)
                        os.close(ready)
                        self.stdin = -1
                elif not captured[ready].take(ready):
                    poller.unregister(ready)
        for pipe, output in captured.items():
            for _ in range(LEFT_OVER):
                if not output.take(pipe):
                    break
        out, error = (bytes(output.kept) for output in captured.values())
        return code, out, error, timed_out, any(output.truncated for output in captured.values())


class CapturedOutput:
    """The output of a command to one of its pipes, of which at most `max_bytes` are kept."""

    __slots__ = ("kept", "max_bytes", "truncated")

    def __init__(self, max_bytes: int) -> None:
        self.kept, self.max_bytes, self.truncated = bytearray(), max_bytes, False

    def take(self, pipe: int) -> bool:
        """Read a piece; returns whether there may be more."""
        try:
            piece = os.read(pipe, MESSAGE)
        except BlockingIOError:
            return False
        room = self.max_bytes - len(self.kept)
        self.kept += piece[:room]
        self.truncated = self.truncated or len(piece) > room
        return bool(piece)


def write_some(pipe: int, data: memoryview) -> memoryview:
    """The rest of `data` after the pipe has taken what it can; empty if nobody reads the pipe."""
    if not data:
        return data
    try:
        return data[os.write(pipe, data[:MESSAGE]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[:0]


def listen(path: str) -> socket.socket:
    """The socket on which the server waits for the runner. The runner may only read the socket's folder."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{path}.new")
    os.chmod(f"{path}.new", 0o666)  # the runner is another user; nothing else runs until it has connected
    listener.listen(1)
    os.rename(f"{path}.new", path)  # a process that finds it may connect
    return listener


def accept(listener: socket.socket, path: str, seconds: float = CONNECT_SECONDS) -> Runner:
    """Accept the runner's connection. No other process can connect later.

    Raises:
        RunnerLostError: no runner connected within `seconds`, or it runs as the server's own user.
    """
    listener.settimeout(seconds)
    with listener:
        try:
            control, _ = listener.accept()
        except TimeoutError:
            raise RunnerLostError(f"the container `runner` has not connected within {seconds:g} s") from None
        finally:
            os.unlink(path)
    control.settimeout(None)
    if peer_of(control) == os.getuid():
        raise RunnerLostError("the container `runner` runs as the server's own user; give it another")
    return Runner(control)


def peer_of(control: socket.socket) -> int:
    """The user at the other end (`struct ucred`: pid, uid, gid)."""
    found = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(found[4:8], "little" if sys.byteorder == "little" else "big")


def receive(channel: socket.socket) -> dict[str, Any]:
    """Receive one message; raises RunnerLostError."""
    return parsed(received(channel))


def receive_with_files(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message, and the descriptors that came with it; raises RunnerLostError."""
    try:
        message, files, _, _ = socket.recv_fds(channel, MESSAGE, 3)
    except OSError as error:
        raise gone() from error
    return parsed(message), files


def received(channel: socket.socket) -> bytes:
    """Receive one raw message; empty if the runner has closed the channel. Raises RunnerLostError."""
    try:
        return channel.recv(MESSAGE)
    except OSError as error:
        raise gone() from error


def parsed(message: bytes) -> dict[str, Any]:
    """A message's JSON; raises RunnerLostError for an empty message."""
    if not message:
        raise gone()
    found: dict[str, Any] = json.loads(message)
    return found


def gone() -> RunnerLostError:
    """The error for a runner that does not answer."""
    remedy = "if it was out of memory, raise spec.environment.sandbox.resources or bound the commands"
    return RunnerLostError(f"the container `runner` has ended; {remedy}")


def _raise_from(answer: Mapping[str, Any]) -> None:
    if "errno" in answer:
        raise OSError(answer["errno"], answer["says"])
