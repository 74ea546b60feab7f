"""A learner that is killed many times, at random moments of its steps, checkpoints and uploads."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
from aiohttp import web

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("CHAOS_KILLS", "20"))
SEED = 20
LORA = {"rank": 4, "alpha": 8}
EVERY = 4
STEPS_A_LIFE = 3


@pytest.mark.parametrize(("ranks", "lora"), [(1, LORA), (2, None)], ids=["lora", "full-2-ranks"])
async def test_a_killed_learner_ends_with_an_undisturbed_ones_bits(
    tmp_path: Path, model: Path, left: Callable[..., Any], ranks: int, lora: dict[str, Any] | None
) -> None:
    """Each process completes a few steps. Most are killed between two checkpoints, or during an upload.

    With two ranks, one of them dies or both do.
    """
    steps = EVERY * (KILLS + 2)
    batches = [rig.batch(n, groups=3) for n in range(1, steps + 1)]
    checkpoints = {"everySteps": EVERY, "keepLast": 2}
    calm = rig.job(tmp_path / "calm", model, lora=lora, checkpoints=checkpoints, processes=ranks)
    undisturbed = rig.ScriptedCoordinator(batches)
    async with (
        undisturbed.serving() as url,
        rig.learner(calm, tmp_path / "calm", url) as process,
    ):
        assert await process.exit(600) == 0, process.log.read_text()[-4000:]

    chance = random.Random(SEED)
    config = rig.job(tmp_path / "rough", model, lora=lora, checkpoints=checkpoints, processes=ranks)
    left_alone = asyncio.Event()

    def last_batch_waits(request: web.Request) -> str | None:
        """Withhold the last batch until the kills are over: otherwise a process would end before its kill."""
        wanted = int(request.query.get("step", "0"))
        return "503" if wanted == steps and not left_alone.is_set() else None

    served = rig.ScriptedCoordinator(batches, fault=last_batch_waits)
    resumed, died_at = [], []
    async with served.serving() as url:
        for _ in range(KILLS):
            reported = len(served.reports)
            async with rig.learner(config, tmp_path / "rough", url) as process:
                while len(served.reports) == reported:
                    await asyncio.sleep(0.01)
                resumed.append(served.reports[reported])
                await rig.reached(served, min(steps - 1, served.step + chance.randint(0, 2 * STEPS_A_LIFE)))
                await asyncio.sleep(chance.uniform(0.0, 0.3))
                if ranks > 1 and chance.random() < 0.7:
                    process.kill_rank(chance.randrange(ranks))
                else:
                    process.kill()
                assert await process.exit() != 0
                died_at.append(served.step)
        left_alone.set()
        async with rig.learner(config, tmp_path / "rough", url) as process:
            reported = len(served.reports)
            assert await process.exit(600) == 0, process.log.read_text()[-4000:]
        resumed.append(served.reports[reported])

    history = left(config).reports()
    assert [report.step for report in history] == list(range(steps + 1))
    for report, batch in zip(history[1:], batches, strict=True):
        assert report.groups == [group.group_id for group in batch.groups], "the data order is another"
    assert {r.step % EVERY for r in resumed} == {0}, "it resumed where no checkpoint was due"
    assert [r.step for r in resumed] == sorted(r.step for r in resumed), "what was durable was lost"
    again = any(life.step < step for life, step in zip(resumed[1:], died_at, strict=True))
    assert (len({report.version for report in served.reports}) > steps + 1) == again
    assert again or KILLS < 10, "no step was ever taken anew"
    for report in served.reports:
        assert report.groups == history[report.step].groups
        assert report.weights.files == history[report.step].weights.files, "trained otherwise the second time"
    assert left(config).report(steps).weights.files == left(calm).report(steps).weights.files
    assert left(config).latest == steps
