"""The whole coordinator, its status and its successor, while a person changes a job by an annotation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty_servers import Scripted, broker, sandbox, serving, weights_slot
from job_rig import publishing
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job, speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_api.status import RLTrainingJobStatus
from headway_api.store import FileStore
from headway_coordinator import status as status_writer
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.metrics.steps import StepMetrics
from headway_coordinator.spool import Replay, Spool
from headway_coordinator.status import JobUpdate


def weight_agent() -> Scripted:
    held: dict[str, Any] = {"version": None, "ready": False}

    def take(body: Any) -> Any:
        held.update(version=body["version"], ready=True, canary_error=1e-6)
        return held

    of_policy = {"GET /v1/weights": lambda body: held, "POST /v1/weights": take}
    return Scripted({**weights_slot("?slot=validation"), **of_policy})


class Rig:
    """A job with scripted servers. Its annotation is `order`, and a list stands for the API server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FileStore()
        self.order: str | None = None
        self.status: list[dict[str, Any]] = []
        self.config = job(
            folder,
            schedule={"maxSteps": 8, "maxEpochs": 10},
            evaluation={"passK": [1], "everySteps": 2},
            algorithm={"batchSize": 2, "groupSize": 4, "maxStepsOffPolicy": 1},
        )

    def sink(self, status: dict[str, Any]) -> JobUpdate:
        self.status.append(status)
        return JobUpdate(replicas=1, remedy=self.order)

    @asynccontextmanager
    async def coordinator(self) -> AsyncIterator[tuple[Coordinator, ScriptedLearner, asyncio.Task[None]]]:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(serving(speaking_engine(self.folder)))
            agent = await stack.enter_async_context(serving(weight_agent()))
            box = await stack.enter_async_context(serving(sandbox()))
            leases = await stack.enter_async_context(serving(broker(box.url)))

            async def discover() -> set[Endpoint]:
                return {Endpoint(engine.url, agent.url)}

            previous = RLTrainingJobStatus.model_validate(self.status[-1]) if self.status else None
            port = free_port()
            coordinator = Coordinator(
                self.config,
                KEYS,
                self.store,
                self.folder / "cache",
                self.sink,
                previous=previous,
                broker_url=leases.url,
                discover=discover,
                port=port,
            )
            self.newest = coordinator
            publish = publishing(self.store, coordinator.layout)
            url = f"http://127.0.0.1:{port}"
            learner = ScriptedLearner(url, TO_COORDINATOR, self.store, coordinator.layout, publish)
            running = asyncio.create_task(coordinator.run())
            try:
                await until_ready(running, port)
                yield coordinator, learner, running
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def until(self, state: str) -> dict[str, Any]:
        """Wait until the order is in this state. Returns the status."""
        async with asyncio.timeout(30):
            while True:
                found = self.status[-1].get("remedyOrder", {}) if self.status else {}
                if (found.get("order"), found.get("state")) == (self.order, state):
                    return self.status[-1]
                await asyncio.sleep(0.01)


async def test_a_person_changes_a_running_job_by_an_annotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "LEAST_SECONDS", 0.01)
    monkeypatch.setattr(status_writer, "REFRESH_SECONDS", 0.05)
    rig = Rig(tmp_path)
    async with rig.coordinator() as (_, learner, _):
        await learner.run(steps=2)
        rig.order = "OnPolicy"
        await rig.until("Waiting")
        await learner.run(steps=1)
        status = await rig.until("Taken")
        assert status["remedyOrder"] == {"order": "OnPolicy", "state": "Taken", "step": 3}
        [change] = status["remediations"]
        assert (change["state"], change["step"], change["order"]) == ("Watching", 3, "OnPolicy")
        assert change["action"] == "maxStepsOffPolicy 1 -> 0"
        assert status["algorithm"]["maxStepsOffPolicy"] == 0
    rig.order = "SmallerGroups"
    before = len(rig.status)
    async with rig.coordinator() as (coordinator, learner, running):
        bounds = [status["algorithm"]["maxStepsOffPolicy"] for status in rig.status[before:]]
        assert set(bounds) <= {0}, "a successor does not show the spec's own meanwhile"
        await rig.until("Waiting")
        await learner.run(steps=2)
        assert len(learner.batches[1].groups) == 2
        rig.order = "Nonsense"
        await rig.until("Waiting")
        await asyncio.gather(learner.run(), running)
        assert 'headway_remedy_changes{job_name="job",namespace="ns",state="Watching"} 1.0' in (
            coordinator._exporter.text().decode()
        )
    last = rig.status[-1]
    assert [(c["number"], c["step"], c["remedy"], c["state"]) for c in last["remediations"]] == [
        (1, 3, "OnPolicy", "Replaced"),
        (2, 4, "SmallerGroups", "Watching"),
    ]
    assert last["remedyOrder"]["state"] == "Refused"
    assert last["progress"]["step"] == 8
    assert (last["algorithm"]["groupSize"], last["algorithm"]["maxStepsOffPolicy"]) == (2, 0)
    report = json.loads(rig.store.get(coordinator.layout.report))
    assert [change["remedy"] for change in report["remedies"]] == ["OnPolicy", "SmallerGroups"]
    assert report["algorithm"]["groupSize"] == 2
    assert RLTrainingJobStatus.model_validate(last).reward is not None


async def test_changes_are_counted_once_earlier_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, recall, metrics = (
        'headway_remedy_changes{job_name="job",namespace="ns",state=',
        StepMetrics.restore,
        [],
    )

    def recalling(shown: StepMetrics, spool: Spool, replay: Replay) -> Any:
        metrics.append(rig.newest._exporter.text().decode())
        return recall(shown, spool, replay)

    monkeypatch.setattr(status_writer, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(StepMetrics, "restore", recalling)
    rig = Rig(tmp_path)
    rig.order = "OnPolicy"
    async with rig.coordinator() as (_, learner, _):
        await rig.until("Waiting")
        await learner.run(steps=2)
    async with rig.coordinator() as (coordinator, _, _):
        assert len(metrics) == 2, "each has read what its predecessor left"
        assert counted not in metrics[1]
        assert f'{counted}"Watching"}} 1.0' in coordinator._exporter.text().decode()
