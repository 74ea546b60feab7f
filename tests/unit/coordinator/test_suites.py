"""Suites in an evaluation: their samples come after the rows. Also covers what the preflight refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evaluation_rig import EvalJob, spec

from headway_api.exits import JobError
from headway_api.spec.suite import Suite, field_in_suite
from headway_api.store import FileStore
from headway_coordinator.bounds import LOST_LIMIT
from headway_coordinator.dataset import position_of
from headway_coordinator.episode import Task
from headway_coordinator.evaluation import rescore
from headway_coordinator.evaluation.measured import measured
from headway_coordinator.preflight.evaluation import (
    MAX_TASKS,
    EvalRunner,
    check_suites,
    check_tasks,
)
from headway_coordinator.spool import Spool

SUITES = [
    {"name": "sums", "image": "i", "task": "a.py@sums", "limit": 3},
    {"name": "facts", "image": "i", "task": "pkg/facts", "limit": 2, "epochs": 3},
]
ROWS = 4


def job(folder: Path, **changes: Any) -> EvalJob:
    return EvalJob(folder, spec(suites=SUITES, **changes), rows=ROWS)


def suites_of(tasks: list[Task]) -> list[str | None]:
    return [task.suite for task in tasks]


def test_samples_come_after_the_rows() -> None:
    rows = [{"prompt": "a", "kind": "order"}]
    found = measured(spec(suites=SUITES, data={"uri": "s3://b/t.jsonl", "taskColumn": "kind"}), rows)
    assert [(each.suite, each.task, each.size) for each in found] == [
        (None, "order", 2),
        *[("sums", "sums", 1)] * 3,
        *[("facts", "facts", 3)] * 2,
    ]
    assert [each.row for each in found[1:]] == [{"sample": n} for n in (0, 1, 2, 0, 1)]
    assert found[-1].row_id == "facts-1"


async def test_every_candidate_gets_samples_with_the_same_seeds(tmp_path: Path) -> None:
    one = job(tmp_path)
    evaluation = await one.coordinator()
    await evaluation.run([one.unit("base", "tuned", server_set=0, places=1)])
    drawn: dict[str, set[Any]] = {"base": set(), "tuned": set()}
    for task in one.tasks:
        place = position_of(task.group_id), task.index
        drawn[task.group_id.split("-")[1]].add((place, task.environment_seed, task.sampling_seed, task.suite))
    assert drawn["base"] == drawn["tuned"]
    assert len(drawn["base"]) == 2 * ROWS + 3 + 2 * 3
    assert None not in suites_of(one.tasks)[2 * 2 * ROWS :], "the own rows come first"
    state = evaluation.state
    assert (state.groups_done, state.groups_wanted) == (2 * (ROWS + 5), 2 * (ROWS + 5))
    base = state.candidates["base"]
    assert (state.rows_of(base), len(base.own_tries), len(base.all_tries)) == (ROWS, 2 * ROWS, 2 * ROWS + 9)


async def test_a_group_records_its_suite(tmp_path: Path) -> None:
    one = job(tmp_path)
    await (await one.coordinator()).run([one.unit("base", "tuned", server_set=0)])
    groups = Spool(FileStore(), one.layout).evaluated("base")
    assert [group.suite for group in groups] == [*[None] * ROWS, *["sums"] * 3, *["facts"] * 2]


async def test_a_restart_samples_no_sample_twice(tmp_path: Path) -> None:
    one = job(tmp_path)
    spool, kept = Spool(FileStore(), one.layout), f"e-base-{ROWS:06d}"

    def durable() -> set[str]:
        return {group.group_id for name in ("base", "tuned") for group in spool.evaluated(name)}

    def dies(task: Task) -> None:
        if task.suite is not None and kept in durable():
            raise ZeroDivisionError

    one.before = dies
    with pytest.raises(BaseExceptionGroup):
        await (await one.coordinator()).run([one.unit("base", "tuned", server_set=0, places=1)])
    before = durable()
    one.before, one.tasks = lambda task: None, []
    again = await one.coordinator()
    await again.run([one.unit("base", "tuned", server_set=0)])
    assert not before & {task.group_id for task in one.tasks}
    assert again.state.groups_done == again.state.groups_wanted


async def test_added_rows_are_not_mistaken_for_samples(tmp_path: Path) -> None:
    """The job has no digest of its rows, because an older version began it."""
    one = job(tmp_path)
    await (await one.coordinator()).run([one.unit("base", "tuned", server_set=0)])
    for rows in (ROWS + 1, ROWS - 1):
        one.rows = [{"prompt": str(number)} for number in range(rows)]
        one.store.delete([one.layout.rows_digest])
        with pytest.raises(JobError, match="the number of rows has changed") as error:
            await one.coordinator()
        assert error.value.termination.field == "spec.data.uri"


async def test_an_endpoint_whose_samples_all_fail_names_the_suite(tmp_path: Path) -> None:
    many = [SUITES[0] | {"limit": LOST_LIMIT + 1}]
    one = EvalJob(tmp_path, spec(suites=many), rows=ROWS)
    one.fails = lambda task: task.suite is not None and task.group_id.startswith("e-base")
    evaluation = await one.coordinator()
    await evaluation.run([one.unit("base"), one.unit("tuned")])
    base = evaluation.state.candidates["base"]
    assert (base.stage, base.reason) == ("Failed", "SuiteFailing")
    assert base.message is not None
    assert base.message.startswith("spec.suites[sums].task: all episodes of several groups in a row failed")
    assert evaluation.state.candidates["tuned"].stage == "Complete"


@pytest.mark.parametrize("failing", [("base",), ("base", "tuned")])
async def test_a_failed_suite_keeps_its_candidates_rows(tmp_path: Path, failing: tuple[str, ...]) -> None:
    many = [SUITES[0] | {"limit": 2 * LOST_LIMIT}]
    one = EvalJob(tmp_path, spec(suites=many), rows=ROWS)
    one.fails = lambda task: task.suite is not None and task.group_id.split("-")[1] in failing
    evaluation = await one.coordinator()
    await evaluation.run([one.unit("base", "tuned", server_set=0)])
    for name, candidate in evaluation.state.candidates.items():
        stage = ("Failed", "SuiteFailing") if name in failing else ("Complete", None)
        assert (candidate.stage, candidate.reason) == stage
        assert sum(each.scored for each in candidate.own_tries) == 2 * ROWS


async def test_a_stored_run_is_measured_on_its_own_rows_alone(tmp_path: Path) -> None:
    """No server samples for the candidate of a stored run."""
    stored = {"name": "old", "rescore": {"uri": f"file://{tmp_path}", "candidate": "base"}}
    of = spec(suites=SUITES, candidates=[{"name": "base", "model": {"base": "s3://b/m"}}, stored])
    one = EvalJob(tmp_path, of, rows=ROWS)
    evaluation = await one.coordinator()
    await evaluation.run([one.unit("base", server_set=0), one.unit("old")])
    assert evaluation.state.groups_wanted == ROWS + 5 + ROWS
    assert not [task for task in one.tasks if task.suite and task.group_id.startswith("e-old-")]
    assert evaluation.state.candidates["old"].stage == "Complete"


async def test_samples_of_a_stored_run_are_not_scored_again(tmp_path: Path) -> None:
    one = job(tmp_path)
    await (await one.coordinator()).run([one.unit("base", "tuned", server_set=0)])
    [candidate] = spec(
        candidates=[{"name": "old", "rescore": {"uri": one.layout.root, "candidate": "base"}}]
    ).candidates
    assert candidate.rescore is not None
    found = rescore.stored("old", candidate.rescore, one.store)
    assert {position for position, _ in found} == set(range(ROWS))


def test_a_suite_may_not_have_the_name_of_a_task() -> None:
    rows = [{"kind": "order"}, {"kind": "sums"}]
    check_suites(rows, "kind", ["facts"])
    check_suites(rows, None, ["sums"])
    with pytest.raises(JobError) as error:
        check_suites(rows, "kind", ["facts", "sums"])
    termination = error.value.termination
    assert (termination.reason, termination.field) == ("SuiteNameTaken", "spec.suites[sums].name")
    assert "have the task sums in column kind; rename the suite" in termination.message


def test_a_task_named_all_is_refused() -> None:
    check_tasks([{"kind": "sums"}, {"kind": "overall"}], "kind")
    check_tasks([{"kind": "all"}], None)
    with pytest.raises(JobError, match="rename it") as caught:
        check_tasks([{"kind": "sums"}, {"kind": "all"}], "kind")
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("TaskNameTaken", "spec.data.taskColumn")


def test_more_tasks_than_can_be_shown_are_refused() -> None:
    rows = [{"kind": str(number)} for number in range(MAX_TASKS)]
    check_tasks([*rows, *rows], "kind")
    with pytest.raises(JobError, match=f"have {MAX_TASKS + 1} tasks in column kind") as caught:
        check_tasks([*rows, {"kind": "one more"}], "kind")
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("TooManyTasks", "spec.data.taskColumn")


KINDS = [{"prompt": "a", "kind": "refund"}, {"prompt": "b", "kind": "order"}, {"prompt": "c", "kind": "rare"}]


@pytest.mark.parametrize("field", ["taskColumn", "clusterColumn"])
@pytest.mark.parametrize(("column", "row"), [("kind", 3), ("genre", 0)])
def test_a_column_that_a_row_lacks_is_refused_by_name(
    tmp_path: Path, field: str, column: str, row: int
) -> None:
    (tmp_path / "t.json").write_text(json.dumps([*KINDS, {"prompt": "d"}]))
    of = spec(data={"uri": f"file://{tmp_path}/t.json", field: column})
    with pytest.raises(JobError) as caught:
        EvalRunner(of, lambda report: None).rows(FileStore())
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("ColumnMissing", f"spec.data.{field}")
    assert termination.message.startswith(f"row {row} has no '{column}'; columns are prompt")


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("suite.limit", "spec.suites[sums].limit"),
        ("spec.environment.image", "spec.suites[sums].image"),
        ("spec.environment.entrypoint", "spec.suites[sums].image"),
        ("spec.environment.sandbox.resources", "spec.suites[sums].sandbox.resources"),
        (None, "spec.suites[sums].image"),
    ],
)
def test_a_fault_of_its_sandbox_names_the_suites_own_field(field: str | None, meant: str) -> None:
    assert field_in_suite("sums", field) == meant


def test_a_suites_sandbox_receives_its_task_and_arguments() -> None:
    suite = Suite.model_validate(SUITES[0] | {"args": {"maximum": 3}, "sandbox": {"deadlineSeconds": 77}})
    made = suite.environment
    assert made.config == {"task": "a.py@sums", "args": {"maximum": 3}}
    assert made.sandbox.deadline_seconds == 77
    assert suite.last_row == {"sample": 2, "check": True}
