"""The real learner process against a scripted coordinator: DeepSpeed, torch and the store are real."""

from __future__ import annotations

import json
from pathlib import Path

import learner_rig as rig
import pytest
from tiny_model import write_model

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.records import StepReport

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"))


def layout(config: JobConfig) -> Layout:
    return Layout(config.spec.output.uri, config.namespace, config.name, config.uid)


def read(uri: str) -> str:
    return Path(uri.removeprefix("file://")).read_text()


async def test_five_steps_to_the_end(tmp_path: Path, model: Path) -> None:
    config = rig.job(tmp_path, model, lora={"rank": 4, "alpha": 8})
    coordinator = rig.ScriptedCoordinator([rig.batch(n) for n in range(1, 6)])
    async with coordinator.serving() as url, rig.learner(config, tmp_path, url) as process:
        assert await process.exit() == 0, process.log.read_text()
    assert [report.step for report in coordinator.reports] == [0, 1, 2, 3, 4, 5]
    assert json.loads(read(layout(config).latest)) == {"step": 5}
    for report in coordinator.reports:
        assert StepReport.model_validate_json(read(layout(config).step_history(report.step))) == report
