"""When a run's signals were raised. They are judged again from the run's metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headway_analysis.report.page.drawing import Span
from headway_analysis.report.page.model import TrainingRun
from headway_analysis.signals.of_spec import job_of
from headway_analysis.signals.watch import Verdict, Watch
from headway_api.remedies import applied

RAISED: Final = "Raised"


def judged(run: TrainingRun) -> tuple[list[Span], list[Verdict]]:
    """The ranges of steps in which signals were raised, and each signal's state at the end.

    Both are empty for a run without a spec, which cannot be judged.
    """
    if run.spec is None:
        return [], []
    watch, metrics = Watch(job_of(run.spec)), run.by_step
    for decision in run.decisions:
        watch.changed(decision.step, job_of(applied(run.spec, decision.in_force)))
    validated = {each.step: each.metrics for each in run.validations}
    open_since: dict[str, int] = {}
    spans: list[Span] = []
    for step in sorted({*metrics, *validated}):
        _feed(watch, step, metrics, validated)
        raised = {v.signal.name.value for v in watch.verdicts() if v.standing.state == RAISED}
        spans += [Span(name, open_since.pop(name), step) for name in sorted({*open_since} - raised)]
        for name in raised:
            open_since.setdefault(name, step)
    last = max({*metrics, *validated}, default=0)
    spans += [Span(name, since, last) for name, since in sorted(open_since.items())]
    return sorted(spans, key=lambda span: (span.first, span.name)), watch.verdicts()


def _feed(
    watch: Watch,
    step: int,
    metrics: Mapping[int, Mapping[str, float]],
    validated: Mapping[int, Mapping[str, float]],
) -> None:
    if step in metrics:
        watch.step(step, metrics[step])
    if step in validated:
        watch.validation(step, validated[step])
