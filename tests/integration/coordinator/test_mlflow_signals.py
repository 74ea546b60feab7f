"""A real MLflow server has the signals' states after a job's last step and last validation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flat_job import STEPS, config, run
from mlflow import MlflowClient
from mlflow_server import mlflow_server

from headway_api.config import JobConfig
from headway_api.signals import STATE_VALUES, SignalName
from headway_coordinator.coordinator import Coordinator

pytestmark = [pytest.mark.integration, pytest.mark.ci]
BY_STEP, BY_VALIDATION = SignalName.NOTHING_TO_TRAIN, SignalName.REWARD_FLAT


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of this module's own tracking server."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


def validating(folder: Path, tracking: dict[str, Any]) -> JobConfig:
    """A job that validates only at its last step, the first step at which its reward counts as flat."""
    return config(folder, evaluation={"everySteps": STEPS, "atStart": False}, tracking=tracking)


@pytest.mark.parametrize(
    ("first", "tracks"),
    [(3, True), (STEPS, True), (STEPS, False)],
    ids=["a restart between steps", "a restart at the end", "a death before anything was sent"],
)
def test_mlflow_has_what_the_last_validation_says(
    tmp_path: Path, server: str, request: pytest.FixtureRequest, first: int, tracks: bool
) -> None:
    experiment = request.node.callspec.id
    tracking = {"mlflow": {"uri": server, "experiment": experiment}}
    job = validating(tmp_path, tracking)
    before = job if tracks else validating(tmp_path, {})
    status = asyncio.run(run(tmp_path, before, None, first)).status()
    coordinator = asyncio.run(run(tmp_path, job, status, None))
    states = scraped(coordinator)
    assert (states[BY_STEP], states[BY_VALIDATION]) == (STATE_VALUES["Raised"], STATE_VALUES["Raised"])
    assert logged(server, experiment, STEPS) == states
    if tracks:
        assert BY_VALIDATION not in logged(server, experiment, STEPS - 1)


def scraped(coordinator: Coordinator) -> dict[SignalName, float]:
    """The states of signals on the coordinator's metrics page."""
    text = coordinator._exporter.text().decode()
    found = re.findall(r'^headway_signal_state\{.*signal="(\w+)".*\} ([\d.]+)$', text, re.MULTILINE)
    return {SignalName(name): float(state) for name, state in found}


def logged(server: str, experiment: str, step: int) -> dict[SignalName, float]:
    """The states that the run has for a step. Asserts that each was logged once."""
    client = MlflowClient(tracking_uri=server)
    known = client.get_experiment_by_name(experiment)
    assert known is not None
    [run] = client.search_runs([known.experiment_id])
    found: dict[SignalName, float] = {}
    for name in SignalName:
        points = client.get_metric_history(run.info.run_id, f"signal/state/{name}")
        values = [point.value for point in points if point.step == step]
        assert len(values) < 2, f"{name} was logged twice"
        if values:
            found[name] = values[0]
    return found
