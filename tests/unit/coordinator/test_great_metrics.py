"""A learner's metrics of any size. The record bounds them, so everything that shows them still works."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import job_rig
import pytest
from faulty_servers import Scripted, broker, sandbox, serving, weights_slot
from job_rig import publishing
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job, speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_api import bounds
from headway_api.metrics import FAMILIES
from headway_api.records import GroupRecord, StepReport
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint

LEARNERS = [known.name for known in FAMILIES if known.name.startswith(("training/", "rollout/advantage/"))]


def reported(**changes: Any) -> StepReport:
    fields = json.loads(job_rig.report(1).model_dump_json()) | changes
    return StepReport.model_validate_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("value", "taken"),
    [(1e200, 1e12), (-1e200, -1e12), (10**400, 1e12), (1e12, 1e12), (-3.5, -3.5), (7, 7), (5e-324, 5e-324)],
)
def test_a_metric_beyond_the_limit_counts_as_the_limit(value: float, taken: float) -> None:
    assert reported(metrics={"training/loss": value}).metrics == {"training/loss": taken}
    assert job_rig.report(1).model_copy() == reported()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": {f"a/{n}": 1.0 for n in range(bounds.METRICS + 1)}}, "more than 1000 numbers"),
        ({"metrics": {"a" * (bounds.NAME + 1): 1.0}}, "a name has more than 200 characters"),
        ({"metrics": {"a": float("nan")}}, "finite number"),
        ({"metrics": {"a": float("inf")}}, "finite number"),
        ({"metrics": {"a": "much"}}, "valid number"),
        ({"metrics": [1.0]}, "be an object"),
        ({"train_tokens": {"t0-000000": -1}}, "greater than or equal to 0"),
        ({"train_tokens": {"t0-000000": 10**400}}, "less than or equal to 1000000000000"),
    ],
)
def test_a_report_that_no_step_could_make_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        reported(**changes)


class Great(ScriptedLearner):
    """A learner that reports and stores metrics beyond every bound."""

    def commit(self, step: int, groups: list[GroupRecord], **fields: Any) -> StepReport:
        report = super().commit(step, groups, **fields)
        metrics = {name: (-1) ** (step + n) * 1e200 for n, name in enumerate(LEARNERS)}
        return report.model_copy(update={"metrics": report.metrics | metrics})


async def test_a_job_whose_every_metric_is_1e200_completes(tmp_path: Path) -> None:
    """Status, metrics, signals and report are still produced."""
    statuses: list[Any] = []
    rewards = iter(range(10**6))

    def judged(_: Any) -> Any:
        reward = float(next(rewards) % 2)
        return {"reward": reward, "score": reward}

    box = sandbox()
    box.answers = {**box.answers, "POST /finish": judged}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serving(speaking_engine(tmp_path)))
        slots = Scripted({**weights_slot("?slot=validation"), **weights_slot()})
        agent = await stack.enter_async_context(serving(slots))
        sandboxes = await stack.enter_async_context(serving(box))
        leases = await stack.enter_async_context(serving(broker(sandboxes.url)))

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine.url, agent.url)}

        store, port = FileStore(), free_port()
        coordinator = Coordinator(
            job(tmp_path, schedule={"maxSteps": 4, "maxEpochs": 10}),
            KEYS,
            store,
            tmp_path / "cache",
            statuses.append,
            broker_url=leases.url,
            discover=discover,
            port=port,
        )
        publish = publishing(store, coordinator.layout)
        learner = Great(f"http://127.0.0.1:{port}", TO_COORDINATOR, store, coordinator.layout, publish)
        async with asyncio.timeout(100):
            running = asyncio.create_task(coordinator.run())
            await until_ready(running, port)
            await asyncio.gather(learner.run(), running)
    shown = {
        sample.value
        for metric in text_string_to_metric_families(coordinator._exporter.text().decode())
        for sample in metric.samples
        if sample.name == "headway_training_loss"
    }
    assert shown == {1e12} or shown == {-1e12}
    assert statuses
    json.dumps(statuses, allow_nan=False, default=str)
    assert store.get(coordinator.layout.report)
