"""The preflight's second half: episodes before there is a learner, their verdict, and what is read back.

The coordinator is the real one, over servers that answer by script.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from a_job import publishing
from episodes import a_group
from faulty_servers import Scripted, broker, sandbox, serving, weight_agent
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_learner import ScriptedLearner
from speaking_job import job, speaking_engine, until_ready

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.exits import JobError
from headway_api.preflight import CHECK_IDS
from headway_api.records import Purpose
from headway_api.store import FileStore
from headway_coordinator import status
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines import fleet as fleets
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.preflight.start import BEFORE_TRAINING
from headway_coordinator.spool import Spool, decode

SIZE, ROWS, EPISODES = 8, 15, 120
"""Enough for a foothold to be ruled out: 64 episodes on 8 rows."""
LENIENT = {check: "Warn" for check in CHECK_IDS if check != "foothold"}
"""The sandbox pays whatever is answered, which other checks object to."""
SUCCEEDS: tuple[float, ...] = (1.0, 0.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "DISCOVER_SECONDS", 0.05)
    monkeypatch.setattr(status, "LEAST_SECONDS", 0.02)


@dataclass
class Rig:
    """A job whose coordinators may live after one another, and what was asked of its servers."""

    folder: Path
    engine: Scripted
    agent: Scripted
    box: Scripted
    leases: Scripted
    store: FileStore = field(default_factory=FileStore)
    told: list[dict[str, Any]] = field(default_factory=list)
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
            config, KEYS, self.store, self.folder / "cache", self.told.append,
            broker_url=self.leases.url, discover=discover, port=self.port,
        )  # fmt: skip

    async def run(self, config: JobConfig) -> None:
        """The whole job."""
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
        found: dict[str, Any] = self.told[-1]["preflight"]
        return found

    @property
    def states(self) -> list[str]:
        """Of the preflight, as status said them one after the other."""
        said = [status["preflight"]["state"] for status in self.told if "preflight" in status]
        return [state for at, state in enumerate(said) if at == 0 or said[at - 1] != state]

    def layout(self, uid: str = "uid") -> Layout:
        return Layout(f"file://{self.folder}/out", "ns", "job", uid)


@asynccontextmanager
async def rig(folder: Path, score: Callable[[int], float]) -> AsyncIterator[Rig]:
    """`score`: number of the judgement -> reward and score."""
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


async def test_a_job_is_sampled_before_its_learner_is_made(tmp_path: Path) -> None:
    async with rig(tmp_path, mixed) as stage:
        await stage.run(stage.config())
        assert stage.states[-2:] == ["Sampling", "Warned"]
        assert (stage.preflight["episodes"], stage.preflight["wantedEpisodes"]) == (EPISODES, EPISODES)
        taken = [body for key, body in stage.agent.asked if key == "POST /v1/weights"]
        assert (taken[0]["kind"], taken[1]["kind"]) == ("base", "lora")
        assert taken[0]["version"] == BEFORE_TRAINING.model_dump()
        groups = [decode(stage.store.get(uri)) for uri in stage.store.list(stage.layout().preflight_groups)]
        assert {group.purpose for group in groups} == {Purpose.PREFLIGHT}
        assert sum(len(group.episodes) for group in groups) == EPISODES
        usage = stage.told[-1]["usage"]
        assert usage["evaluationTokens"] > 0, "its tokens are on the bill"
        kept = json.loads(stage.store.get(stage.layout().preflight))
        [speed] = [each for each in kept["document"]["checks"] if each["check"] == "throughput"]
        assert f" at {SIZE} at once" in speed["saw"]
        assert " The whole job costs " in speed["saw"]
        assert "(default@2026-01-01)" in speed["saw"]
        assert speed["figures"]["training_train_tokens"] > 0, "half of each group succeeds"
        assert stage.store.get(stage.layout().preflight_for_people)


async def test_a_failed_check_ends_the_job_before_a_learner(tmp_path: Path) -> None:
    async with rig(tmp_path, lambda number: 0.0) as stage:
        with pytest.raises(JobError) as caught:
            await stage.run(stage.config())
        assert caught.value.termination.reason == "PreflightFailed"
        assert caught.value.permanent
        assert "foothold" in caught.value.termination.message
        assert stage.preflight["state"] == "Failed"
        assert stage.preflight["findings"][0]["check"] == "foothold"
        assert stage.preflight["findings"][0]["verdict"] == "Fail"
        assert stage.preflight["episodes"] < EPISODES, "it ends as soon as that is certain"
        assert stage.told[-1]["usage"]["evaluationTokens"] > 0
        assert stage.told[-1].get("progress") is None


async def test_one_check_may_warn_alone(tmp_path: Path) -> None:
    async with rig(tmp_path, lambda number: 0.0) as stage:
        await stage.run(stage.config(checks=LENIENT | {"foothold": "Warn"}))
        assert stage.states[-1] == "Warned"
        assert stage.preflight["episodes"] == EPISODES, "a failure that ends nothing cuts nothing short"
        assert stage.told[-1]["progress"]["step"] == 2


async def test_a_check_that_is_off_is_not_told(tmp_path: Path) -> None:
    async with rig(tmp_path, lambda number: 0.0) as stage:
        await stage.run(stage.config(checks=LENIENT | {"foothold": "Off"}))
        assert "foothold" not in {each["check"] for each in stage.preflight["findings"]}
        assert stage.states[-1] == "Warned"


async def test_no_episodes_leave_the_static_checks(tmp_path: Path) -> None:
    async with rig(tmp_path, lambda number: 0.0) as stage:
        await stage.run(stage.config(episodes=0))
        assert stage.states[-1] == "Passed"
        assert "Sampling" not in stage.states
        assert stage.store.list(stage.layout().preflight_groups) == []
        assert "findings" not in stage.preflight


async def test_an_equal_job_reads_the_result_back(tmp_path: Path) -> None:
    async with rig(tmp_path, mixed) as stage:
        await stage.run(stage.config())
        found = stage.preflight["findings"]
        stage.told.clear()
        await stage.run(stage.config("another"))
        assert "Sampling" not in stage.states
        assert stage.preflight["findings"] == found
        assert "read back" in stage.preflight["summary"]
        assert stage.store.list(stage.layout("another").preflight_groups) == []
        assert stage.store.get(stage.layout("another").preflight), "each job has its report"


async def test_a_restart_goes_on_with_the_groups_there_are(tmp_path: Path) -> None:
    async with rig(tmp_path, mixed) as stage:
        running = asyncio.create_task(stage.coordinator(stage.config()).run())
        async with asyncio.timeout(30):
            while len(stage.store.list(stage.layout().preflight_groups)) < 2:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        before = {uri: stage.store.get(uri) for uri in stage.store.list(stage.layout().preflight_groups)}
        await stage.run(stage.config())
        after = {uri: stage.store.get(uri) for uri in stage.store.list(stage.layout().preflight_groups)}
        assert before.items() <= after.items()
        assert len(after) == EPISODES // SIZE
        assert stage.told[-1]["progress"]["step"] == 2


async def test_a_sandbox_is_probed_before_and_after_the_scripts(tmp_path: Path) -> None:
    """By then the sandboxes that are next are younger: each of a script's has another in its place."""
    async with rig(tmp_path, mixed) as stage:
        stage.box.answers["POST /probe"] = lambda body: {
            "reached": [False] * len(body["destinations"]),
            "age": 1,
        }
        await stage.run(stage.config())
        leases = [body["lease"] for key, body in stage.leases.asked if key == "POST /v1/leases"]
        [start], [before], [after] = (
            [at for at, name in enumerate(leases) if name == f"preflight-probe-0-{when}"]
            for when in ("start", "before", "after")
        )
        scripts = [at for at, name in enumerate(leases) if name.startswith("preflight-script-")]
        episodes = [at for at, name in enumerate(leases) if name.startswith("p0-")]
        assert start < min(episodes) <= max(episodes) < before
        assert before < min(scripts) <= max(scripts) < after
        found = {each["check"]: each["verdict"] for each in stage.preflight["findings"]}
        assert found["isolated"] == "Pass"


