"""A whole job whose rewards come from a judge: real sandboxes, a coordinator from preflight to report."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from endpoint_service import Answer, Service, says
from endpoint_service import serving as endpoint
from faulty_servers import serving, weight_agent
from job_rig import publishing
from lease_service import lease_service
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job, speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_api.artifacts import Layout
from headway_api.keys import Key
from headway_api.preflight import CHECK_IDS
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.status import JobUpdate

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


@dataclass
class Ran:
    """A job that has ended."""

    status: dict[str, Any]
    store: FileStore
    layout: Layout
    judge: Service


async def ran(folder: Path, answer: Answer, **fields: Any) -> Ran:
    """Run the job with a judge that answers by `answer`. `fields` are parts of its spec."""
    (folder / "desk.py").write_text(ENVIRONMENT)
    statuses: list[dict[str, Any]] = []

    def sink(status: dict[str, Any]) -> JobUpdate:
        statuses.append(status)
        return JobUpdate()

    store = FileStore()
    async with AsyncExitStack() as stack:
        judge = await stack.enter_async_context(endpoint(answer))
        engine = await stack.enter_async_context(serving(speaking_engine(folder)))
        agent = await stack.enter_async_context(serving(weight_agent()))
        service = lease_service(folder, "desk:Desk", KEYS[Key.COORDINATOR_TO_BROKER])
        leases = await stack.enter_async_context(service)
        config = job(
            folder,
            reward={"range": [-1, 1]},
            judges=[{"name": "style", "endpoint": {"url": judge.url, "model": "m"}}],
            **{"evaluation": {"everySteps": 0, "atStart": True, "maxRows": 1}, **fields},
        )

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine.url, agent.url)}

        port = free_port()
        coordinator = Coordinator(
            config, KEYS, store, folder / "cache", sink, broker_url=leases.url, discover=discover, port=port
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
    return Ran(statuses[-1], store, layout, judge)


async def recounted(folder: Path, job: Ran) -> subprocess.CompletedProcess[str]:
    """Run the recount, which compares the job's bill with the store."""
    (folder / "job.json").write_text(json.dumps({"status": job.status}))
    command = [sys.executable, str(ROOT / "hack/recount.py"), job.layout.root, "--status"]
    command.append(str(folder / "job.json"))
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)


async def test_a_job_is_trained_on_rewards_of_its_judge(tmp_path: Path) -> None:
    job = await ran(tmp_path, says("0.5"))
    status, store, layout = job.status, job.store, job.layout
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
    metrics = json.loads(store.get(layout.batch_metrics(1)))["figures"]
    assert metrics["rollout/reward_metrics/tier"] == 1.0
    assert metrics["rollout/reward/mean"] == 0.25
    assert status["usage"]["judgeTokens"] > 0
    assert status["usage"]["judgeTokens"] % 25 == 0
    counted = await recounted(tmp_path, job)
    assert counted.returncode == 0, counted.stderr


ASKED_AGAIN = {"episodes": 8, "checks": {
    **dict.fromkeys(CHECK_IDS, "Off"), "judge-varies": "Enforce", "constant-guess": "Warn",
}}  # fmt: skip
"""Scripts of one other check are played too."""


async def test_a_preflight_repeats_questions_that_episodes_asked(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()

    async def fickle(request: web.Request, asked: Any) -> web.StreamResponse:
        """Give another grade each time that the same question is asked."""
        prompt = asked["messages"][-1]["content"]
        counts[prompt] += 1
        return await says("0.5" if counts[prompt] % 2 else "0.25")(request, asked)

    job = await ran(tmp_path, fickle, preflight=ASKED_AGAIN)
    by_check = {each["check"]: each for each in job.status["preflight"]["findings"]}
    found, guess = by_check["judge-varies"], by_check["constant-guess"]
    assert "empty answer: success 4 of 4" in guess["message"]
    assert ", reward " not in guess["message"], "a script is in no group"
    assert (found["verdict"], found["field"]) == ("Warn", "spec.judges[style]")
    assert "Judge style answered 5 of 5" in found["message"], "four prompts, and one of whole groups"
    assert "Mean difference: text by 0.25" in found["message"]
    assert {prompt: asked for prompt, asked in counts.items() if "Say ok" not in prompt} == {
        **{f"train {number}": 3 for number in range(4)},
        "Which of 2": 3,
        "validation 0": 1,
    }, "what episodes and scripts ask again is kept"
    kept = [json.loads(job.store.get(uri)) for uri in job.store.list(job.layout.preflight_judgements)]
    twice = [each for each in kept if each["whose"].startswith("preflight-judge-")]
    assert len(twice) == 10
    assert sum(one["sampled_tokens"] for each in twice for one in each["judgements"]) == 50
    counted = await recounted(tmp_path, job)
    assert counted.returncode == 0, counted.stderr
