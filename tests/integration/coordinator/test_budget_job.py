"""A real job under a budget, in which coordinators and sandboxes are killed.

It stops at or below its budget, and resumes once the budget is raised. A corrected price book reprices its
usage, and the job ends by draining. A program that shares no code with Headway recounts its bill.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaos import EXAMPLE, ROOT, ChaosJob, chaos_job
from lease_service import LeaseService, lease_service
from ledger_snapshots import counted_twice, events, tokens
from role_keys import TO_BROKER

from headway_api import names
from headway_api.prices import shown

sys.path.insert(0, str(ROOT / "hack" / "demo"))
from headway_demo import quickstart
from headway_demo.settings import Settings

KILLS = int(os.environ.get("CHAOS_KILLS", "2"))
"""How often the coordinator is killed, and how often a sandbox."""
SEED = 7
FIRST = "0.03"
"""The budget in US dollars. The reservation of a group is 0.007 here, and its actual cost a fifth of that."""
PATIENCE_SECONDS = 420.0
PRICES = {
    "prefill": "0.13",
    "cachedPrefill": "0.026",
    "sample": "0.40",
    "train": "0.40",
    "discarded": "0",
    "evaluationPrefill": "0.13",
    "evaluationCachedPrefill": "0.026",
    "evaluationSample": "0.40",
}
"""Prices of the default book, in US dollars for a million tokens."""
RAISED = "0.80"
"""The corrected price of sampled tokens."""
pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def inputs() -> Path:
    """The example's base model and rows."""
    return quickstart.inputs(Settings.from_environ({}).cache, 0)


def budget(job: ChaosJob) -> dict[str, Any]:
    """The status of the job's only limit, with the time since which it is exhausted."""
    path = job.folder / "status.json"
    found = json.loads(path.read_text()).get("budget", {}) if path.exists() else {}
    return {"since": found.get("exhaustedTime")} | next(iter(found.get("limits", [])), {})


def cost(job: ChaosJob, *prices: str) -> Decimal:
    """The bill, recounted from trajectories and step reports alone.

    `prices`: CLASS=USD for a million tokens, instead of the default book's.
    """
    return Decimal(str(job.recount(*prices)["cost"]))


async def until_corrected(job: ChaosJob, folder: Path) -> None:
    """Correct the price of sampled tokens as of a date before the job, and wait until the status shows it."""
    entry = {"since": "2026-01-01", "prices": {**PRICES, "sample": RAISED}}
    new = folder / "new.yaml"
    new.write_text(yaml.safe_dump({"name": "corrected", "entries": [entry]}))
    new.replace(folder / names.PRICES_KEY)
    ends = time.monotonic() + PATIENCE_SECONDS
    while not job.status()["usage"].get("priceCorrections"):
        assert time.monotonic() < ends, f"no correction: {job.status()['usage']}\n{job.why()}"
        await asyncio.sleep(0.2)


async def until_exhausted(job: ChaosJob) -> dict[str, Any]:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not (found := budget(job))["since"]:
        assert job.coordinator.poll() is None, f"the coordinator ended by itself:\n{job.why()}"
        assert time.monotonic() < ends, f"not exhausted: {found}\n{job.why()}"
        await asyncio.sleep(0.2)
    return found


async def suffer(job: ChaosJob, leases: LeaseService) -> None:
    """Kill the coordinator and a sandbox in turn, at random moments."""
    chance = random.Random(SEED)
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(1, 4))
        if budget(job)["since"]:
            return
        if leases.bound:
            await leases.kill(chance.choice(sorted(leases.bound)))
        await asyncio.sleep(chance.uniform(1, 4))
        job.kill_coordinator()


def give(job: ChaosJob, spec: dict[str, Any]) -> None:
    """Change the budget as a person would while the job has no pods, and start the job again."""
    job.coordinator.terminate()
    job.coordinator.wait(30)
    path = job.folder / "job.json"
    content = json.loads(path.read_text())
    content["spec"]["budget"] = spec
    path.write_text(json.dumps(content))
    job.coordinator = job.start_coordinator()


async def test_a_job_stops_resumes_and_drains_within_its_budget(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices").mkdir()
    monkeypatch.setenv(names.ENV_PRICES, str(tmp_path / "prices"))
    entrypoint = "environment:RefundDesk"
    async with lease_service(EXAMPLE, entrypoint, TO_BROKER, tmp_path) as leases:
        with chaos_job(tmp_path / "job", inputs, leases, budget={"usd": FIRST}) as job:
            learning = asyncio.create_task(job.learner.run())
            try:
                await job.until_step(1)
                await suffer(job, leases)
                found = await until_exhausted(job)
                steps, spent = job.step(), cost(job)
                assert Decimal(FIRST) / 2 < spent <= Decimal(FIRST), "it used its budget, and no more"
                assert Decimal(found["needed"]) > Decimal(FIRST)

                more = Decimal(found["needed"]) + Decimal("0.01")
                give(job, {"usd": str(more)})
                await job.until_step(steps + 1)
                await until_exhausted(job)
                spent, before = cost(job), spent
                assert before < spent <= more

                await until_corrected(job, tmp_path / "prices")
                raised = cost(job, f"sample={RAISED}")
                assert raised > spent
                assert job.status()["usage"]["cost"] == shown(raised)
                assert job.status()["usage"]["priceBook"].startswith("corrected@")

                last = Decimal((await until_exhausted(job))["needed"]) + Decimal("0.01")
                give(job, {"usd": str(last), "onExhausted": "Drain"})
                assert await asyncio.to_thread(job.coordinator.wait, PATIENCE_SECONDS) == 0, job.why()
                await learning
                assert job.status()["progress"]["finished"] == "BudgetExhausted"
                assert raised <= cost(job, f"sample={RAISED}") <= last
            finally:
                learning.cancel()
                await asyncio.gather(learning, return_exceptions=True)
            root = Path(job.layout.root.removeprefix("file://"))
            ledger = events(root)
            assert counted_twice(ledger) == []
            assert tokens(ledger) == job.recount()["tokens"]
            trained = [group for batch in job.learner.batches for group in batch.groups]
            assert {group.group_id for group in trained} <= {group.group_id for group in job.groups()}
