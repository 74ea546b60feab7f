"""Reads the data of a page from a run's files: the records of all steps, and the chosen episodes.

Only one group is in memory at a time, because a group of long episodes has hundreds of megabytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from headway_analysis.report.page import choice, standing
from headway_analysis.report.page.choice import OfStep, Shown
from headway_analysis.report.page.episodes import Decode, view
from headway_analysis.report.page.model import EvaluationRun, TrainingRun
from headway_analysis.report.timeline import EpisodeTiming
from headway_api.artifacts import Layout
from headway_api.records import Purpose, StepReport, ValidationRecord
from headway_api.run_files import RunFiles
from headway_api.spec.training import RLTrainingJobSpec

MAX_ROWS: Final = 64
"""The most groups of each candidate of an evaluation that are read."""


def training(files: RunFiles, decode: Decode | None = None) -> TrainingRun:
    """A training run as it is now, with its chosen episodes. Raises the errors that `RunFiles` raises.

    Args:
        decode: turns token ids into text. None: no tokens are shown.
    """
    run = curves(files)
    spans, _ = standing.judged(run)
    steps = choice.trained_steps(run.steps, [span.first for span in spans])
    trained, timings = _trained(files, steps)
    views = [view(each, decode) for each in (*_held_out(files, run.validations), *trained)]
    return replace(run, episodes=views, tokens=decode is not None, timings=timings)


def timed(files: RunFiles, steps: Collection[int]) -> TrainingRun:
    """A run with the times of the episodes of some steps, and without the episodes themselves.

    Args:
        steps: the steps to read, if they trained groups. Empty: the first, the last and some between.
    """
    run = curves(files)
    chosen = choice.asked_steps(run.steps, steps or choice.evenly_spread(run.steps))
    _, timings = _trained(files, chosen)
    return replace(run, timings=timings)


def curves(files: RunFiles) -> TrainingRun:
    """A run without its episodes, and without their times."""
    layout = files.layout
    job, steps, batches = files.document(layout.job), files.steps(), files.batch_metrics()
    namespace, name, uid = _identity(job, layout)
    return TrainingRun(
        name=name,
        namespace=namespace,
        uid=uid,
        spec=_spec(job),
        steps=steps,
        # A step may be taken again, from other groups: metrics of the earlier groups do not count.
        batch_metrics={
            report.step: found.metrics
            for report in steps
            if (found := batches.get(report.step)) is not None and found.groups == report.groups
        },
        validations=files.validations(),
        decisions=files.decisions(),
        preflight=(files.document(layout.preflight) or {}).get("document"),
        report=files.document(layout.report),
        episodes=(),
    )


def _identity(job: Mapping[str, Any] | None, layout: Layout) -> tuple[str, str, str]:
    """Namespace, name and uid: from the run's `job.json`, or else from the names of its folders."""
    if job is not None:
        return str(job.get("namespace")), str(job.get("name")), str(job.get("uid"))
    parts = ["", "", *layout.root.split("/")]
    return parts[-3], parts[-2], parts[-1]


def _spec(job: dict[str, Any] | None) -> RLTrainingJobSpec | None:
    """The spec in `job.json`; None if there is none, or if another version wrote it in another form."""
    try:
        return None if job is None else RLTrainingJobSpec.model_validate(job.get("spec"))
    except ValidationError:
        return None


def _held_out(files: RunFiles, validations: Sequence[ValidationRecord]) -> Iterator[Shown]:
    chosen = choice.validated_rows(validations)
    for group in files.groups([files.layout.validation_group(step, group) for step, group in chosen]):
        for episode in group.episodes[:1]:
            yield Shown.of(group, episode, f"held-out row {group.row} at step {group.step}")


def _trained(
    files: RunFiles, reports: Sequence[StepReport]
) -> tuple[list[Shown], dict[int, list[EpisodeTiming]]]:
    """The chosen episodes of some steps, and the times of all episodes of these steps."""
    shown: list[Shown] = []
    timings: dict[int, list[EpisodeTiming]] = {}
    for report in reports:
        found, times = OfStep(report.step), timings.setdefault(report.step, [])
        for group in files.groups([*map(files.layout.train_group, report.groups)]):
            found.add(group)
            times += [EpisodeTiming.of(each) for each in (*group.episodes, *group.discarded)]
        shown += found.chosen
    return shown, timings


def evaluation(files: RunFiles, decode: Decode | None = None) -> EvaluationRun | None:
    """An evaluation; None if it has not ended. Raises the errors that `RunFiles` raises."""
    report = files.document(files.layout.report)
    if report is None:
        return None
    layout, names = files.layout, [each["name"] for each in report["candidates"] if each["tries"]]
    read = {name: _first_rows(files, name) for name in names}
    rows = choice.compared_rows(
        {name: {row: score for row, (score, _) in of.items()} for name, of in read.items()}
    )
    groups = files.groups([read[name][row][1] for row in rows for name in names])
    views = [
        view(Shown.of(group, episode, f"row {group.row}"), decode)
        for group in groups
        for episode in group.episodes[:1]
    ]
    namespace, name, uid = _identity(files.document(layout.job), layout)
    return EvaluationRun(name, namespace, uid, report, views, decode is not None)


def _first_rows(files: RunFiles, candidate: str) -> dict[int, tuple[float, str]]:
    """Row -> mean score and address of its group, for a candidate's first rows of the job's own dataset."""
    uris = files.addresses(Purpose.EVALUATION, candidate)[:MAX_ROWS]
    return {
        group.row: (choice.mean_score(group), uri)
        for uri, group in zip(uris, files.groups(uris), strict=True)
        if group.suite is None
    }
