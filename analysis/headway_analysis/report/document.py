"""`report.json`: an evaluation's results, every measure with its interval. A pure function of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from math import fsum
from typing import Any, Final
from urllib.parse import urlsplit

from headway_analysis.comparison import HEADLINE, Comparison
from headway_analysis.measures.candidate import ALL, of_task, priced, total_cost
from headway_analysis.measures.tries import Try
from headway_analysis.statistics.differences import Difference, Finding
from headway_analysis.statistics.estimates import Estimate, Why
from headway_api.config import EvalConfig
from headway_api.prices import ACCELERATORS, PriceBook, class_of, cost_by_day, unpriced, whose
from headway_api.spec.candidate import BASE_SUFFIX, Candidate

VERSION: Final = 1
"""The document's version. A field may be added under the same version; none is renamed or removed."""
DEFINITIONS: Final = "docs/evaluation.md"
TOO_FEW: Final = "too few rows to tell"
NOTES: Final = {
    Why.TOO_FEW_CLUSTERS: TOO_FEW,
    Why.NO_SPREAD: "all values are the same, and nothing bounds what another row would give",
}
Days = Mapping[date, Mapping[str, float]]
"""UTC day -> key of the bill (`prices.of`: class, or class and model) -> quantity."""


@dataclass(frozen=True)
class CandidateTries:
    """One candidate at the end of the job."""

    name: str
    stage: str
    """`Complete` or `Failed`."""
    tries: Sequence[Try]
    reason: str | None = None
    """Why the candidate failed, as one word; None if it did not fail."""
    message: str | None = None
    """Why the candidate failed, with the field and the fix; None if it did not fail."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Parameter that the endpoint refused -> the parameter sent instead; empty if none is sent."""


@dataclass(frozen=True)
class Finished:
    """A finished evaluation."""

    job: EvalConfig
    standings: Sequence[CandidateTries]
    """The candidates, in the order of the spec."""
    rows: int
    """Rows of the job's own dataset, on which each candidate was to be measured."""
    days: Days
    """Usage that the ledger bills for the whole job."""
    book: PriceBook
    estimate: Mapping[str, Any] | None = None
    """The estimated cost beside the actual one; None if there was no estimate."""


def document(run: Finished, found: Comparison) -> dict[str, Any]:
    """The report as a JSON document."""
    return {
        "version": VERSION,
        "definitions": DEFINITIONS,
        "job": _job(run),
        "headline": _headline(run, found),
        "candidates": [_candidate(run, standing, found) for standing in run.standings],
        "baseline": found.baseline,
        "differences": _differences(found.differences),
        "suites": {suite: {"differences": _differences(of)} for suite, of in found.suites.items()},
        "tasks": {task: {"differences": _differences(of)} for task, of in found.tasks.items()},
        "gate": _gate(run, found),
        "usage": _usage(run),
        "estimate": run.estimate,
    }


def _differences(found: Mapping[str, Mapping[str, Difference]]) -> dict[str, Any]:
    return {measure: {name: difference(each) for name, each in of.items()} for measure, of in found.items()}


def _job(run: Finished) -> dict[str, Any]:
    job, spec = run.job, run.job.spec
    measured = [each for standing in run.standings for each in standing.tries]
    return {
        "kind": job.kind,
        "namespace": job.namespace,
        "name": job.name,
        "uid": job.uid,
        "begun": _time(min((each.finished_at - each.seconds for each in measured), default=None)),
        "ended": _time(max((each.finished_at for each in measured), default=None)),
        "seed": spec.seed,
        "data": spec.data.as_object(),
        "rows": run.rows,
        "suites": {
            suite.name: {"task": suite.task, "limit": suite.limit, "epochs": suite.epochs}
            for suite in spec.suites
        },
        "evaluation": spec.evaluation.as_object(),
        "rewardRange": [*spec.reward.range],
        "maxTokens": spec.max_tokens,
        "maxTurns": spec.agent.turn_limit,
    }


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _headline(run: Finished, found: Comparison) -> dict[str, Any] | None:
    """The gate's candidate and its external score. Without a gate: the candidate with the best score."""
    gate = run.job.spec.gate
    name = gate.candidate if gate is not None else found.best()
    score = None if name is None else found.estimate(name, HEADLINE)
    return None if score is None else {"candidate": name, "measure": HEADLINE, **estimate(score)}


