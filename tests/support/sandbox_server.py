"""The server of a sandbox pod as a process on this machine, and an environment for it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ports import free_port

from headway_api.names import ENV_EPISODE_FILE, ENV_RUNNER
from headway_api.sandbox_api import FinishRequest, ResetReply, ResetRequest, ToolCall, ToolReply
from headway_sandbox.runner import CHILD

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = '''
import time
from headway_sandbox.environment import Done, Environment, Observation, Reward, tool, user

class Counter(Environment):
    """Counts; knows how to misbehave."""

    def reset(self, row, seed):
        if row.get("break"):
            raise RuntimeError("cannot reset")
        self.total, self.row = seed, row
        return Observation([user(row["prompt"])])

    @tool
    def add(self, amount: int) -> dict:
        """Add."""
        self.total += amount
        return {"total": self.total}

    @tool
    def stop(self) -> str:
        """Stop."""
        return Done("stopped")

    @tool
    def crash(self) -> str:
        """Crash."""
        raise KeyError("bug")

    @tool
    def sleep(self, seconds: float) -> str:
        """Sleep."""
        time.sleep(seconds)
        return "slept"

    def reward(self, transcript):
        if self.row.get("nan"):
            return float("nan")
        return Reward(self.total / 10, {"calls": len(transcript.calls)}, self.row.get("turns"))

    def score(self, transcript):
        return float(transcript.answer == str(self.total))
'''


class Server:
    """A sandbox pod's server, and the requests that a coordinator sends to it."""

    def __init__(
        self,
        folder: Path,
        entrypoint: str = "counter:Counter",
        *,
        user: int | None = None,
        runner: str = CHILD,
        work: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        (folder / "counter.py").write_text(ENVIRONMENT)
        self.folder = folder
        self.variables = variables or {}
        self.beside: subprocess.Popen[bytes] | None = None
        """The runner's process, if it is not the server's child."""
        self.port = free_port()
        env = {
            **self.variables,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT / 'sandbox'}:{folder}",
            "HEADWAY_ENTRYPOINT": entrypoint,
            "HEADWAY_SANDBOX_PORT": str(self.port),
            ENV_EPISODE_FILE: str((work or folder) / "episode.json"),
            ENV_RUNNER: runner,
        }
        # -S: no site-packages, so that only the standard library can be imported.
        command = [os.path.realpath(sys.executable), "-S", "-m", "headway_sandbox.server"]
        groups = None if user is None else ()
        with (folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=env, stderr=log, user=user, extra_groups=groups)

    @property
    def log(self) -> str:
        """The server's standard error, which a pod's log would hold."""
        return (self.folder / "server.log").read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def start(self) -> Server:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                assert self.get("/healthz")[0] == 200
                return self
            except ConnectionError:
                time.sleep(0.02)
        raise TimeoutError(self.log)

    def get(self, path: str) -> tuple[int, Any]:
        return self.ask("GET", path)

    def post(self, path: str, body: Any = None, token: str | None = "secret") -> tuple[int, Any]:
        return self.ask("POST", path, body, token)

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text) if text else None

    def lease(self, name: str = "e1", token: str = "secret", seconds: float = 300.0) -> tuple[int, Any]:
        return self.post("/lease", {"lease": name, "token": token, "deadline": time.time() + seconds}, None)

    def begin(self, **row: Any) -> ResetReply:
        assert self.lease()[0] == 204
        request = ResetRequest(row={"prompt": "count", **row}, seed=3)
        status, body = self.post("/reset", request.model_dump())
        assert status == 200, body
        return ResetReply.model_validate(body)

    def tool(self, name: str, **arguments: Any) -> ToolReply:
        status, body = self.post("/tool", ToolCall(name=name, arguments=arguments).model_dump())
        assert status == 200, body
        return ToolReply.model_validate(body)

    def finish(self, *messages: dict[str, Any], **more: Any) -> tuple[int, Any]:
        request = FinishRequest(messages=list(messages), truncated=False, **more)
        return self.post("/finish", request.model_dump())