async def test_a_lost_group_is_sampled_anew_at_a_restart(tmp_path: Path) -> None:
    async with rig(tmp_path, mixed) as stage:
        before = a_group("p0-000000", [None] * SIZE, purpose=Purpose.PREFLIGHT)
        assert Spool(stage.store, stage.layout()).put(before) == before
        await stage.run(stage.config())
        groups = [decode(stage.store.get(uri)) for uri in stage.store.list(stage.layout().preflight_groups)]
        assert [len(group.scored) for group in groups] == [SIZE] * (EPISODES // SIZE)
        billed = [uri.rpartition("/")[2] for uri in stage.store.list(stage.layout().usage)]
        assert "p0-000000.jsonl" in billed, "what was sampled anew"
        assert "p0-000000-0.jsonl" in billed, "what was lost"


async def test_what_ended_early_stands_for_jobs_that_end_by_it(tmp_path: Path) -> None:
    async with rig(tmp_path, lambda number: 0.0) as stage:
        for uid in ("uid", "equal"):
            stage.told.clear()
            with pytest.raises(JobError):
                await stage.run(stage.config(uid))
        assert "Sampling" not in stage.states, "the second ends by what the first found"
        await stage.run(stage.config("lenient", checks=LENIENT | {"foothold": "Warn"}))
        assert stage.preflight["state"] == "Warned"
        assert stage.preflight["episodes"] == EPISODES
