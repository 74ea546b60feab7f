"""One small job without Kubernetes: real coordinator, vLLM, weight agent and sandbox servers, over a folder.

The base model has random weights, so episodes score 0. The tests check everything else.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from lease_service import lease_service
from ports import free_port
from role_keys import KEYS, TO_BROKER, TO_COORDINATOR
from rollout_server import RolloutServer, job_config, publish_adapter, version
from scripted_job import until_ready
from scripted_learner import ScriptedLearner
from tiny_model import write_model

from headway_api.artifacts import Layout
from headway_api.preflight import CHECK_IDS
from headway_api.records import WeightsManifest
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.preflight.start import BEFORE_TRAINING
from headway_coordinator.spool import decode

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = ROOT / "examples" / "sop-quickstart"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STEPS = 3
SPEC: dict[str, Any] = {
    "environment": {"image": "environment", "entrypoint": "environment:RefundDesk"},
    "algorithm": {"batchSize": 2, "groupSize": 2, "maxStepsOffPolicy": 1, "sampler": "in_order"},
    "schedule": {"maxSteps": STEPS, "maxEpochs": 2},
    "rollout": {"sampling": {"maxTokens": 24}, "maxConcurrency": 8, "timeoutSeconds": 60},
    "agent": {"builtin": {"maxTurns": 3}},
    "model": {"lora": {"rank": 8, "alpha": 16}},
    "evaluation": {"everySteps": 2, "atStart": True},
}


def spec(folder: Path) -> dict[str, Any]:
    data = {name: {"uri": f"file://{folder}/{name}.jsonl"} for name in ("train", "validation", "test")}
    return SPEC | {"data": data}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutServer]:
    folder = tmp_path_factory.mktemp("loop")
    cases = [{"prompt": f"Handle case {name}.", "case_id": name} for name in case_ids()]
    for name, rows in (("train", cases[:8]), ("validation", cases[8:12]), ("test", cases[12:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with RolloutServer(folder, write_model(folder / "base"), **spec(folder)) as server:
        server.wait_ready(600)
        yield server


def case_ids() -> list[str]:
    code = "import environment, json; print(json.dumps(environment.case_ids()[:14]))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ENVIRONMENT, capture_output=True, check=True, text=True
    )
    names: list[str] = json.loads(found.stdout)
    return names


class Job:
    """A coordinator, and the servers and files that it needs."""

    def __init__(self, server: RolloutServer, folder: Path, broker_url: str, **blocks: Any) -> None:
        self.folder = folder
        self.server = server
        self.config = job_config(
            folder,
            server.log.parent / "base",
            **spec(server.log.parent) | blocks,
            output={"uri": f"file://{folder}/store"},
        )
        self.config = self.config.model_copy(update={"uid": folder.name})
        self.store = FileStore()
        self.layout = Layout(self.config.spec.output.uri, "tests", "job", folder.name)
        self.broker_url = broker_url
        self.status: list[dict[str, Any]] = []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    async def _discover(self) -> set[Endpoint]:
        return {Endpoint(self.server.url, self.server.agent_url)}

    def coordinator(self) -> Coordinator:
        return Coordinator(
            self.config,
            KEYS,
            self.store,
            self.folder / "cache",
            self.status.append,
            broker_url=self.broker_url,
            discover=self._discover,
            port=self.port,
        )

    def publish(self, step: int) -> WeightsManifest:
        """Publish the same random adapter as another version."""
        base = self.server.log.parent / "base"
        return publish_adapter(self.folder / "published", base, version(step), seed=1)

    def learner(self) -> ScriptedLearner:
        return ScriptedLearner(self.url, TO_COORDINATOR, self.store, self.layout, self.publish)

    async def ready(self) -> None:
        async with asyncio.timeout(60), aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"{self.url}/readyz") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientConnectionError:
                    pass
                await asyncio.sleep(0.05)

    def recount(self) -> dict[str, Any]:
        command = [sys.executable, str(ROOT / "hack" / "recount.py"), self.layout.root, "--json"]
        found = subprocess.run(command, capture_output=True, check=True, text=True)
        counted: dict[str, Any] = json.loads(found.stdout)
        return counted


async def test_a_job_runs_from_preflight_to_report(server: RolloutServer, tmp_path: Path) -> None:
    async with lease_service(ENVIRONMENT, "environment:RefundDesk", TO_BROKER) as leases:
        job = Job(server, tmp_path, leases.url)
        coordinator, loaded = job.coordinator(), list[int]()
        coordinator.on_loaded = lambda: loaded.append(leases.peak)
        running = asyncio.create_task(coordinator.run())
        await asyncio.wait([running, asyncio.ensure_future(job.ready())], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        learner = job.learner()
        await asyncio.gather(learner.run(), running)
        assert loaded == [1], "once, after the preflight's one sandbox and before any episode"
        assert not leases.leased
        assert leases.peak <= 8

    assert learner.finished is not None
    assert learner.finished.reason == "MaxSteps"
    assert [batch.step for batch in learner.batches] == [1, 2, 3]
    assert [len(batch.groups) for batch in learner.batches] == [2, 2, 2]
    trained = [group.group_id for batch in learner.batches for group in batch.groups]
    assert trained == [f"t0-{position:06d}" for position in range(6)]
    for batch in learner.batches:
        spans = [s for g in batch.groups for e in g.scored for r in e.rows for s in r.versions]
        assert min(span.version.step for span in spans) >= batch.step - 2

    status = job.status[-1]
    assert status["preflight"]["state"] == "Passed"
    assert status["progress"]["step"] == STEPS
    assert status["progress"]["episodes"] == 12
    assert status["validation"]["step"] == STEPS
    assert status["validation"]["baseline"] is not None
    assert status["algorithm"]["clipHigh"] == "1.2"
    report = json.loads(job.store.get(job.layout.report))
    assert [point["step"] for point in report["curve"]] == [0, 2, 3]
    assert report["usage"] == status["usage"]
    # No step scores above 0, so step 0 is the best and is compared with itself.
    assert (status["test"]["step"], status["test"]["rows"]) == (0, 2)
    assert status["test"]["tuned"] == status["test"]["base"]
    assert report["test"]["tuned"]["all"]["external_score"]["tries"] == 2
    assert len(job.store.list(job.layout.evaluation_groups("step-0"))) == 2

    counted = job.recount()
    assert counted["tokens"] == {
        "prefill": status["usage"]["prefillTokens"],
        "cachedPrefill": status["usage"]["cachedPrefillTokens"],
        "sample": status["usage"]["sampleTokens"],
        "train": status["usage"]["trainTokens"],
        "discarded": status["usage"]["discardedTokens"],
        "evaluation": status["usage"]["evaluationTokens"],
        "endpoint": status["usage"]["endpointTokens"],
        "judge": status["usage"]["judgeTokens"],
    }
    assert counted["cost"] == status["usage"]["cost"]


async def test_linear_episodes_are_one_row_of_what_the_engine_saw(
    server: RolloutServer, tmp_path: Path
) -> None:
    async with lease_service(ENVIRONMENT, "environment:RefundDesk", TO_BROKER) as leases:
        job = Job(server, tmp_path, leases.url)
        running = asyncio.create_task(job.coordinator().run())
        await job.ready()
        await job.learner().run(steps=1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    groups = [decode(job.store.get(uri)) for uri in job.store.list(job.layout.train_groups)]
    assert groups
    for episode in [episode for group in groups for episode in group.scored]:
        assert len(episode.rows) == 1
        row, last = episode.rows[0], episode.turns[-1]
        assert len(row.tokens) == last.prompt_tokens + last.sampled_tokens
        assert row.action_tokens == sum(turn.sampled_tokens for turn in episode.turns)
        assert all(logprob < 0 for logprob, mask in zip(row.logprobs, row.mask, strict=True) if mask)


async def test_a_restart_replays_what_was_spooled(server: RolloutServer, tmp_path: Path) -> None:
    async with lease_service(ENVIRONMENT, "environment:RefundDesk", TO_BROKER) as leases:
        job = Job(server, tmp_path, leases.url)
        learner = job.learner()
        first = asyncio.create_task(job.coordinator().run())
        await job.ready()
        await learner.run(steps=1)
        async with asyncio.timeout(60):
            while len(job.store.list(job.layout.train_groups)) < 4:
                await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        before = {uri: job.store.get(uri) for uri in job.store.list(job.layout.root + "/trajectories")}

        second = asyncio.create_task(job.coordinator().run())
        await job.ready()
        await asyncio.gather(learner.run(), second)
        assert len(leases.owners) == 2

    assert all(job.store.get(uri) == data for uri, data in before.items())
    assert [batch.step for batch in learner.batches] == [1, 2, 3]
    trained = [group.group_id for batch in learner.batches for group in batch.groups]
    assert len(trained) == len(set(trained)) == 6
    usage = job.status[-1]["usage"]
    counted = job.recount()
    assert counted["tokens"]["sample"] == usage["sampleTokens"]
    assert counted["tokens"]["train"] == usage["trainTokens"]
    assert counted["cost"] == usage["cost"]


async def test_the_base_model_samples_before_the_learner_speaks(
    server: RolloutServer, tmp_path: Path
) -> None:
    """Afterwards the same server takes the learner's weights, which replace the base model's."""
    asked = {"policy": "Warn", "episodes": 8}
    async with lease_service(ENVIRONMENT, "environment:RefundDesk", TO_BROKER) as leases:
        job = Job(server, tmp_path, leases.url, preflight=asked)
        learner = job.learner()
        running = asyncio.create_task(job.coordinator().run())
        async with asyncio.timeout(300):
            while job.layout.preflight not in job.store.list(job.layout.root):
                await asyncio.sleep(0.1)
                if running.done():
                    running.result()
        assert learner.finished is None, "nothing was asked of it yet"
        await until_ready(running, job.port)
        await asyncio.gather(learner.run(), running)

    groups = [decode(job.store.get(uri)) for uri in job.store.list(job.layout.preflight_groups)]
    assert sum(len(group.scored) for group in groups) == 16, "a group of each row"
    spans = [s for g in groups for e in g.scored for row in e.rows for s in row.versions]
    assert {span.version for span in spans} == {BEFORE_TRAINING}
    trained = [decode(job.store.get(uri)) for uri in job.store.list(job.layout.train_groups)]
    spans = [s for g in trained for e in g.scored for row in e.rows for s in row.versions]
    assert BEFORE_TRAINING not in {span.version for span in spans}

    found = {each["check"]: each["verdict"] for each in job.status[-1]["preflight"]["findings"]}
    assert set(found) == set(CHECK_IDS)
    assert found["deterministic"] == "Pass"
    assert found["foothold"] != "Pass", "a random model succeeds at nothing"
    played = json.loads(job.store.get(job.layout.preflight))["document"]
    assert played["episodes"]["sampled"] == 16
    counted = job.recount()
    assert counted["tokens"]["evaluation"] == job.status[-1]["usage"]["evaluationTokens"]
