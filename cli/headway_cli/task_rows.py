"""Finds the rows of a run's dataset that have a task, by the column that the job's `taskColumn` names."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from headway_api.mistake_words import message
from headway_api.records import Purpose
from headway_api.rows import check_column, load, tasks_of
from headway_api.spec.data import Dataset
from headway_cli import near_names
from headway_cli.episodes import Task
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun, readable

SPLITS: Final = {
    Purpose.TRAIN: "train",
    Purpose.PREFLIGHT: "train",
    Purpose.VALIDATION: "validation",
    Purpose.EVALUATION: "test",
}
"""Split of a training job's data whose rows are played for each purpose."""
MAX_NAMED: Final = 10
"""Maximum tasks that an error lists if no task has a similar name."""


def task(run: StoredRun, purpose: Purpose, name: str, option: str = "--task") -> Task:
    """The task of a name, with its rows in the dataset that episodes of `purpose` are played on.

    Args:
        run: the run.
        purpose: purpose of the episodes.
        name: a value of the data's `taskColumn`, or the name of a suite.
        option: option or argument that has the name, for errors.

    Raises:
        RunNotFoundError: the job names no `taskColumn`, its dataset cannot be read, or has no such task.
    """
    suites = [str(each.get("name")) for each in run.spec.get("suites") or ()]
    if name in suites:
        return Task(name)
    block, dataset = _dataset(run, purpose, option)
    if dataset is None or dataset.task_column is None:
        known = f"; write a suite: {', '.join(suites)}" if suites else f", so leave {option} out"
        raise RunNotFoundError(f"{option} {name}: {block}.taskColumn of {run.name} names no tasks{known}")
    with readable(dataset.uri):
        rows = load(dataset, run.store, block)
        check_column(rows, dataset.task_column, f"{block}.taskColumn")
    tasks = tasks_of(rows, dataset.task_column) or []
    if name not in tasks:
        there = [*dict.fromkeys(tasks), *suites]
        hint = near_names.question(name, there) or f"there are {', '.join(sorted(there)[:MAX_NAMED])}"
        raise RunNotFoundError(
            f"{option} {name}: {dataset.uri} has no such task in column {dataset.task_column}; {hint}"
        )
    return Task(name, frozenset(number for number, each in enumerate(tasks) if each == name))


def _dataset(run: StoredRun, purpose: Purpose, option: str) -> tuple[str, Dataset | None]:
    """The path of the block of the spec that names the dataset, and the dataset; None if it is not set."""
    if not run.job:
        raise RunNotFoundError(
            f"{run.layout.root} has no job.json, which names the tasks' column: leave {option} out"
        )
    data: dict[str, Any] = run.spec.get("data") or {}
    block = "spec.data" if run.evaluates else f"spec.data.{SPLITS[purpose]}"
    found = data if run.evaluates else data.get(SPLITS[purpose])
    if not found:
        return block, None
    try:
        return block, Dataset.model_validate(found)
    except ValidationError as error:
        raise RunNotFoundError(
            f"{block} of {run.name} cannot be read: {message(error.errors()[0])}"
        ) from error
