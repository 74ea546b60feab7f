"""A whole job whose rewards come from a judge: real sandboxes, a coordinator from preflight to report."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from a_job import publishing
from endpoint_service import says
from endpoint_service import serving as endpoint
from faulty_servers import serving, weight_agent
from lease_service import free_port, lease_service
from role_keys import KEYS, TO_COORDINATOR
from scripted_learner import ScriptedLearner
from speaking_job import job, speaking_engine, until_ready

from headway_api.keys import Key
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.status import Heard

pytestmark = [pytest.mark.integration, pytest.mark.ci]

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = """
from headway_sandbox.environment import Environment, Observation, tool, user

class Desk(Environment):
    async def reset(self, row, seed):
        return Observation([user(row["prompt"])])

    @tool
    async def look_up(self, key: str) -> str:
        '''Look it up.'''
        return "gold"

    async def reward(self, transcript):
        if not transcript.answer:
            return -0.1, {"tier": 0.0}
        grade = self.judge("style", [user(transcript.row["prompt"])], {"type": "number"})
        return grade, {"tier": 1.0}

    def score(self, transcript):
        return 1.0

    def group_reward(self, transcripts):
        best = self.judge("style", [user("Which of " + str(len(transcripts)))], {"type": "number"})
        return [each.reward.value - best * n for n, each in enumerate(transcripts)]
"""


async def test_a_job_is_trained_by_what_its_judge_says(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(ENVIRONMENT)
    told: list[dict[str, Any]] = []

    def sink(status: dict[str, Any]) -> Heard:
        told.append(status)
        return Heard()

    store = FileStore()
    async with AsyncExitStack() as stack:
        judge = await stack.enter_async_context(endpoint(says("0.5")))
        engine = await stack.enter_async_context(serving(speaking_engine(tmp_path)))
        agent = await stack.enter_async_context(serving(weight_agent()))
        service = lease_service(tmp_path, "desk:Desk", KEYS[Key.COORDINATOR_TO_BROKER])
        leases = await stack.enter_async_context(service)
        config = job(
            tmp_path,
            reward={"range": [-1, 1]},
            judges=[{"name": "style", "endpoint": {"url": judge.url, "model": "m"}}],
            evaluation={"everySteps": 0, "atStart": True, "maxRows": 1},
        )

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine.url, agent.url)}

        port = free_port()
        coordinator = Coordinator(
            config, KEYS, store, tmp_path / "cache", sink, broker_url=leases.url, discover=discover, port=port
        )
        layout = coordinator.layout
        learner = ScriptedLearner(
            f"http://127.0.0.1:{port}", TO_COORDINATOR, store, layout, publishing(store, layout)
        )
        async with asyncio.timeout(100):
            running = asyncio.create_task(coordinator.run())
            await until_ready(running, port)
            await learner.run(None)
            await running
    status = told[-1]
    assert {"Judge style": True}.items() <= {
        check["name"]: check["passed"] for check in status["preflight"]["checks"]
    }.items()
    groups = [
        json.loads(gzip.decompress(store.get(uri))) for uri in store.list(f"{layout.root}/trajectories/train")
    ]
    assert groups
    for group in groups:
        assert [episode["reward"] for episode in group["episodes"]] == [0.5, 0.0]
        assert [one["judge"] for one in group["judgements"]] == ["style"]
    figures = json.loads(store.get(layout.batch_figures(1)))["figures"]
    assert figures["rollout/reward_metrics/tier"] == 1.0
    assert figures["rollout/reward/mean"] == 0.25
    assert status["usage"]["judgeTokens"] > 0
    assert status["usage"]["judgeTokens"] % 25 == 0
    (tmp_path / "job.json").write_text(json.dumps({"status": status}))
    command = [sys.executable, str(ROOT / "hack/recount.py"), layout.root, "--status"]
    command.append(str(tmp_path / "job.json"))
    counted = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert counted.returncode == 0, counted.stderr
