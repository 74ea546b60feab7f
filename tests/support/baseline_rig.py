"""A job whose preflight samples baseline episodes: a real coordinator over servers that answer by script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faulty_servers import Scripted, broker, sandbox, serving, weight_agent
from job_rig import publishing
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job, speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.preflight import CHECK_IDS
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint

SIZE, ROWS, EPISODES = 8, 15, 120
"""Enough to rule out a foothold, which takes 64 episodes on 8 rows."""
LENIENT = {check: "Warn" for check in CHECK_IDS if check != "foothold"}
"""Other checks than the foothold only warn, since the scripted sandbox rewards every answer."""
SUCCEEDS: tuple[float, ...] = (1.0, 0.0)


@dataclass
class Rig:
    """A job whose coordinators may run one after another, and the requests that its servers received."""

    folder: Path
    engine: Scripted
    agent: Scripted
    box: Scripted
    leases: Scripted
    store: FileStore = field(default_factory=FileStore)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    def config(self, uid: str = "uid", **preflight: Any) -> JobConfig:
        config = job(
            self.folder,
            algorithm={"batchSize": 2, "groupSize": SIZE},
            rollout={"sampling": {"maxTokens": 40}, "timeoutSeconds": 20, "maxConcurrency": SIZE},
            preflight={"episodes": EPISODES, "checks": LENIENT} | preflight,
            environment={"image": f"registry.test/i@sha256:{'0' * 64}", "entrypoint": "m:C"},
            evaluation={"everySteps": 0, "atStart": False},
        )
        rows = [{"prompt": f"train {number}"} for number in range(ROWS)]
        (self.folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return config.model_copy(update={"uid": uid})

    def coordinator(self, config: JobConfig) -> Coordinator:
        async def discover() -> set[Endpoint]:
            return {Endpoint(self.engine.url, self.agent.url)}

        self.port = free_port()
        return Coordinator(
            config, KEYS, self.store, self.folder / "cache", self.statuses.append,
            broker_url=self.leases.url, discover=discover, port=self.port,
        )  # fmt: skip

    async def run(self, config: JobConfig) -> None:
        """Run the whole job."""
        coordinator = self.coordinator(config)
        publish = publishing(self.store, coordinator.layout)
        learner = ScriptedLearner(
            f"http://127.0.0.1:{self.port}", TO_COORDINATOR, self.store, coordinator.layout, publish
        )
        running = asyncio.create_task(coordinator.run())
        async with asyncio.timeout(60):
            await until_ready(running, self.port)
            await asyncio.gather(learner.run(), running)

    @property
    def preflight(self) -> dict[str, Any]:
        found: dict[str, Any] = self.statuses[-1]["preflight"]
        return found

    @property
    def preflight_so_far(self) -> dict[str, Any]:
        """The preflight's status so far; empty before the first status."""
        return self.preflight if self.statuses and "preflight" in self.statuses[-1] else {}

    @property
    def states(self) -> list[str]:
        """The states of the preflight, in the order in which the status had them."""
        observed = [status["preflight"]["state"] for status in self.statuses if "preflight" in status]
        return [state for at, state in enumerate(observed) if at == 0 or observed[at - 1] != state]

    def layout(self, uid: str = "uid") -> Layout:
        return Layout(f"file://{self.folder}/out", "ns", "job", uid)


@asynccontextmanager
async def rig(folder: Path, score: Callable[[int], float]) -> AsyncIterator[Rig]:
    """The job's scripted servers. `score`: number of the judgement, from 1 -> its reward and score."""
    box, judged = sandbox(), [0]

    def finish(_: Any) -> Any:
        judged[0] += 1
        return {"reward": score(judged[0]), "score": score(judged[0]), "metrics": {}}

    box.answers = {**box.answers, "POST /finish": finish}
    async with (
        serving(speaking_engine(folder)) as engine,
        serving(weight_agent()) as agent,
        serving(box) as served,
        serving(broker(served.url)) as leases,
    ):
        yield Rig(folder, engine, agent, box, leases)


def mixed(number: int) -> float:
    return SUCCEEDS[number % 2]
