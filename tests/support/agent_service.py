"""An `http` agent as a process, which a test starts, kills, and starts again on the same port."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from ports import free_port

START_SECONDS = 60.0


class AgentService:
    """A program that takes `--port N` and answers GET /health once it is ready."""

    def __init__(self, command: Sequence[str | Path], folder: Path, variables: Mapping[str, str]) -> None:
        self._command = [str(word) for word in command]
        self._folder = folder
        self._variables = dict(variables)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """The output of all its processes so far."""
        return (self._folder / "agent.log").read_text()

    def start(self) -> None:
        """Start the agent, and return once it is ready."""
        # No variables of this test: the program stands for somebody else's.
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder)} | self._variables
        command = [*self._command, "--port", str(self.port)]
        with (self._folder / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            ended = self._process.poll()
            assert ended is None, f"{command} ended with {ended}: {self.log[-2000:]}"
            assert time.monotonic() < deadline, f"{command} is not ready: {self.log[-2000:]}"
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the agent without notice, as the loss of its node would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def _healthy(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False
