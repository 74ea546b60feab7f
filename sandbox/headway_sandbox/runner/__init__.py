"""Runs code on the model's behalf, out of reach of the server that judges it.

    from headway_sandbox import runner

    @tool
    def python(self, code: str) -> str:
        '''Run a Python program.'''
        done = runner.run(["python3", "-"], stdin=code, timeout=20)
        return done.stdout + done.stderr

`spec.environment.sandbox.runsCode: true` adds a second container to the server's pod, from the same image.
It runs as another user, with its own PID namespace and files (docs/adr/0030). A command there cannot touch
the server's memory, variables, descriptors or files. Its output comes from the model: compare it with what
the environment knows itself.

`put` and `get` move files to and from the one folder that commands may write to. They go through the runner,
so a link that a command created never leads to a file of the server.
"""

from __future__ import annotations

from headway_sandbox.runner.client import (
    ChildRunner,
    CommandStartError,
    Runner,
    RunnerLostError,
    accept,
    listen,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "CommandStartError",
    "Completed",
    "Limits",
    "NoRunnerError",
    "RunnerLostError",
    "get",
    "put",
    "run",
    "work_folder",
]

ENV_RUNNER = "HEADWAY_RUNNER"
"""Equal to `headway_api.names.ENV_RUNNER`: the path of the server's socket for its runner, or CHILD."""
CHILD = "child"
"""Value for environments that are tried without a pod: the runner is a child of the server, not isolated."""
MIB = 1024 * 1024
OUTPUT_BYTES = MIB
FILE_BYTES = 64 * MIB

_runner: Runner | None = None
_make: Callable[[], Runner] | None = None


class NoRunnerError(Exception):
    """The pod has no container that runs code."""


class Limits:
    """Limits of one command, besides the container's own limits."""

    __slots__ = ("cpu_seconds", "file_bytes", "memory_bytes", "output_bytes")

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        cpu_seconds: int | None = None,
        file_bytes: int | None = None,
        output_bytes: int = OUTPUT_BYTES,
    ) -> None:
        """Raises ValueError for a limit that is not above 0."""
        given = (memory_bytes, cpu_seconds, file_bytes, output_bytes)
        if any(max_bytes is not None and max_bytes <= 0 for max_bytes in given):
            raise ValueError("a limit must be above 0; leave it out for no limit")
        self.memory_bytes = memory_bytes
        """Address space of each process of the command. None: only the container's memory limit applies."""
        self.cpu_seconds = cpu_seconds
        """CPU time of each process of the command. None: as long as `timeout` allows."""
        self.file_bytes = file_bytes
        """Size of each file that the command writes. None: only the volume's size limits it."""
        self.output_bytes = output_bytes
        """Bytes of stdout, and of stderr, that are kept. The rest is dropped."""


class Completed:
    """The result of a command."""

    __slots__ = ("code", "stderr", "stdout", "timed_out", "truncated")

    def __init__(self, code: int, stdout: bytes, stderr: bytes, timed_out: bool, truncated: bool) -> None:
        self.code = code
        """The command's exit status; 128 + n if signal n ended it."""
        self.stdout = stdout.decode(errors="replace")
        self.stderr = stderr.decode(errors="replace")
        self.timed_out = timed_out
        """Whether the command was killed at its timeout."""
        self.truncated = truncated
        """Whether the command wrote more than `limits.output_bytes`."""


def run(
    command: Sequence[str],
    *,
    stdin: str | bytes = b"",
    timeout: float = 60.0,
    limits: Limits | None = None,
    variables: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> Completed:
    """Run a program and wait at most `timeout` seconds for its end; its process group ends with it.

    A process that has left the group runs until the judgement, and is killed then.

    Args:
        variables: environment variables, which override those of the container `runner`.
        folder: the working folder; by default the folder that commands may write to.

    Raises:
        CommandStartError: the container has no such program, or no such folder.
        NoRunnerError: the pod has no container that runs code.
        RunnerLostError: that container has ended, for instance out of memory.
    """
    limits = limits or Limits()
    given = {
        "memory_bytes": limits.memory_bytes,
        "cpu_seconds": limits.cpu_seconds,
        "file_bytes": limits.file_bytes,
    }
    running = current().start(list(command), variables or {}, folder or work_folder(), given)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    return Completed(*running.communicate(data, timeout, limits.output_bytes))


def put(path: str, content: str | bytes) -> None:
    """Write a file in the runner's container, as the user of commands. Relative paths start at `work_folder`.

    Raises:
        OSError: the file cannot be written there.
        NoRunnerError, RunnerLostError: for the reasons that `run` names.
    """
    current().put(path, content.encode() if isinstance(content, str) else content)


def get(path: str, max_bytes: int = FILE_BYTES) -> bytes | None:
    """The content of a file in the runner's container; None if there is no such file.

    Raises:
        OSError: it is not a regular file, has more than `max_bytes` bytes, or cannot be read.
        NoRunnerError, RunnerLostError: for the reasons that `run` names.
    """
    return current().get(path, max_bytes)


def work_folder() -> str:
    """The folder that commands may write to: their HOME and TMPDIR."""
    return current().folder


def current() -> Runner:
    """The pod's runner.

    Raises:
        NoRunnerError: the pod has none.
    """
    global _runner
    if _runner is None:
        if _make is None:
            text = "this sandbox has no container that runs code"
            raise NoRunnerError(f"{text}; set spec.environment.sandbox.runsCode: true")
        _runner = _make()
    return _runner


def awaited(where: str) -> Callable[[], None]:
    """Listen on the socket `where`; returns a function that waits for the runner to connect there.

    With `CHILD`, the function returns at once, and the first use starts a runner.

    Raises:
        RunnerLostError: (the returned function) no runner has connected.
    """
    global _make
    if where == CHILD:
        _make = ChildRunner
        return lambda: None
    listener = listen(where)

    def arrived() -> None:
        global _runner
        _runner = accept(listener, where)

    return arrived


def close() -> None:
    """End a runner that is this process's child."""
    global _runner, _make
    if isinstance(_runner, ChildRunner):
        _runner.close()
    _runner = _make = None


def sweep() -> None:
    """End all processes that were started here, before the judgement.

    Raises:
        RunnerLostError: the runner is gone, or a process could not be ended.
    """
    if _runner is not None:
        _runner.sweep()
