"""The page of a training run."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headway_analysis.report.page import curves, drawing, standing
from headway_analysis.report.page.html import Page, Picture, Table, dollars, rendered, short
from headway_analysis.report.page.model import TrainingRun
from headway_analysis.report.timeline import StepTime
from headway_analysis.signals.watch import Verdict
from headway_api.records import ValidationRecord

LEAST_SHARE: Final = 0.001
"""The smallest share of a step's time that the page shows."""
SHOWN_SIGNALS: Final = ("Raised", "Suspect")


def page(run: TrainingRun) -> str:
    """The page as HTML."""
    spans, verdicts = standing.judged(run)
    marks = [drawing.Mark(each.directive.remedy, each.step) for each in run.decisions]
    charts = curves.training(run.by_step, run.validations)
    return rendered(
        Page(
            title=f"{run.namespace}/{run.name}",
            kind="RLTrainingJob",
            state=_state(run),
            facts=[*_facts(run)],
            notes=[*_notes(run)],
            tables=[*_tables(run, spans, verdicts)],
            pictures=[
                Picture.of(chart, drawing.svg(chart, f"p{number}", spans, marks))
                for number, chart in enumerate(charts)
            ],
            shaded=bool(spans),
            marked=bool(marks),
            timeline=_embedded(run),
            episodes=run.episodes,
            tokens=run.tokens,
        )
    )


def _embedded(run: TrainingRun) -> str | None:
    """The trace of the steps whose times are known, packed in a `data:` address; None if there are none."""
    if not run.times():
        return None
    packed = gzip.compress(json.dumps(run.trace()).encode(), mtime=0)
    return f"data:application/gzip;base64,{base64.b64encode(packed).decode()}"


def _state(run: TrainingRun) -> str:
    step = max((report.step for report in run.steps), default=0)
    if run.report is None:
        return f"not finished: step {step}" if run.steps else "not finished: no step was taken yet"
    return f"finished: {run.report.get('finished') or 'no reason was given'}, step {step}"


def _facts(run: TrainingRun) -> Iterator[tuple[str, str]]:
    first, last = (run.validations[0], run.validations[-1]) if run.validations else (None, None)
    if first is not None and last is not None and first is not last:
        yield "Held-out score", f"{_share(first.external_score)} → {_share(last.external_score)}"
        yield "Held-out reward", f"{short(first.reward)} → {short(last.reward)}"
    elif last is not None:
        yield "Held-out score", _share(last.external_score)
    if run.spec is not None:
        yield "Model", run.spec.model.base
    usage = (run.report or {}).get("usage", {})
    if "cost" in usage:
        yield "Cost", dollars(usage["cost"])
    if "priceBook" in usage:
        yield "Price book", f"{usage['priceBook']} ({usage.get('priceBookHash')})"
    if "totalTokens" in usage:
        yield "Tokens of training", f"{usage['totalTokens']:,}"
    yield "Uid", run.uid


def _notes(run: TrainingRun) -> Iterator[str]:
    if run.spec is None:
        yield "The run has no job.json, so its spec and its signals are not shown."
    if not run.by_step:
        yield "No step has trained yet, so there are no curves of training."
    if not run.validations:
        yield "No validation has ended, so held-out rows are not known."


def _share(value: float) -> str:
    return f"{value:.0%}" if 0 <= value <= 1 else short(value)


def _tables(run: TrainingRun, spans: Sequence[drawing.Span], verdicts: Sequence[Verdict]) -> Iterator[Table]:
    yield from filter(None, (_validations(run.validations), _signals(spans, verdicts), _remedies(run)))
    yield from filter(None, (_times(run.times()), _preflight(run.preflight)))
    yield from filter(None, (_bill(run.report), _settings(run)))


def _validations(found: Sequence[ValidationRecord]) -> Table | None:
    if not found:
        return None
    rows = [
        (str(each.step), short(each.reward), short(each.external_score), _share(each.success),
         str(each.episodes), str(each.failed))
        for each in found
    ]  # fmt: skip
    return Table("Validations", ("step", "reward", "external score", "success", "episodes", "failed"), rows)


def _signals(spans: Sequence[drawing.Span], verdicts: Sequence[Verdict]) -> Table | None:
    raised = {span.name for span in spans}
    rows = []
    for verdict in verdicts:
        name, reading = verdict.signal.name.value, verdict.standing.reading
        if verdict.standing.state not in SHOWN_SIGNALS and name not in raised:
            continue
        steps = ", ".join(f"{span.first} to {span.last}" for span in spans if span.name == name)
        observed = "" if reading is None else reading.observed
        rows.append((name, verdict.standing.state, steps or "never", observed, verdict.signal.advice))
    if not verdicts:
        return None
    note = "" if rows else "No signal was raised."
    columns = ("signal", "state at the end", "raised in steps", "seen last", "what to change first")
    return Table("Signals", columns, rows, note)


def _remedies(run: TrainingRun) -> Table | None:
    rows = [
        (str(each.number), str(each.step), each.directive.remedy, each.signal or "a person's order", each.why)
        for each in run.decisions
    ]
    return Table("Remedies", ("number", "step", "remedy", "against", "why"), rows) if rows else None


def _times(found: Sequence[StepTime]) -> Table | None:
    rows = [(str(each.step), short(each.seconds), _parts(each), f"{each.known:.1%}") for each in found]
    note = "What the learner did itself, and what the last episode of each batch waited for."
    columns = ("step", "seconds", "where they went", "accounted for")
    return Table("Time of a step", columns, rows, note) if rows else None


def _parts(found: StepTime) -> str:
    parts = [(what, seconds / found.seconds) for what, seconds in found.parts.items() if found.seconds > 0]
    return ", ".join(f"{what} {share:.1%}" for what, share in parts if share >= LEAST_SHARE)


def _preflight(found: Mapping[str, Any] | None) -> Table | None:
    checks = (found or {}).get("checks", [])
    if not checks:
        return None
    order = {"Fail": 0, "Warn": 1, "Unknown": 2, "Pass": 3}
    rows = [
        (each["verdict"], each["check"], each.get("observed", ""), each.get("advice", ""))
        for each in sorted(checks, key=lambda each: order.get(each["verdict"], 4))
    ]
    return Table("Preflight", ("verdict", "check", "seen", "advice"), rows)


def _bill(report: Mapping[str, Any] | None) -> Table | None:
    by_class = (report or {}).get("usageByClass", {})
    rows = [(name, f"{amount:,.0f}") for name, amount in by_class.items() if amount]
    return Table("What was used", ("class", "tokens or seconds"), rows) if rows else None


def _settings(run: TrainingRun) -> Table | None:
    if run.spec is None:
        return None
    rows = [*flat(run.spec.as_object())]
    return Table("Spec", ("field", "value"), rows, folded=True)


def flat(value: Any, path: str = "spec") -> Iterator[tuple[str, str]]:
    """(path, value) of every field of a JSON object, in the object's order."""
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from flat(below, f"{path}.{name}")
    else:
        yield path, value if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
