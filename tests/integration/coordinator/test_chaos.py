"""Many deaths of each kind of process, at random moments.

No acknowledged group is lost, and no reward of 0 is made up.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chaos import EXAMPLE, ROOT, ChaosJob, chaos_job, judged_again
from lease_service import LeaseService, lease_service
from ledger_snapshots import counted_twice, events, faults, tokens
from ports import free_port
from role_keys import TO_BROKER

from headway_api.records import Outcome

sys.path.insert(0, str(ROOT / "hack" / "demo"))
from headway_demo import quickstart
from headway_demo.settings import Settings

KILLS = int(os.environ.get("CHAOS_KILLS", "20"))
SHARE = 0.15
"""Share of the sandboxes in use that are killed at once."""
SEED = 20
MORE_STEPS = 3
"""Steps that must complete after the last death."""
pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def inputs() -> Path:
    """The example's base model and rows."""
    return quickstart.inputs(Settings.from_environ({}).cache, 0)


async def suffer(job: ChaosJob, strike: Callable[[random.Random], Any], pause: tuple[float, float]) -> None:
    """Kill processes KILLS times, at random moments of a running job, and then check its records."""
    chance = random.Random(SEED)
    learning = asyncio.create_task(job.learner.run())
    seen = []
    try:
        await job.until_step(1)
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(*pause))
            assert not learning.done(), learning.exception()
            seen.append(job.books())
            found = strike(chance)
            if asyncio.iscoroutine(found):
                await found
        await job.until_step(job.step() + MORE_STEPS)
    finally:
        learning.cancel()
        await asyncio.gather(learning, return_exceptions=True)
    job.coordinator.terminate()
    job.coordinator.wait(30)
    final = job.books()
    assert [faults(earlier, final) for earlier in seen] == [[]] * KILLS
    hold(job)


def hold(job: ChaosJob) -> None:
    """Check what must be true of a job, whichever process died."""
    root = Path(job.layout.root.removeprefix("file://"))
    reports = [json.loads(path.read_text()) for path in sorted((root / "steps").glob("*.json"))]
    assert [report["step"] for report in reports] == list(range(len(reports)))
    acknowledged = [group for report in reports for group in report["groups"]]
    assert len(acknowledged) == len(set(acknowledged)), "a group was trained twice"

    groups = {group.group_id: group for group in job.groups()}
    assert set(acknowledged) <= groups.keys(), "an acknowledged group was lost"
    for batch in job.learner.batches:
        for group in batch.groups:
            assert group == groups[group.group_id], "what was trained is not what is kept"

    rows = [json.loads(line) for line in (job.base.parent / "train.jsonl").open()]
    scored = 0
    for group in groups.values():
        for episode in [*group.episodes, *group.discarded]:
            assert (episode.reward is None) == (episode.outcome is Outcome.INFRA_ERROR)
            # These agents never fail by themselves, so an AgentError would be a killed process that was
            # scored.
            assert episode.outcome is not Outcome.AGENT_ERROR, f"{episode.episode_id}: {episode.error}"
            if episode.reward is not None:
                scored += 1
                truth = judged_again(episode, rows[group.row]["case_id"])
                assert math.isclose(episode.reward, truth), f"{episode.episode_id}: a reward was made up"
                trained = sum(row.action_tokens for row in episode.rows)
                assert trained == sum(turn.sampled_tokens for turn in episode.turns if turn.delivered) > 0
                assert all(turn.delivered for turn in episode.turns) or job.config.spec.agent.http
    assert scored >= 8 * len(acknowledged) // 2

    ledger = events(root)
    assert counted_twice(ledger) == []
    assert tokens(ledger) == job.recount()["tokens"]


@asynccontextmanager
async def playing(
    inputs: Path, folder: Path, kind: str, servers: int = 1
) -> AsyncIterator[tuple[ChaosJob, LeaseService]]:
    """A job whose episodes are played by one kind of agent."""
    port, entrypoint = free_port(), "environment:RefundDesk"
    program = f"PYTHONPATH={EXAMPLE}:{EXAMPLE / 'agents'}"
    agents: dict[str, Any] = {
        "builtin": {"builtin": {"maxTurns": 6}},
        "http": {"http": {"url": f"http://127.0.0.1:{port}/", "idleSeconds": 5}},
        "sandboxed": {
            "sandboxed": {"command": ["env", program, sys.executable, str(EXAMPLE / "agents/program.py")]}
        },
    }
    if kind == "http":
        entrypoint = "headway_sandbox.reported:ReportedReward"
    blocks = {"agent": agents[kind], "environment": {"image": "environment", "entrypoint": entrypoint}}
    async with lease_service(EXAMPLE, entrypoint, TO_BROKER, folder) as leases:
        with chaos_job(folder / "job", inputs, leases, servers, **blocks) as job:
            if kind == "http":
                job.start_agent(port)
            yield job, leases


@pytest.mark.parametrize("kind", ["builtin", "http", "sandboxed"])
async def test_the_coordinator_dies(inputs: Path, tmp_path: Path, kind: str) -> None:
    async with playing(inputs, tmp_path, kind) as (job, _):
        await suffer(job, lambda chance: job.kill_coordinator(), pause=(2.0, 9.0))
        assert job.starts == KILLS + 1


@pytest.mark.parametrize("kind", ["builtin", "http", "sandboxed"])
async def test_a_rollout_server_dies(inputs: Path, tmp_path: Path, kind: str) -> None:
    async with playing(inputs, tmp_path, kind, servers=2) as (job, _):

        async def strike(chance: random.Random) -> None:
            before = job.step()
            job.kill_server()
            await job.until_step(before + 1)

        await suffer(job, strike, pause=(0.5, 4.0))


@pytest.mark.parametrize("kind", ["builtin", "http", "sandboxed"])
async def test_sandboxes_die(inputs: Path, tmp_path: Path, kind: str) -> None:
    async with playing(inputs, tmp_path, kind) as (job, leases):
        killed: list[str] = []

        async def strike(chance: random.Random) -> None:
            while not leases.bound:
                await asyncio.sleep(0.01)
            names = sorted(leases.bound)
            for lease in chance.sample(names, math.ceil(SHARE * len(names))):
                if lease in leases.bound:  # its episode may have ended while another sandbox was killed
                    killed.append(lease)
                    await leases.kill(lease)

        await suffer(job, strike, pause=(0.5, 2.0))
        assert len(killed) >= KILLS


async def test_the_agent_dies(inputs: Path, tmp_path: Path) -> None:
    async with playing(inputs, tmp_path, "http") as (job, _):
        await suffer(job, lambda chance: job.kill_agent(), pause=(0.5, 4.0))
