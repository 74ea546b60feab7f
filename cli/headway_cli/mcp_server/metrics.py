"""Tools that read numbers by step: metrics of one run or of several runs, and how long the steps took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from headway_analysis.report.page import comparison, reading
from headway_analysis.report.page.model import TrainingRun
from headway_api.document import Json
from headway_cli import near_names
from headway_cli.client import frames
from headway_cli.mcp_server import bounds
from headway_cli.mcp_server.arguments import CompareAsked, ReportAsked, TimelineAsked
from headway_cli.mcp_server.jobs import head
from headway_cli.mcp_server.words import InvalidToolCallError
from headway_cli.mcp_server.workspace import Workspace
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun, readable

MAX_METRICS: Final = 40
DEFAULT: Final = tuple(metric for _, _, metric in comparison.METRICS)


def report(workspace: Workspace, asked: ReportAsked) -> Json:
    """Metrics of the last steps and validations; for an evaluation, its report."""
    found = workspace.find(asked.job, asked.kind)
    run = found.stored()
    if run.evaluates:
        return {**head(workspace, found), "report": _report(run)}
    with readable(run.layout.root):
        read = reading.curves(run.files)
    return {**head(workspace, found), **metrics_of(read, asked.metrics, asked.last)}


def _report(run: StoredRun) -> Json:
    with readable(run.layout.root):
        found = run.files.document(run.layout.report)
    if found is None:
        raise RunNotFoundError(
            f"{run.name}: the evaluation has not ended, and its report is written then: call status"
        )
    return found


def metrics_of(run: TrainingRun, patterns: Sequence[str], last: int) -> Json:
    """Metrics of a training run's last steps: one list for each metric, with null if a step lacks it. Pure.

    Args:
        run: the training run.
        patterns: names or patterns of metrics; empty for the most important ones.
        last: maximum number of steps, and of validations.

    Raises:
        InvalidToolCallError: a pattern matches no metric.
    """
    by_step = run.by_step
    known = sorted({name for of in by_step.values() for name in of})
    chosen = _chosen(known, patterns)
    steps = sorted(by_step)[-last:]
    validated = frames.validated(run.validations)
    ended = run.report or {}
    notes = [] if steps else ["no step was trained yet"]
    if left := chosen[MAX_METRICS:]:
        notes.append(f"{len(left)} more metrics match; write narrower patterns")
    if more := len(by_step) - len(steps):
        notes.append(f"{more} earlier steps are left out; write a higher last")
    return {
        "finished": ended.get("finished"),
        "usage": ended.get("usage"),
        "steps": steps,
        "figures": {name: [by_step[step].get(name) for step in steps] for name in chosen[:MAX_METRICS]},
        "validations": [_validation(step, validated[step], patterns) for step in sorted(validated)[-last:]],
        "known": known,
        "notes": notes,
    }


def _validation(step: int, of: Mapping[str, float], patterns: Sequence[str]) -> Json:
    """The validation's own numbers, such as its reward, and those of its metrics that a pattern matches."""
    own = {name: value for name, value in of.items() if "/" not in name or _is_meant(name, patterns)}
    return {"step": step, **own}


def _chosen(known: Sequence[str], patterns: Sequence[str]) -> list[str]:
    if not patterns:
        return [name for name in DEFAULT if name in known]
    for each in patterns:
        if known and not each.startswith("val/") and not any(fnmatchcase(name, each) for name in known):
            near = near_names.clause(each, known) or "; known has their names"
            raise InvalidToolCallError(f"figures: this run has no metric {each}{near}")
    return [name for name in known if _is_meant(name, patterns)]


def _is_meant(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


def compare(workspace: Workspace, asked: CompareAsked) -> Json:
    """The curves and results of several training runs, and how their specs differ."""
    runs: list[TrainingRun] = []
    read: list[StoredRun] = []
    for word in asked.jobs:
        at = workspace.find(word, "training" if workspace.names_a_cluster else None).stored()
        if at.evaluates:
            raise InvalidToolCallError(f"jobs: {word} is an evaluation, and has no steps: name training jobs")
        if any(at.layout == each.layout for each in read):
            raise InvalidToolCallError(f"jobs: {word} is named twice: name different runs")
        read.append(at)
        with readable(at.layout.root):
            runs.append(reading.curves(at.files))
    return side_by_side(runs, asked.points)


def side_by_side(runs: Sequence[TrainingRun], points: int) -> Json:
    """The content of the page that `headway compare` writes, as JSON. Pure.

    Args:
        runs: the training runs.
        points: maximum points of a curve.
    """
    named = comparison.named_runs(runs)
    outcomes, differing = comparison.outcomes(named), comparison.differing(named)
    return {
        "outcomes": [dict(zip(outcomes.columns, row, strict=True)) for row in outcomes.rows],
        "differences": [dict(zip(differing.columns, row, strict=True)) for row in differing.rows],
        "curves": [
            {
                "title": chart.title,
                "unit": chart.unit,
                "points": {
                    line.name: [[*point] for point in bounds.thinned([*line.points], points)]
                    for line in chart.lines
                },
            }
            for chart in comparison.charts(named)
        ],
    }


def timeline(workspace: Workspace, asked: TimelineAsked) -> Json:
    """On what some steps of a training run spent their time."""
    found = workspace.find(asked.job, asked.kind)
    run = found.stored()
    if run.evaluates:
        raise InvalidToolCallError(
            f"job: {asked.job} is an evaluation, and has no steps: name a training job"
        )
    with readable(run.layout.root):
        read = reading.timed(run.files, asked.steps)
    if absent := {*asked.steps} - read.timings.keys():
        raise InvalidToolCallError(f"steps: the run has no step {min(absent)} that trained a batch")
    times = read.times()
    notes = [] if times else ["no step says when it ended: none was trained yet, or the run is too old"]
    return {**head(workspace, found), "steps": [each.as_json() for each in times], "notes": notes}
