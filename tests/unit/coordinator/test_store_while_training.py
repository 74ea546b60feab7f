"""A job whose artifact store fails during training: what waits, what reports it, how the job ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from botocore.exceptions import EndpointConnectionError
from job_rig import Job, spec

from headway_analysis.billing.segments import total
from headway_api import store_unavailable
from headway_api.exits import JobError
from headway_api.sandbox_api import PoolState
from headway_api.store import FileStore
from headway_api.store_unavailable import Patience, Patient, store_explained
from headway_coordinator import projections, stall
from headway_coordinator.engines.router import Router
from headway_coordinator.stall import blocker
from headway_coordinator.training import Training

POOL = PoolState(ready=0, starting=0, leased=0)


class Leaving(FileStore):
    """A store whose writes of new objects fail while `unavailable` is set."""

    unavailable = False

    def put_new(self, uri: str, data: bytes) -> bool:
        if self.unavailable:
            raise EndpointConnectionError(endpoint_url="http://store")
        return super().put_new(uri, data)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Leaving:
    monkeypatch.setattr(store_unavailable, "PAUSE", 0.01)
    monkeypatch.setattr(stall, "STORE_SECONDS", 0.2)
    return Leaving()


def job_over(store: Leaving, folder: Path, patience: float) -> Job:
    job = Job(folder, spec(maxStepsOffPolicy=1))
    job.store = cast(FileStore, Patient(store, Patience(seconds=patience)))
    return job


def busy_seconds(training: Training) -> float:
    """The metric `store/busy_seconds`."""
    (found,) = (
        sample.value
        for sample in projections.samples({}, training, None, 0.0, {}, [])
        if sample.name == "store/busy_seconds"
    )
    return found


async def test_wait_for_the_store_is_named_and_ends_on_its_return(tmp_path: Path, store: Leaving) -> None:
    job = job_over(store, tmp_path, patience=60)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=1)
        store.unavailable = True
        more = asyncio.create_task(learner.run())
        while "artifact store" not in blocker(training, Router(), POOL, 600.0).words:
            await asyncio.sleep(0.01)
        assert not running.done()
        assert busy_seconds(training) > 0.2
        store.unavailable = False
        await more
        await running
    assert busy_seconds(training) == 0
    assert training.state.finished == "MaxSteps"
    assert total(job.ledger.days) == job.recounted()
    assert len({task.episode_id for task in job.tasks}) == len(job.tasks)


async def test_a_job_ends_with_store_unavailable_after_the_wait(tmp_path: Path, store: Leaving) -> None:
    job = job_over(store, tmp_path, patience=0.3)
    async with job.coordinator() as (_, learner, running):
        await learner.run(steps=1)
        store.unavailable = True
        with pytest.raises(JobError) as ended, store_explained():
            await running
    assert ended.value.termination.reason == "StoreUnavailable"
