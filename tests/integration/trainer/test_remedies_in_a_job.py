"""A running learner process applies remedies between two steps, and is killed in the middle of them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest

from headway_api.config import JobConfig
from headway_api.in_force import AdapterSize, Directive, InForce
from headway_api.records import Batch, StepReport
from headway_api.spec.algorithm import Clip

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LORA = {"rank": 4, "alpha": 8}
WIDE = AdapterSize(rank=8, alpha=16)
FIRST = InForce(number=1, adapter=WIDE, loss="ppo", clip=Clip(low=0.8, high=1.2))
SECOND = InForce(number=2, adapter=WIDE, learning_rate=5e-4)
CHECKPOINTS = {"everySteps": 2, "keepLast": 1, "keepBest": 1}
STEPS = 6


def directive(step: int, in_force: InForce, *restore: int) -> Batch:
    asked = Directive(remedy="RollBack" if restore else "WiderAdapter", restore=[*restore])
    return Batch(step=step, epoch=0, groups=[], in_force=in_force, directive=asked, validated=[2])


def batches() -> list[Batch]:
    """Batches of different sizes."""

    def trained(step: int, in_force: InForce, groups: int) -> Batch:
        batch = rig.batch(step, groups=groups)
        return batch.model_copy(update={"in_force": in_force, "validated": [2]})

    return [
        trained(1, InForce(), groups=3),
        trained(2, InForce(), groups=5),
        directive(3, FIRST),
        trained(4, FIRST, groups=2),
        directive(5, SECOND, 9, 2),
        trained(6, SECOND, groups=4),
    ]


@dataclass(frozen=True)
class Undisturbed:
    """The job after an undisturbed run."""

    config: JobConfig
    words: dict[int, StepReport]
    """The first report of each step."""


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    config = rig.job(folder, model, lora=LORA, algorithm={"loss": "cispo"}, checkpoints=CHECKPOINTS)
    served = rig.ScriptedCoordinator(batches())

    async def run() -> None:
        async with served.serving() as url, rig.learner(config, folder, url) as process:
            assert await process.exit(300) == 0, process.log.read_text()[-4000:]

    asyncio.run(run())
    words: dict[int, StepReport] = {}
    for report in served.reports:
        words.setdefault(report.step, report)
    return Undisturbed(config, words)


async def test_a_running_job_is_changed_between_two_steps(
    undisturbed: Undisturbed, left: Callable[..., Any]
) -> None:
    words = undisturbed.words
    assert [str(words[step].version) for step in range(STEPS + 1)] == [f"0.{n}" for n in range(STEPS + 1)]
    assert [words[step].in_force.number for step in range(STEPS + 1)] == [0, 0, 0, 1, 1, 2, 2]
    assert {step for step, report in words.items() if report.directive} == {3, 5}
    assert all(report.refused is None for report in words.values())
    assert (words[3].restored, words[5].restored) == (None, 2), "there is no step 9 to go back to"
    assert words[3].groups == words[5].groups == []
    assert words[5].weights.files == words[3].weights.files, "at step 2, widened, both times"
    for step, rank in ((2, 4), (3, 8), (6, 8)):
        config = json.loads((left(undisturbed.config).weights(step) / "adapter_config.json").read_text())
        assert config["r"] == rank
    assert words[6].metrics["training/learning_rate"] == pytest.approx(5e-4)
    assert words[4].metrics["training/num_groups"] == 2
    assert words[3].metrics["training/global_step"] == 3
    assert left(undisturbed.config).checkpoints() == [2, STEPS], "the best one and the last"


def lives(log: Path) -> list[str]:
    """The part of the log that each process wrote after it was loaded."""
    return log.read_text().split('"event": "loaded"')[1:]


@pytest.mark.long
async def test_a_learner_killed_mid_remedy_ends_as_an_undisturbed_one(
    tmp_path: Path, model: Path, undisturbed: Undisturbed, left: Callable[..., Any]
) -> None:
    """It is killed before the remedy, during it, and after it was announced but before it is durable."""
    config = rig.job(tmp_path, model, lora=LORA, algorithm={"loss": "cispo"}, checkpoints=CHECKPOINTS)
    served = rig.ScriptedCoordinator(batches())
    async with served.serving() as url:
        for step, within in ((2, False), (2, True), (3, False), (4, True), (5, False)):
            async with rig.learner(config, tmp_path, url) as process:
                before = len(lives(process.log))
                await rig.reached(served, step)
                while within and '"event": "layout"' not in "".join(lives(process.log)[before:]):
                    await asyncio.sleep(0.01)  # until it has built its engine a second time
                process.kill()
                assert await process.exit() in (-signal.SIGKILL, 0)
        async with rig.learner(config, tmp_path, url) as process:
            assert await process.exit() == 0, process.log.read_text()[-4000:]
    history = {report.step: report for report in left(config).reports()}
    for report in served.reports:
        expected = undisturbed.words[report.step]
        assert report.weights.files == expected.weights.files, f"step {report.step} came to something else"
        assert report.in_force == history[report.step].in_force == expected.in_force
        assert (report.groups, report.restored) == (expected.groups, expected.restored)
    assert left(config).latest == STEPS
    assert len({report.version.incarnation for report in served.reports}) > 1, "no step was taken anew"