def _candidate(run: Finished, standing: CandidateTries, found: Comparison) -> dict[str, Any]:
    every = standing.tries
    tries = of_task(every, ALL)
    outcomes = Counter(each.outcome.value for each in tries)
    return {
        "name": standing.name,
        "state": standing.stage,
        "reason": standing.reason,
        "message": standing.message,
        "model": model_of(run.job, standing.name),
        "rows": len({each.place.row for each in tries}),
        "tries": len(tries),
        "scored": sum(each.scored for each in tries),
        "outcomes": dict(sorted(outcomes.items())),
        "usage": used_by(every),
        "cost": _dollars(total_cost(every, priced(run.book))),
        "unpriced": unpriced((used for each in every for used in each.usage_by_day.items()), run.book),
        "uncounted": uncounted(every),
        "dropped": dict(sorted(standing.dropped.items())),
        "differingAnswers": differing(every),
        "measures": {
            task: {name: estimate(each) for name, each in of.items()}
            for task, of in found.estimates.get(standing.name, {}).items()
        },
    }


def model_of(job: EvalConfig, name: str) -> dict[str, Any]:
    """What a candidate is: the resolved model or checkpoint, the endpoint, or the run to be scored again."""
    resolved = next((each for each in job.candidates if each.name == name), None)
    found = {} if resolved is None else resolved.model_dump(mode="json", by_alias=True, exclude_none=True)
    asked = _asked(job, name)
    if asked.endpoint is not None:
        found |= {"url": _address(asked.endpoint.url), "model": asked.endpoint.model}
    if asked.rescore is not None:
        found |= {"rescore": asked.rescore.as_object()}
    return {key: value for key, value in found.items() if key not in ("name", "serverSet")}


def _asked(job: EvalConfig, name: str) -> Candidate:
    by_name = {each.name: each for each in job.spec.candidates}
    return by_name.get(name) or by_name[name.removesuffix(BASE_SUFFIX)]


def _address(url: str) -> str:
    """A URL without the password and the query that it may hold."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def estimate(found: Estimate) -> dict[str, Any]:
    """An estimate as JSON; if it has no interval, `note` says why."""
    fields = {key: value for key, value in asdict(found).items() if key not in ("n", "why")}
    why = None if found.why is None else {"why": found.why.value, "note": NOTES.get(found.why)}
    return {**fields, "rows": found.n, **(why or {})}


def difference(found: Difference) -> dict[str, Any]:
    """A paired difference as JSON; it has a `note` if there are too few rows for a verdict."""
    fields = {key: value for key, value in asdict(found).items() if key not in ("n", "finding")}
    note = {"note": TOO_FEW} if found.finding is Finding.TOO_FEW_ROWS else {}
    return {**fields, "rows": found.n, "finding": found.finding.value, **note}


def _gate(run: Finished, found: Comparison) -> dict[str, Any] | None:
    gate = run.job.spec.gate
    if gate is None or found.gate is None:
        return None
    return {
        "verdict": found.gate.verdict.value,
        "message": found.gate.message,
        "checks": [
            {"verdict": each.verdict.value, "message": each.message, "numbers": dict(each.numbers)}
            for each in found.gate.checks
        ],
        "spec": gate.as_object(),
    }


def uncounted(tries: Iterable[Try]) -> int:
    """Number of answers whose tokens an endpoint did not report."""
    return sum(each.uncounted_turns for each in tries)


def gaps(dropped: Mapping[str, str], answers: int, unpriced: Sequence[str]) -> list[str]:
    """What is missing from a candidate's results, one text for each gap.

    Args:
        dropped: parameter that its endpoint refused -> the parameter sent instead; empty if none is sent.
        answers: number of answers whose tokens its endpoint did not report.
        unpriced: classes of usage that have no price.
    """
    found = []
    if dropped:
        names = ", ".join(
            f"{name} ({new} is sent instead)" if new else name for name, new in sorted(dropped.items())
        )
        found.append(f"the endpoint refused {names}, which is left out since")
    if answers:
        found.append(f"the endpoint did not count {answers} answers, so token and cost measures are left out")
    if unpriced:
        found.append(f"unpriced: the price book has no price for {', '.join(unpriced)}")
    return found


def differing(tries: Iterable[Try]) -> int:
    """Number of tool calls whose answer differs from the answer in the run that is scored again."""
    return sum(each.differing_answers for each in tries)


def differing_answers_note(answers: int) -> list[str]:
    """A text, if tools answered differently than in the run that is scored again; else an empty list.

    Args:
        answers: number of tool calls whose answer differs.
    """
    if not answers:
        return []
    return [
        f"calls that the tools answered otherwise than in the run: {answers}; write spec.seed and spec.data "
        "as in the run, unless the tools vary by themselves"
    ]


def used_by(tries: Iterable[Try]) -> dict[str, float]:
    """What some tries used together, by class of usage."""
    return _summed(each.usage for each in tries)


def _summed(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sums of some amounts by class of usage, over all models."""
    return _added(amounts, class_of)


