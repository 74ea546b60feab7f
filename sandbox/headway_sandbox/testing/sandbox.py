"""A sandbox without a cluster: the pod's server as a process of this machine, fresh for each episode.

It is the real server (`headway_sandbox.server`) over loopback, which imports the environment again. A pod's
isolation of network, files and memory is missing. Like the server, it runs on Linux only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pydantic import ValidationError

from headway_analysis.preflight.playing import NoReplyError, Reply, Request
from headway_api import bounds, names
from headway_api.record import Record, explained
from headway_api.sandbox_api import FinishReply, FinishRequest, Problem, ResetReply, ResetRequest, ToolReply
from headway_sandbox import process
from headway_sandbox.http import listen

HOME: Final = Path(__file__).resolve().parents[2]
"""The folder that has the package `headway_sandbox`."""
GRACE_SECONDS: Final = 5.0
"""Seconds beyond the episode's time, in which a server reports an environment that hangs."""
TAIL: Final = 64 * 1024
"""Maximum bytes from the end of a sandbox's output that are read back."""
Asked = TypeVar("Asked", bound=Record)


@dataclass(frozen=True)
class Sandboxes:
    """The settings with which sandboxes start."""

    entrypoint: str
    """`module:Class`, like `spec.environment.entrypoint`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Like `spec.environment.config`."""
    folders: Sequence[str | Path] = ()
    """Folders that are searched for modules before this interpreter's installed packages."""
    timeout: float = 60.0
    """Seconds that an episode may take, like `spec.rollout.timeoutSeconds`."""
    runs_code: bool = False
    """Like `spec.environment.sandbox.runsCode`, but the runner is a child of the server, not isolated."""
    packages: bool = True
    """Whether installed packages can be imported. An environment that needs only the standard library starts
    sooner without them."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> Sandbox:
        """Start a sandbox for one episode; use it in a `with` statement."""
        return Sandbox(self)


class Sandbox:
    """One process, and the one connection to it."""

    def __init__(self, of: Sandboxes) -> None:
        self._of = of
        self._ends = time.monotonic() + of.timeout
        self._token = secrets.token_hex(16)
        self._folder = tempfile.TemporaryDirectory(prefix="headway-sandbox-", ignore_cleanup_errors=True)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the sandbox
        with listen(0, "127.0.0.1") as listener:
            self._port: int = listener.getsockname()[1]
            self._process = subprocess.Popen(
                [sys.executable, *([] if of.packages else ["-S"]), "-m", "headway_sandbox.server"],
                env=self._variables(listener.fileno()),
                cwd=self._folder.name,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and everything that it started, and remove its folder."""
        self._connection.close()
        pid = self._process.pid
        started = process.living(pid) if has_children(pid) else []
        process.kill(pid, group=True)
        for each in started:
            process.kill(each)
        self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def lease(self) -> None:
        """Bind the sandbox to its one episode. From then on, the server reports a method that hangs.

        Raises:
            NoReplyError: the server does not answer.
        """
        left = self._left()
        times = {"deadline": time.time() + left + GRACE_SECONDS, "seconds": left}
        self._ask("lease", "the import", {"lease": "test", "token": self._token, **times})

    def ask(self, request: Request) -> Reply:
        """Send a request of an episode; returns its reply.

        Raises:
            NoReplyError: there is no reply. The error has the environment's own message, if there is one.
        """
        if isinstance(request, ResetRequest):
            self.lease()
            return self._understood("reset", "reset", request, ResetReply)
        if isinstance(request, FinishRequest):
            return self._understood("finish", "reward or score", request, FinishReply)
        tool = f"tool {bounds.shortened(request.name, bounds.NAME)}"
        return self._understood("tool", tool, request, ToolReply)

    def _understood(self, path: str, what: str, request: Request, kind: type[Asked]) -> Asked:
        try:
            return kind.model_validate(self._ask(path, what, request.model_dump(mode="json")))
        except ValidationError as error:
            raise NoReplyError(f"{what} gave an invalid answer: {explained(error)}") from None

    def _ask(self, path: str, what: str, body: Mapping[str, Any]) -> Any:
        self._connection.timeout = self._left() + GRACE_SECONDS
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self._connection.timeout)
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            self._connection.request("POST", f"/{path}", json.dumps(body).encode(), headers)
            answer = self._connection.getresponse()
            text = answer.read(bounds.ANSWER + 1)
        except TimeoutError:
            raise NoReplyError(self._silent(path, what)) from None
        except (OSError, http.client.HTTPException):
            raise NoReplyError(self._ended(what)) from None
        try:
            document = (
                bounds.json_within(text, bounds.ANSWER, depth=bounds.CONVERSATION_DEPTH) if text else None
            )
            if answer.status < 300:
                return document
            problem = Problem.model_validate(document)
            raise NoReplyError(problem.message, problem.reason)
        except ValueError as error:
            raise NoReplyError(f"{what} gave an invalid answer: {error}") from None

    def _left(self) -> float:
        return max(self._ends - time.monotonic(), 0.0)

    def _silent(self, path: str, what: str) -> str:
        if path == "lease":
            return f"{self._of.entrypoint} was not imported within {self._of.timeout:g} s"
        return f"{what} did not answer within {self._of.timeout:g} s"

    def _ended(self, what: str) -> str:
        """The message about a process that has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        last = (self.output().strip().splitlines() or [""])[-1]
        message = bounds.shortened(last.partition("EnvironmentLoadError: ")[2] or last, 2_000)
        if self._process.returncode == 42:
            return message
        return f"the sandbox's process ended in {what}, exit status {self._process.returncode}: {message}"

    def output(self) -> str:
        """The end of what the environment and its server wrote to stdout and stderr."""
        self._log.seek(max(os.fstat(self._log.fileno()).st_size - TAIL, 0))
        return self._log.read(TAIL).decode(errors="replace")

    def _variables(self, descriptor: int) -> dict[str, str]:
        path = os.pathsep.join(str(Path(each).resolve()) for each in [*self._of.folders, HOME])
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": self._folder.name,
            "TMPDIR": self._folder.name,
            "PYTHONPATH": path,
            names.ENV_ENTRYPOINT: self._of.entrypoint,
            names.ENV_ENVIRONMENT_CONFIG: json.dumps(dict(self._of.config)),
            names.ENV_SANDBOX_SOCKET: str(descriptor),
            names.ENV_EPISODE_FILE: f"{self._folder.name}/episode.json",
        }
        if self._of.runs_code:
            found[names.ENV_RUNNER] = "child"
        return found | dict(self._of.variables)


def has_children(pid: int) -> bool:
    """Whether a process has living children; cheaper than reading all of /proc."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                if file.read().strip():
                    return True
    except FileNotFoundError:  # the process has just ended, or the kernel has no such file
        return not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    except OSError:
        return True
    return False
