"""A whole job without Kubernetes whose processes can be killed one by one, and what must hold afterwards.

Real: coordinator, rollout servers (vLLM and weight agent), sandbox servers, the example's agent service, the
store. The learner is scripted: it takes batches and acknowledges them, and writes in the order of the real
learner. Its weights change nothing, so that the base model keeps solving about two cases in five.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
from lease_service import LeaseService
from ledger_snapshots import FOLDERS, Books, amounts
from ports import free_port
from role_keys import TO_COORDINATOR
from rollout_server import RolloutServer, job_config, kill, publish_adapter, version
from scripted_learner import ScriptedLearner

from headway_api.artifacts import Layout
from headway_api.records import (
    Batch,
    EpisodeRecord,
    Finished,
    GroupRecord,
    Outcome,
    StepReport,
    WeightsManifest,
)
from headway_api.store import FileStore
from headway_coordinator.spool import decode

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "sop-quickstart"
MAIN = Path(__file__).parent / "coordinator_main.py"


class Stubborn(ScriptedLearner):
    """A learner that repeats a request while the coordinator is unavailable."""

    async def announce(self, http: aiohttp.ClientSession, report: StepReport) -> None:
        while True:
            try:
                return await super().announce(http, report)
            except (aiohttp.ClientError, AssertionError) as error:
                _require_unreachable(error)
                await asyncio.sleep(0.2)

    async def take(self, http: aiohttp.ClientSession, step: int) -> Batch | Finished:
        while True:
            try:
                return await super().take(http, step)
            except (aiohttp.ClientError, AssertionError) as error:
                _require_unreachable(error)
                await asyncio.sleep(0.2)


def _require_unreachable(error: Exception) -> None:
    """Raise an error that does not mean that the coordinator is unreachable or still starting."""
    if isinstance(error, AssertionError) and "Starting" not in str(error):
        raise error


class ChaosJob:
    """The job and its processes."""

    def __init__(self, folder: Path, inputs: Path, leases: LeaseService, servers: int, **spec: Any) -> None:
        self.folder = folder
        self.leases = leases
        self.base = inputs / "model"
        self.port, self.gateway_port = free_port(), free_port()
        data = {name: {"uri": f"file://{inputs}/{name}.jsonl"} for name in ("train", "validation")}
        blocks: dict[str, Any] = {
            "environment": {"image": "environment", "entrypoint": "environment:RefundDesk"},
            "model": {"contextLength": 512, "lora": {"rank": 8, "alpha": 16}},
            "data": data,
            "algorithm": {"batchSize": 2, "groupSize": 4, "maxStepsOffPolicy": 1},
            "schedule": {"maxSteps": 1000, "maxEpochs": 10},
            "rollout": {"sampling": {"maxTokens": 32}, "maxConcurrency": 16, "timeoutSeconds": 60},
            "agent": {"builtin": {"maxTurns": 6}},
            "output": {"uri": f"file://{folder}/store"},
        } | spec
        self.config = job_config(folder, self.base, **blocks)
        self._blocks = blocks
        self.store = FileStore()
        self.layout = Layout(self.config.spec.output.uri, "tests", "job", self.config.uid)
        run = {"port": self.port, "gateway_port": self.gateway_port, "broker_url": leases.url}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(run))
        (folder / "job.json").write_text(self.config.model_dump_json(by_alias=True))
        self.servers: list[RolloutServer] = []
        for _ in range(servers):
            self.add_server()
        self.learner = Stubborn(
            f"http://127.0.0.1:{self.port}", TO_COORDINATOR, self.store, self.layout, self._publish
        )
        self.starts = 0
        self.coordinator = self.start_coordinator()
        self.agent: subprocess.Popen[bytes] | None = None

    def _publish(self, step: int) -> WeightsManifest:
        return publish_adapter(self.folder / "published", self.base, version(step), seed=1, scale=0.0)

    def add_server(self) -> None:
        """Start another rollout server. The coordinator discovers it at once, before it is ready."""
        server = RolloutServer(self.folder / f"server-{time.monotonic_ns()}", self.base, **self._blocks)
        self.servers.append(server)
        self._tell()

    def kill_server(self) -> None:
        """Kill all processes of the oldest server, and start another server at another address."""
        server = self.servers.pop(0)
        processes = [server.process.pid, *server.engine_processes()]
        for pid in processes:
            kill(pid)
        server.process.wait(30)
        self.add_server()

    def _tell(self) -> None:
        found = [(server.url, server.agent_url) for server in self.servers]
        whole = self.folder / "endpoints.new"
        whole.write_text(json.dumps(found))
        os.replace(whole, self.folder / "endpoints.json")

    def start_coordinator(self) -> subprocess.Popen[bytes]:
        """Start the first coordinator, or the next one."""
        self.starts += 1
        log = (self.folder / f"coordinator-{self.starts}.log").open("wb")
        return subprocess.Popen([sys.executable, str(MAIN), str(self.folder)], stdout=log, stderr=log)

    def kill_coordinator(self) -> None:
        """Kill the coordinator without notice, and start the next one."""
        assert self.coordinator.poll() is None, self.why()
        self.coordinator.kill()
        self.coordinator.wait(30)
        self.coordinator = self.start_coordinator()

    def start_agent(self, port: int) -> None:
        """Start the example's agent service."""
        self._agent_port = port
        environment = os.environ | {"PORT": str(port), "PYTHONPATH": f"{EXAMPLE}:{ROOT / 'sandbox'}"}
        script = EXAMPLE / "agents" / "service.py"
        self.agent = subprocess.Popen([sys.executable, str(script)], env=environment)

    def kill_agent(self) -> None:
        """Kill the agent service in the middle of its episodes, and start it again."""
        assert self.agent is not None
        assert self.agent.poll() is None, f"the agent ended with {self.agent.returncode}"
        self.agent.kill()
        self.agent.wait(30)
        self.start_agent(self._agent_port)

    def why(self) -> str:
        """The end of the newest coordinator's log."""
        return (self.folder / f"coordinator-{self.starts}.log").read_text(errors="replace")[-4000:]

    def step(self) -> int:
        """The newest step that is durable."""
        try:
            return int(json.loads(self.store.get(self.layout.latest))["step"])
        except KeyError:
            return 0

    async def until_step(self, wanted: int, seconds: float = 240) -> None:
        """Wait until step `wanted` is durable."""
        deadline = time.monotonic() + seconds
        while self.step() < wanted:
            assert self.coordinator.poll() is None, f"the coordinator ended by itself:\n{self.why()}"
            assert time.monotonic() < deadline, f"no step {wanted} within {seconds} s:\n{self.why()}"
            await asyncio.sleep(0.1)

    def books(self) -> Books:
        """The stored records of the job as they are now."""
        root = Path(self.layout.root.removeprefix("file://"))
        files = {
            str(path.relative_to(root)): path.read_bytes()
            for part in FOLDERS
            for path in sorted((root / part).rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }
        return Books(
            objects={name: sha256(data).hexdigest() for name, data in files.items()},
            acknowledged={
                name: tuple(json.loads(data)["groups"])
                for name, data in files.items()
                if name.startswith("steps/")
            },
            usage={},
        )

    def groups(self) -> list[GroupRecord]:
        """Every training group that was spooled."""
        return [decode(self.store.get(uri)) for uri in self.store.list(self.layout.train_groups)]

    def status(self) -> dict[str, Any]:
        """The last status."""
        found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return found

    def amounts(self) -> Any:
        """The amounts of usage in the last status."""
        return amounts({"status": self.status()})

    def recount(self, *prices: str) -> dict[str, Any]:
        """The bill, counted again from the stored trajectories.

        `prices`: each `CLASS=USD`, for a million tokens, instead of the price in the default book.
        """
        command = [sys.executable, str(ROOT / "hack" / "recount.py"), self.layout.root, "--json"]
        command += [word for price in prices for word in ("--price", price)]
        found: dict[str, Any] = json.loads(
            subprocess.run(command, capture_output=True, check=True, text=True).stdout
        )
        return found

    def stop(self) -> None:
        """End every process that was started here."""
        for process in (self.coordinator, self.agent):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(20)
        for server in self.servers:
            server.__exit__(None, None, None)


@contextmanager
def chaos_job(
    folder: Path, inputs: Path, leases: LeaseService, servers: int = 1, **spec: Any
) -> Iterator[ChaosJob]:
    """A job whose processes end with the `with` block."""
    job = ChaosJob(folder, inputs, leases, servers, **spec)
    try:
        yield job
    finally:
        job.stop()


def judged_again(episode: EpisodeRecord, case_id: str) -> float:
    """The reward that the example's own rules give to the recorded conversation."""
    sys.path[:0] = [path for path in (str(EXAMPLE), str(ROOT / "sandbox")) if path not in sys.path]
    from environment import RefundDesk  # type: ignore[import-not-found]

    from headway_sandbox.environment import Call, Transcript

    desk = RefundDesk({})
    desk.reset({"case_id": case_id, "prompt": ""}, 0)
    results = {m["tool_call_id"]: m["content"] for m in episode.messages if m["role"] == "tool"}
    calls = [
        Call(
            call["function"]["name"],
            json.loads(call["function"]["arguments"]),
            results[call["id"]],
            results[call["id"]].startswith("error:"),
        )
        for message in episode.messages
        for call in message.get("tool_calls") or []
        if call["id"] in results
    ]
    truncated = episode.outcome is not Outcome.COMPLETED
    found = desk.reward(Transcript(episode.messages, calls, truncated))
    return float(found.value)
