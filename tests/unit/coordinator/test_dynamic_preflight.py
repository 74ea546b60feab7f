"""The preflight's episodes before the learner starts: their verdict, and results that a later start reads
back.

The coordinator is the real one. Its servers answer by script.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from baseline_rig import EPISODES, LENIENT, SIZE, mixed, rig
from episodes import a_group

from headway_api.exits import JobError
from headway_api.records import Purpose
from headway_coordinator import status
from headway_coordinator.engines import fleet as fleets
from headway_coordinator.preflight.start import BEFORE_TRAINING
from headway_coordinator.spool import Spool, decode


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "DISCOVER_SECONDS", 0.05)
    monkeypatch.setattr(status, "LEAST_SECONDS", 0.02)


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
        usage = stage.statuses[-1]["usage"]
        assert usage["evaluationTokens"] > 0, "its tokens are on the bill"
        kept = json.loads(stage.store.get(stage.layout().preflight))
        [speed] = [each for each in kept["document"]["checks"] if each["check"] == "throughput"]
        assert f" at {SIZE} at once" in speed["observed"]
        assert " The whole job costs " in speed["observed"]
        assert "(default@2026-01-01)" in speed["observed"]
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
        assert stage.statuses[-1]["usage"]["evaluationTokens"] > 0
        assert stage.statuses[-1].get("progress") is None


async def test_a_failed_check_that_only_warns_does_not_end_the_job(tmp_path: Path) -> None:
    async with rig(tmp_path, lambda number: 0.0) as stage:
        await stage.run(stage.config(checks=LENIENT | {"foothold": "Warn"}))
        assert stage.states[-1] == "Warned"
        assert stage.preflight["episodes"] == EPISODES, "a failure that ends nothing cuts nothing short"
        assert stage.statuses[-1]["progress"]["step"] == 2


async def test_a_check_that_is_off_is_not_reported(tmp_path: Path) -> None:
    async with rig(tmp_path, lambda number: 0.0) as stage:
        await stage.run(stage.config(checks=LENIENT | {"foothold": "Off"}))
        assert "foothold" not in {each["check"] for each in stage.preflight["findings"]}
        assert stage.states[-1] == "Warned"


async def test_without_baseline_episodes_only_static_checks_run(tmp_path: Path) -> None:
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
        stage.statuses.clear()
        await stage.run(stage.config("another"))
        assert "Sampling" not in stage.states
        assert stage.preflight["findings"] == found
        assert "read back" in stage.preflight["summary"]
        assert stage.store.list(stage.layout("another").preflight_groups) == []
        assert stage.store.get(stage.layout("another").preflight), "each job has its report"


async def test_a_restart_continues_with_the_stored_groups(tmp_path: Path) -> None:
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
        assert stage.statuses[-1]["progress"]["step"] == 2


async def test_a_sandbox_is_probed_before_and_after_the_scripts(tmp_path: Path) -> None:
    """The second probe reaches younger sandboxes, because each one that a script used has been replaced."""
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


async def test_a_lost_group_is_sampled_again_at_a_restart(tmp_path: Path) -> None:
    async with rig(tmp_path, mixed) as stage:
        before = a_group("p0-000000", [None] * SIZE, purpose=Purpose.PREFLIGHT)
        assert Spool(stage.store, stage.layout()).put(before) == before
        await stage.run(stage.config())
        groups = [decode(stage.store.get(uri)) for uri in stage.store.list(stage.layout().preflight_groups)]
        assert [len(group.scored) for group in groups] == [SIZE] * (EPISODES // SIZE)
        billed = [uri.rpartition("/")[2] for uri in stage.store.list(stage.layout().usage)]
        assert "p0-000000.jsonl" in billed, "what was sampled anew"
        assert "p0-000000-0.jsonl" in billed, "what was lost"


async def test_an_early_verdict_is_reused_by_jobs_it_would_also_end(tmp_path: Path) -> None:
    async with rig(tmp_path, lambda number: 0.0) as stage:
        for uid in ("uid", "equal"):
            stage.statuses.clear()
            with pytest.raises(JobError):
                await stage.run(stage.config(uid))
        assert "Sampling" not in stage.states, "the second ends by what the first found"
        await stage.run(stage.config("lenient", checks=LENIENT | {"foothold": "Warn"}))
        assert stage.preflight["state"] == "Warned"
        assert stage.preflight["episodes"] == EPISODES
