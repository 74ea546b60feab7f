"""The weights that the real learner publishes in bfloat16, step after step and after a restart."""

from __future__ import annotations

from pathlib import Path

import learner_rig as rig
import pytest

from headway_api.records import StepReport, TensorDigests
from headway_api.store import FileStore
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE, MODEL_FILE
from headway_rollout.weights import chain
from headway_trainer.publish.codec import tensor_digests

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

STEPS = 5


def whole(report: StepReport, folder: Path) -> Path:
    """The tensors that a server assembles from a report's manifest."""
    chain.fetch(FileStore(), report.weights, folder, None)
    return folder / MODEL_FILE


async def test_steps_are_deltas_and_a_restart_begins_again(tmp_path: Path, model: Path) -> None:
    config = rig.job(tmp_path, model, dtype="bfloat16", optimizer={"learningRate": 1e-5})
    served = rig.ScriptedCoordinator([rig.batch(step) for step in range(1, STEPS + 1)])
    async with served.serving() as url:
        async with rig.learner(config, tmp_path, url) as process:
            await rig.reached(served, 2)
            served.hold = 10**6
            await rig.reached(served, 2, durable=True)
            process.kill()
            await process.exit()
        served.hold = 0
        async with rig.learner(config, tmp_path, url) as process:
            assert await process.exit() == 0, process.log.read_text()[-4000:]
    kinds = {report.step: report.weights.kind for report in served.reports}
    assert [kinds[step] for step in range(STEPS + 1)] == ["full", "delta", "delta", "full", "delta", "delta"]
    check_published({report.step: report for report in served.reports}, tmp_path)


def check_published(reports: dict[int, StepReport], scratch: Path) -> None:
    """Check that each manifest leads to the tensors of its digests, and check the files of each folder."""
    for report in reports.values():
        folder = Path(report.weights.uri.removeprefix("file://"))
        made = whole(report, scratch / "made" / str(report.step))
        digests = TensorDigests.model_validate_json((folder / DIGESTS_FILE).read_bytes())
        assert tensor_digests(made) == digests
        if report.step == STEPS:
            assert (folder / MODEL_FILE).read_bytes() == made.read_bytes(), "the last one is there to serve"
        elif report.weights.kind == "delta":
            assert {file.name for file in folder.iterdir()} == {DELTA_FILE, DIGESTS_FILE}


async def test_the_base_of_a_kept_delta_is_kept(tmp_path: Path, model: Path) -> None:
    config = rig.job(tmp_path, model, dtype="bfloat16", optimizer={"learningRate": 1e-5})
    steps = 9
    served = rig.ScriptedCoordinator([rig.batch(step) for step in range(1, steps + 1)])
    async with served.serving() as url, rig.learner(config, tmp_path, url) as process:
        assert await process.exit() == 0, process.log.read_text()[-4000:]
    last = served.reports[-1]
    assert (last.step, last.weights.kind, len(last.weights.chain)) == (steps, "delta", steps)
    digests = TensorDigests.model_validate_json(
        (Path(last.weights.uri.removeprefix("file://")) / DIGESTS_FILE).read_bytes()
    )
    assert tensor_digests(whole(last, tmp_path / "made")) == digests
