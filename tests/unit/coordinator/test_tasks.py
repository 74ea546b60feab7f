"""Metrics by task, for validations and batches, in status and report, and after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from episodes import a_group
from job_rig import Job, spec
from preflight_bench import Bench, write_inputs
from preflight_bench import spec as preflight_spec

from headway_analysis.measures import tasks
from headway_api.exits import JobError
from headway_api.metrics import family
from headway_api.prices import DEFAULT
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator import projections
from headway_coordinator.preflight import checks


def tasked(**data: object) -> RLTrainingJobSpec:
    content = spec().as_object()
    content["data"]["train"]["taskColumn"] = "task"
    content["data"] |= data
    return RLTrainingJobSpec.model_validate(content)


def test_the_smallest_of_too_many_tasks_are_merged() -> None:
    rows = [f"t{n:02d}" for n in range(40) for _ in range(40 - n)]
    found = tasks.bounded(rows)
    assert sorted(set(found)) == [*(["other"]), *(f"t{n:02d}" for n in range(tasks.MAX_TASKS))]
    assert found.count("other") == sum(40 - n for n in range(tasks.MAX_TASKS, 40))
    assert tasks.bounded(["b", "a", "b"]) == ["b", "a", "b"]


def test_a_task_has_the_metrics_of_its_own_rows() -> None:
    groups = [
        a_group(f"v000000-{n:06d}", values).model_copy(update={"row": n})
        for n, values in enumerate([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    ]
    found = tasks.summarize(groups, ["a", "b", "a"], 1.0)
    assert found["a"]["reward"] == 0.75
    assert found["a"]["rows"] == 2
    assert found["b"]["reward"] == 0.0
    shown = tasks.shown("val", found) | tasks.batch(groups, ["a", "b", "a"])
    assert shown["val/task_reward/a"] == shown["rollout/task_reward/a"] == 0.75
    assert shown["rollout/task_groups/b"] == 1
    assert [family(name).name for name in shown], "each has a family"


async def test_validations_are_reported_by_task_also_after_a_restart(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.data.tasks["validation"] = ["refund", "chat", "refund"]
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        before = training.state.evaluations
    first = before[4].tasks
    assert first is not None
    assert {name: found["rows"] for name, found in first.items()} == {"chat": 1, "refund": 2}
    mean = (2 * first["refund"]["reward"] + first["chat"]["reward"]) / 3
    assert mean == pytest.approx(before[4].reward)
    shown: dict[int, dict[str, float]] = {}
    job.on_validation = shown.__setitem__
    async with job.coordinator() as (training, _, running):
        assert training.state.evaluations == before
        assert shown[4]["val/task_reward/chat"] == first["chat"]["reward"]
        found = projections.validation(projections.curve(training.state))
        report = projections.report("job", job.spec, job.layout, training.state, {}, DEFAULT, 0)
        await running
    assert found is not None
    assert [task.name for task in found.tasks] == ["chat", "refund"]
    assert json.loads(json.dumps(report))["curve"][2]["tasks"] == first


async def test_weighted_tasks_train_in_proportion_across_a_restart(tmp_path: Path) -> None:
    job = Job(tmp_path, tasked(taskWeights={"b": 4}))
    job.data.train = [{"prompt": str(n), "task": "b" if n == 4 else "a"} for n in range(5)]
    rows: list[int] = []
    for _ in range(2):
        async with job.coordinator() as (_, learner, running):
            await learner.run(steps=2)
            rows += [group.row for batch in learner.batches for group in batch.groups]
            running.cancel()
    assert len(rows) == 8
    assert rows[:5].count(4) == 4, "four of the five groups of an epoch"
    undisturbed = Job(tmp_path / "other", tasked(taskWeights={"b": 4}))
    undisturbed.data.train = job.data.train
    async with undisturbed.coordinator() as (_, learner, _):
        await learner.run(steps=4)
        assert [group.row for batch in learner.batches for group in batch.groups] == rows


def test_weights_need_the_column_that_names_tasks() -> None:
    content = spec().as_object()
    content["data"]["taskWeights"] = {"a": 1}
    with pytest.raises(ValueError, match=r"spec.data.taskWeights needs spec.data.train.taskColumn"):
        RLTrainingJobSpec.model_validate(content)


def with_tasks(folder: Path, weights: dict[str, float]) -> Bench:
    for name, named in (("train", "ab"), ("validation", "aa")):
        rows = [{"prompt": f"{name} {n}", "task": task} for n, task in enumerate(named)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = preflight_spec(folder).as_object()["data"]
    for name in ("train", "validation"):
        data[name]["taskColumn"] = "task"
    return Bench(preflight_spec(folder, data=data | {"taskWeights": weights}))


def test_the_preflight_reports_the_tasks_and_their_shares(tmp_path: Path) -> None:
    bench = with_tasks(write_inputs(tmp_path), {"b": 3})
    ready = bench.basics(tmp_path)
    assert ready.data.tasks == {"train": ["a", "b"], "validation": ["a", "a"]}
    messages = {check.name: check.message for check in bench.runner.results}
    assert messages["TrainTasks"] == "2 tasks, with rows: a (1), b (1)"
    assert messages["TaskWeights"] == "shares: a 25.0%, b 75.0%"


def test_row_without_task_and_task_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no training row has the task c"):
        with_tasks(write_inputs(tmp_path), {"c": 1}).basics(tmp_path)
    bench = with_tasks(write_inputs(tmp_path), {})
    (tmp_path / "train.jsonl").write_text('{"prompt": "x"}\n{"prompt": "y"}\n')
    with pytest.raises(JobError, match="row 0 has no 'task'"):
        bench.basics(tmp_path)
    assert bench.failed == [("TrainTasks", "spec.data.train.taskColumn")]


def test_task_named_all_is_refused_in_training_and_evaluation() -> None:
    with pytest.raises(JobError, match="means every row; rename it") as caught:
        checks.tasks([{"kind": "sums"}, {"kind": "all"}], "kind", "spec.data.validation")
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("TaskNameTaken", "spec.data.validation.taskColumn")