def _added(amounts: Iterable[Mapping[str, float]], named: Callable[[str], str] = str) -> dict[str, float]:
    by_name: dict[str, list[float]] = {}
    for each in amounts:
        for name, quantity in each.items():
            by_name.setdefault(named(name), []).append(quantity)
    return {name: fsum(quantities) for name, quantities in sorted(by_name.items())}


def by_model(days: Days) -> dict[str, dict[str, float]]:
    """Usage of models other than the job's own: model -> class -> quantity."""
    named = {model for used in days.values() for name in used if (model := _model(name)) is not None}
    return {
        model: _summed(
            {name: much for name, much in used.items() if _model(name) == model} for used in days.values()
        )
        for model in sorted(named)
    }


def _model(name: str) -> str | None:
    return None if class_of(name) == ACCELERATORS else whose(name)


def _book(book: PriceBook) -> dict[str, Any]:
    """The job's price book as JSON. Models that `models` does not name have the prices of `own`, if an entry
    has `own`, and otherwise those of the job's own model."""
    fields = book.as_object()
    for entry, found in zip(book.entries, fields["entries"], strict=True):
        for model, prices in entry.models.items():  # a class without a price of the model has the entry's own
            found["models"][model] = prices.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if entry.own != entry.prices:
            found["own"] = entry.own.as_object()
    return fields


def _usage(run: Finished) -> dict[str, Any]:
    """The job's bill, and the part of the bill that belongs to no try."""
    billed = _summed(run.days.values())
    tried = used_by(each for standing in run.standings for each in standing.tries)
    return {
        "total": billed,
        "byModel": by_model(run.days),
        "ofNoTry": remainder(billed, tried),
        "ofNoTryByDay": of_no_try(run),
        "cost": _dollars(cost_by_day(run.days.items(), run.book)),
        "unpriced": unpriced(run.days.items(), run.book),
        "priceBook": _book(run.book),
    }


def of_no_try(run: Finished) -> list[dict[str, Any]]:
    """Billed usage that belongs to no try: day, class, model (None for the job's own), quantity."""
    tried: dict[date, list[Mapping[str, float]]] = {}
    for each in (each for standing in run.standings for each in standing.tries):
        for day, used in each.usage_by_day.items():
            tried.setdefault(day, []).append(used)
    return [
        {"day": day.isoformat(), "class": class_of(name), "model": whose(name), "quantity": quantity}
        for day in sorted({*run.days, *tried})
        for name, quantity in remainder(run.days.get(day, {}), _added(tried.get(day, ()))).items()
    ]


def remainder(total: Mapping[str, float], part: Mapping[str, float]) -> dict[str, float]:
    """`total` minus `part`, by name. Differences that are only rounding errors are left out."""
    left = {name: total.get(name, 0) - part.get(name, 0) for name in sorted({*total, *part})}
    return {name: amount for name, amount in left.items() if abs(amount) > 1e-6 * max(1.0, part.get(name, 0))}


def _dollars(amount: Decimal | None) -> str | None:
    """An exact amount without an exponent; None if it is not known."""
    return None if amount is None else f"{amount:f}"
