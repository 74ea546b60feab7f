"""A learner that was stopped wakes beside its successor in one job. Processes and store are real."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
from aiohttp import web

from headway_api.config import JobConfig
from headway_api.exits import RESTART

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]

STEPS = 3


def written(config: JobConfig) -> dict[Path, int]:
    """All files in the job's store, and when each was written."""
    root = Path(config.spec.output.uri.removeprefix("file://"))
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


async def test_a_learner_that_wakes_beside_its_successor_never_writes(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    """It asks for step 2, and receives it only after its successor has trained and saved that step."""
    config = rig.job(tmp_path, model, lora={"rank": 4, "alpha": 8})
    last = 1

    def beyond(request: web.Request) -> str | None:
        return "503" if int(request.query.get("step", 0)) > last else None

    batches = [rig.batch(n, groups=3) for n in range(1, STEPS + 1)]
    served = rig.ScriptedCoordinator(batches, fault=beyond)
    async with served.serving() as url, rig.learner(config, tmp_path / "old", url) as old:
        await rig.reached(served, 1, durable=True)
        old.kill(signal.SIGSTOP)
        last = 2
        async with rig.learner(config, tmp_path / "new", url) as new:
            await rig.reached(served, 2, durable=True)
            assert {report.version.incarnation for report in served.reports} == {0}
            before = written(config)
            old.kill(signal.SIGCONT)
            assert await old.exit() == RESTART, old.log.read_text()[-4000:]
            assert "Superseded" in old.log.read_text()
            assert written(config) == before
            last = STEPS + 1
            assert await new.exit() == 0, new.log.read_text()[-4000:]
    assert left(config).latest == STEPS
    assert left(config).checkpoints() == [STEPS - 1, STEPS]
