"""Base models with random weights, and a reader of a learner's artifacts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_model import write_model, write_stretched_model

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.records import StepReport


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="session")
def stretched_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stretched_model(tmp_path_factory.mktemp("stretched"))


class Left:
    """The artifacts of one job, read from its local folder."""

    def __init__(self, config: JobConfig) -> None:
        self._layout = Layout(config.spec.output.uri, config.namespace, config.name, config.uid)

    @property
    def latest(self) -> int:
        return int(json.loads(self._path(self._layout.latest).read_text())["step"])

    def report(self, step: int) -> StepReport:
        """The report of a step, as the history keeps it."""
        return StepReport.model_validate_json(self._path(self._layout.step_history(step)).read_text())

    def reports(self) -> list[StepReport]:
        return [self.report(step) for step in range(self.latest + 1)]

    def checkpoint_record(self, step: int) -> tuple[bytes, Layout]:
        """The record that seals a checkpoint, and the layout of its job."""
        return self._path(self._layout.checkpoint_report(step, 0)).read_bytes(), self._layout

    def weights(self, step: int) -> Path:
        return self._path(self._layout.weights(step))

    def point_latest_to(self, step: int) -> None:
        self._path(self._layout.latest).write_text(json.dumps({"step": step}))

    def checkpoints(self) -> list[int]:
        folders = self._path(self._layout.checkpoints).iterdir()
        return sorted(
            int(folder.name) for folder in folders if any(file.is_file() for file in folder.rglob("*"))
        )

    def _path(self, uri: str) -> Path:
        return Path(uri.removeprefix("file://"))


@pytest.fixture
def left() -> Callable[[JobConfig], Left]:
    return Left
