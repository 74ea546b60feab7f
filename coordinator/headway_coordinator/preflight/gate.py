"""Checks, before a token is sampled, that a gate can be judged: the tasks, costs and tools that it names.

tasks    are known from the rows and the suites
costs    are known only if every class of a candidate's usage has a price
tools    are those of the first row; an agent with its own loop may have others
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headway_analysis.measures import names
from headway_analysis.measures.candidate import ALL
from headway_api import prices
from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.records import Purpose, UsageClass
from headway_api.rows import Row, tasks_of
from headway_api.sandbox_api import ResetReply
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.gate import OF_A_TOOL
from headway_coordinator.ledger.events import classes_of

LISTED: Final = 24
"""The maximum number of names that a message lists."""
COST: Final = "cost"
"""The name of every measure that needs prices begins with this."""


def check_tasks(spec: RLEvalJobSpec, rows: Sequence[Row]) -> None:
    """Check that every task that the gate names has rows, or is a suite.

    Args:
        spec: the job's spec.
        rows: the rows that are measured.

    Raises:
        JobError: `GateTaskUnknown`.
    """
    if spec.gate is None:
        return
    column = spec.data.task_column
    known = [ALL, *(suite.name for suite in spec.suites), *sorted({*(tasks_of(rows, column) or ())})]
    bounds = enumerate(spec.gate.no_worse)
    asked = {"": spec.gate.task} | {f"noWorse[{number}].": bound.task for number, bound in bounds}
    for block, task in asked.items():
        if task is not None and task not in known:
            none = "" if column else ", or give spec.data.taskColumn: without it no row has a task"
            text = f"no measured task is called {task}; write one of {_listed(known)}{none}"
            raise JobError("GateTaskUnknown", text, field=f"spec.gate.{block}task")


def is_about_cost(spec: RLEvalJobSpec) -> bool:
    """Whether the gate names a measure that needs prices."""
    return any(metric.startswith(COST) for _, metric, _ in _asked(spec))


def check_prices(job: EvalConfig, book: prices.DatedPrices) -> str:
    """Check that the classes of usage of each judged candidate have a price. Returns the check's message.

    Raises:
        JobError: `GateCostUnknown`.
    """
    spec = job.spec
    field = next(field for field, metric, _ in _asked(spec) if metric.startswith(COST))
    judged = _judged(spec)
    for name in judged:
        missing = [each for each in classes(job, name) if book.of_one(each) is None]
        if missing:
            text = (
                f"the cost of candidate {name} would be unknown, because the price book has no price for "
                f"{', '.join(missing)}. Add these prices (docs/prices.md), or name another metric"
            )
            raise JobError("GateCostUnknown", text, field=field)
    return f"every class of usage of {', '.join(judged)} has a price"


def classes(job: EvalConfig, name: str) -> Iterator[str]:
    """The classes of a candidate's usage, named as in the bill. Empty for an unresolved candidate."""
    resolved = next((each for each in job.candidates if each.name == name), None)
    asked = job.spec.entry_of(name)
    if resolved is None:
        return
    yield UsageClass.SANDBOX_SECONDS
    if asked.endpoint is not None:
        for each in (UsageClass.ENDPOINT_PROMPT, UsageClass.ENDPOINT_SAMPLE):
            yield prices.of(each, asked.endpoint.model)
    elif asked.rescore is None:
        for each in classes_of(Purpose.EVALUATION):
            yield prices.of(each, job.priced_as(resolved))


def check_tools(spec: RLEvalJobSpec, first: ResetReply) -> str:
    """Check that the environment has each tool whose calls the gate judges. Returns the check's message.

    Args:
        spec: the job's spec.
        first: how the environment begins the first row.

    Raises:
        JobError: `GateToolUnknown`.
    """
    tools = [str(tool["function"]["name"]) for tool in first.tools]
    known = {OF_A_TOOL + names.tool(name) for name in tools}
    for field, metric in _of_known_tools(spec):
        if metric not in known:
            have = _listed(tools) or "no tool"
            text = (
                f"the environment has no tool {metric.removeprefix(OF_A_TOOL)} in the first row; it has "
                f"{have}. Name one of these, or move a row that has the tool to the beginning"
            )
            raise JobError("GateToolUnknown", text, field=field)
    return "the gate's metrics can be reported"


def counted_tools(spec: RLEvalJobSpec) -> set[str]:
    """The tools that the gate's conditions name and `check_tools` has found, as measures name them."""
    return {metric.removeprefix(OF_A_TOOL) for _, metric in _of_known_tools(spec)}


def _of_known_tools(spec: RLEvalJobSpec) -> Iterator[tuple[str, str]]:
    """The field and the metric of each condition on a tool that can be checked before the run.

    Suites, agents with their own loop, and stored episodes may have other tools than the environment.
    """
    if not spec.agent.is_builtin or any(spec.entry_of(name).rescore for name in _judged(spec)):
        return
    suites = {suite.name for suite in spec.suites}
    for field, metric, task in _asked(spec):
        if task not in suites and metric.startswith(OF_A_TOOL):
            yield field, metric


def _asked(spec: RLEvalJobSpec) -> Iterator[tuple[str, str, str]]:
    """The field, the metric and the task of each of the gate's conditions."""
    if (asked := spec.gate) is None:
        return
    yield "spec.gate.metric", asked.metric, asked.task
    for number, bound in enumerate(asked.no_worse):
        yield f"spec.gate.noWorse[{number}].metric", bound.metric, bound.task or asked.task


def _judged(spec: RLEvalJobSpec) -> list[str]:
    """The candidates that the gate judges or compares with."""
    gate = spec.gate
    return [] if gate is None else [name for name in (gate.candidate, gate.must_beat) if name is not None]


def _listed(known: Iterable[str]) -> str:
    found = [*known]
    return ", ".join(found[:LISTED]) + (", ..." if len(found) > LISTED else "")
