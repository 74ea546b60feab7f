"""The page of an evaluation: the candidates side by side, each measure with its interval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from markupsafe import Markup

from headway_analysis.comparison import COMPARED
from headway_analysis.measures.candidate import ALL
from headway_analysis.report.markdown import BY_TASK, MAIN, VERDICTS, difference_text, interval
from headway_analysis.report.page import drawing
from headway_analysis.report.page.html import Page, Picture, Row, Table, dollars, rendered, short
from headway_analysis.report.page.model import EvaluationRun
from headway_api.document import JsonView

MAX_BARS: Final = 24
TITLES: Final = dict(MAIN)


def page(run: EvaluationRun) -> str:
    """The page as HTML."""
    report = run.report
    gate = report["gate"]
    return rendered(
        Page(
            title=f"{run.namespace}/{run.name}",
            kind="RLEvalJob",
            state="finished" if gate is None else f"gate {VERDICTS[gate['verdict']]}",
            facts=[*_facts(report), ("Uid", run.uid)],
            heading="Measures",
            pictures=[*_pictures(report)],
            tables=[
                *filter(None, (_candidates(report), _differences(report), _gate(report), _costs(report)))
            ],
            episodes=run.episodes,
            tokens=run.tokens,
        )
    )


def _facts(report: JsonView) -> Iterator[tuple[str, str]]:
    best, job = report["headline"], report["job"]
    if best is not None:
        yield "Candidate", best["candidate"]
        yield "External score", interval(best)
    if report["gate"] is not None:
        yield "Gate", VERDICTS[report["gate"]["verdict"]]
    yield "Rows", str(job["rows"])
    yield "Data", job["data"]["uri"]
    if (cost := report["usage"].get("cost")) is not None:
        yield "Cost", dollars(cost)


def _measured(report: JsonView) -> list[JsonView]:
    return [each for each in report["candidates"] if each["tries"]]


def _pictures(report: JsonView) -> Iterator[Picture]:
    measured = _measured(report)
    for number, name in enumerate(BY_TASK):
        found = [(each["name"], value) for each in measured if (value := each["measures"][ALL].get(name))]
        if found:
            yield _bars(TITLES[name], "Mean over rows with its 95 % interval.", found, f"m{number}")
    tasks = sorted({task for each in measured for task in each["measures"]} - {ALL})
    found = [
        (f"{task}: {each['name']}", value)
        for task in tasks
        for each in measured
        if (value := each["measures"].get(task, {}).get(BY_TASK[0]))
    ]
    if found:
        yield _bars(f"{TITLES[BY_TASK[0]]} by task", "A suite is a task, too.", found[:MAX_BARS], "tasks")


def _bars(title: str, about: str, found: list[tuple[str, JsonView]], key: str) -> Picture:
    names = [name for name, _ in found]
    values = [(float(one["value"]), one["low"], one["high"]) for _, one in found]
    rows: list[Row] = [
        (name, short(value), *("" if end is None else short(end) for end in (low, high)))
        for name, (value, low, high) in zip(names, values, strict=True)
    ]
    svg = Markup(drawing.bars(names, values, key, title))
    head = title[:1].upper() + title[1:]
    return Picture(head, about, title, [], svg, ("candidate", "value", "low", "high"), rows)


def _candidates(report: JsonView) -> Table:
    rows = [
        (
            each["name"],
            each["state"],
            *(interval(each["measures"].get(ALL, {}).get(name)) for name, _ in MAIN),
            each["message"] or "",
        )
        for each in report["candidates"]
    ]
    columns = ("candidate", "state", *(title for _, title in MAIN), "message")
    return Table("Candidates", columns, rows)


def _differences(report: JsonView) -> Table | None:
    parts: JsonView = {ALL: report, **report["suites"], **report.get("tasks", {})}
    rows = [
        (
            task,
            measure.replace("_", " "),
            name,
            each["finding"],
            difference_text(measure, name, report["baseline"], each),
        )
        for task, of in parts.items()
        for measure in COMPARED
        for name, each in of["differences"].get(measure, {}).items()
    ]
    if not rows:
        return None
    columns = ("task", "measure", "candidate", "finding", "in words")
    return Table(f"Against {report['baseline']}", columns, rows)


def _gate(report: JsonView) -> Table | None:
    gate = report["gate"]
    if gate is None:
        return None
    rows = [(VERDICTS[each["verdict"]], each["message"]) for each in gate["checks"]]
    return Table("Gate", ("verdict", "check"), rows, note=gate["message"])


def _costs(report: JsonView) -> Table:
    def amounts(candidate: JsonView) -> str:
        used: dict[str, Any] = candidate["usage"]
        return ", ".join(f"{name} {amount:,.0f}" for name, amount in used.items() if amount)

    rows = [
        (each["name"], "unpriced" if each["cost"] is None else dollars(each["cost"]), amounts(each))
        for each in report["candidates"]
    ]
    return Table("Cost", ("candidate", "cost", "what was used"), rows)
