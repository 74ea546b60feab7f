"""`report.md`: the contents of `report.json` for people. It adds no results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headway_analysis.comparison import COMPARED, HEADLINE
from headway_analysis.measures.candidate import ALL
from headway_analysis.report.document import differing_answers_note, gaps
from headway_analysis.statistics.differences import Finding
from headway_api.document import JsonView

MAIN: Final = (
    ("external_score", "external score"),
    ("success", "success"),
    ("reward", "reward"),
    ("completion", "completion"),
    ("turns", "turns"),
    ("sampled_tokens", "sampled tokens"),
    ("seconds", "seconds"),
    ("infra_error", "infrastructure errors"),
)
"""Measures of the first table; all others are in `report.json`."""
BY_TASK: Final = ("external_score", "success", "reward")
VERDICTS: Final = {
    "Passed": "passed",
    "Refused": "not passed",
    "TooFewRows": "not passed: too few rows to tell",
    "Error": "cannot be judged",
}


def markdown(report: JsonView) -> str:
    """The report as Markdown.

    Args:
        report: the document that `document.document` made.
    """
    parts = [
        _head(report),
        _main(report),
        _differences(report),
        _gate(report),
        _suites(report),
        _tasks(report),
        _cost(report),
        _gaps(report),
        _scored_again(report),
        _failures(report),
        _notes(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: JsonView) -> str:
    job, best, gate = report["job"], report["headline"], report["gate"]
    measured = [each for each in report["candidates"] if each["tries"]]
    lines = [f"# Evaluation {job['namespace']}/{job['name']}", ""]
    if best is not None:
        lines.append(f"**{_cell(best['candidate'])}: external score {interval(best)}.**")
    if gate is not None:
        lines.append(f"**Gate: {VERDICTS[gate['verdict']]}.**")
    tries = job["evaluation"].get("groupSize", 1)
    lines += ["", f"{len(measured)} of {len(report['candidates'])} candidates were measured on "]
    lines[-1] += f"{job['rows']} rows of {job['data']['uri']}, {tries} {_plural('try', tries)} a row."
    lines[-1] += f" A try succeeds with an external score of {number(_threshold(job))} or more."
    return "\n".join(lines)


def _threshold(job: JsonView) -> float:
    return float(job["evaluation"].get("successThreshold", 1.0))


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word.removesuffix('y')}ies" if word.endswith("y") else f"{word}s"


def _main(report: JsonView) -> str:
    lines = [
        [_cell(each["name"]), *(interval(_measure(each, name)) for name, _ in MAIN)]
        for each in report["candidates"]
        if each["tries"]
    ]
    head = ["candidate", *(title for _, title in MAIN)]
    return _section("Candidates", _table(head, lines) if lines else "No candidate was measured.")


def _measure(candidate: JsonView, name: str, task: str = ALL) -> JsonView | None:
    found: JsonView | None = candidate["measures"].get(task, {}).get(name)
    return found


def _differences(report: JsonView) -> str:
    found = [
        f"- {difference_text(measure, name, report['baseline'], each)}"
        for measure in COMPARED
        for name, each in report["differences"].get(measure, {}).items()
    ]
    return _section(f"Against {_cell(report['baseline'])}", "\n".join(found))


def difference_text(measure: str, name: str, baseline: str, found: JsonView) -> str:
    """One paired difference in words."""
    names = f"{_words(measure)} of {_cell(name)}"
    if found["low"] is None or found["p_holm"] is None:
        note = found.get("note") or "no interval"
        common = _count(found["rows"], "row")
        return f"{names} against {_cell(baseline)}: {signed(found['value'])}; {note} ({common} in common)."
    verb = {Finding.HIGHER: "is higher", Finding.LOWER: "is lower"}.get(Finding(found["finding"]))
    text = f"{names} {verb} than that of {_cell(baseline)}" if verb else f"{names}: no difference is shown"
    return (
        f"{text}: {signed(found['value'])}, 95 % interval {signed(found['low'])} to {signed(found['high'])}, "
        f"p = {found['p_holm']:.2g} after Holm. {_count(found['rows'], 'row')} and "
        f"{_count(found['tries'], 'pair')} could show a difference of {number(found['smallest'])}."
    )


def _gate(report: JsonView) -> str:
    gate = report["gate"]
    if gate is None:
        return ""
    checks = [f"- {VERDICTS[each['verdict']]}: {_cell(each['message'])}" for each in gate["checks"]]
    about = f"Candidate {_cell(gate['spec']['candidate'])} is judged."
    return _section(f"Gate: {VERDICTS[gate['verdict']]}", "\n".join([about, "", *checks]))


def _suites(report: JsonView) -> str:
    """Each suite with the candidates' measures and differences. Suites show whether a model keeps its
    abilities."""
    return _section("Suites", "\n\n".join(_task(report, suite) for suite in report["suites"]))


def _tasks(report: JsonView) -> str:
    every = {task for each in report["candidates"] for task in each["measures"]}
    tasks = sorted(every - {ALL} - report["suites"].keys())
    tables = [_task(report, task) for task in tasks]
    return _section("Tasks", "\n\n".join(tables)) if tables else ""


def _task(report: JsonView, task: str) -> str:
    lines = [
        [_cell(each["name"]), *(interval(_measure(each, name, task)) for name in BY_TASK), _rows(each, task)]
        for each in report["candidates"]
        if task in each["measures"]
    ]
    table = f"### {_cell(task)}\n\n" + _table(["candidate", *map(_words, BY_TASK), "rows"], lines)
    return f"{table}\n\n{_against(report, task)}".rstrip()


def _against(report: JsonView, task: str) -> str:
    """The paired differences of the external score in a task or suite."""
    of: JsonView = {**report.get("tasks", {}), **report["suites"]}.get(task, {})
    found = of.get("differences", {}).get(HEADLINE, {})
    lines = (difference_text(HEADLINE, name, report["baseline"], each) for name, each in found.items())
    return "\n".join(f"- {one}" for one in lines)


def _rows(candidate: JsonView, task: str) -> str:
    """Number of the task's rows that were measured. `infra_error` knows it, because this measure counts every
    try."""
    return str(candidate["measures"][task]["infra_error"]["rows"])


def _cost(report: JsonView) -> str:
    usage = report["usage"]
    lines = [_bill(each) for each in report["candidates"] if each["tries"]]
    text = f"In all: ${_money(usage['cost'])}, by the price book {_cell(usage['priceBook']['name'])}."
    if usage["unpriced"]:
        text += f" Without {', '.join(usage['unpriced'])}, for which it has no price."
    left = ", ".join(f"{number(amount)} {name}" for name, amount in usage["ofNoTry"].items())
    if left:
        text += f" Of this, {left} belong to no try: groups that were begun again after a restart."
    head = ["candidate", "cost", "for each try", "for each success", "tokens", "sandbox seconds"]
    return _section("Cost", f"{_table(head, lines)}\n\n{text}" if lines else text)


def _bill(candidate: JsonView) -> list[str]:
    used = candidate["usage"]
    tokens = sum(amount for name, amount in used.items() if name != "sandboxSeconds")
    costs = (_measure(candidate, name) for name in ("cost", "cost_per_success"))
    each = ["-" if found is None else f"${number(found['value'])}" for found in costs]
    seconds = number(used.get("sandboxSeconds", 0))
    cost = f"${_money(candidate['cost'])}" if candidate["cost"] is not None else _unknown(candidate)
    counted = "uncounted" if candidate["uncounted"] else f"{tokens:,.0f}"
    return [_cell(candidate["name"]), cost, *each, counted, seconds]


def _unknown(candidate: JsonView) -> str:
    return "unpriced" if candidate["unpriced"] else "uncounted"


def _money(amount: str) -> str:
    return f"{float(amount):.4f}"


def _gaps(report: JsonView) -> str:
    """Parameters that an endpoint refused, tokens that it did not count, and usage without a price."""
    lines = [
        f"- {_cell(each['name'])}: {_cell(text)}."
        for each in report["candidates"]
        for text in gaps(each["dropped"], each["uncounted"], each["unpriced"])
    ]
    return _section("What is missing", "\n".join(lines))


def _scored_again(report: JsonView) -> str:
    """Candidates whose tools answered differently than in the run that is scored again."""
    lines = [
        f"- {_cell(each['name'])}: {_cell(text)}."
        for each in report["candidates"]
        for text in differing_answers_note(each["differingAnswers"])
    ]
    return _section("Scored again", "\n".join(lines))


def _failures(report: JsonView) -> str:
    failed = [
        f"- {_cell(each['name'])}: {_cell(each['reason'] or '')}: {_cell(each['message'] or '')}"
        for each in report["candidates"]
        if each["state"] == "Failed"
    ]
    return _section("Candidates that failed", "\n".join(failed))


def _notes(report: JsonView) -> str:
    return _section(
        "Notes",
        "\n".join(
            [
                "- Intervals hold with 95 % confidence. Rows are the sample; tries are clustered in rows.",
                "- A difference is the candidate's value less the baseline's, paired by row and try.",
                "- p is two-sided, of a sign-flip permutation test. What the rows could show is the smallest "
                "difference that is found with power 0.8.",
                "- Tries that a part of the platform failed are in no mean but their own rate and the cost.",
                f"- `report.json` has every measure, `results.parquet` every try. {report['definitions']} "
                "defines them.",
            ]
        ),
    )


def interval(found: JsonView | None) -> str:
    """A value with its interval."""
    if found is None:
        return "-"
    value = number(found["value"])
    if found["low"] is None or found["high"] is None:
        note = found.get("note")
        return f"{value} ({note})" if note else value
    return f"{value} ({number(found['low'])} to {number(found['high'])})"


def number(value: float) -> str:
    """A value to three significant digits."""
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:.2g}"


def signed(value: float) -> str:
    """A value to three significant digits, with its sign."""
    return number(value) if value < 0 else f"+{number(value)}"


def _count(count: int, word: str) -> str:
    return f"{count} {_plural(word, count)}"


def _words(measure: str) -> str:
    return measure.replace("_", " ")


def _cell(text: str) -> str:
    """The text, escaped so that it cannot break a table or begin markup."""
    return "".join(f"\\{c}" if c in "\\|<>*_`[]" else " " if c in "\r\n" else c for c in text)


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(_lines([head, ["---"] * len(head), *lines]))


def _lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    return (f"| {' | '.join(row)} |" for row in rows)
