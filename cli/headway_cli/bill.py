"""Computes a run's bill: the usage in its ledger, priced with its price book. Pure, except for `read`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Final

from headway_analysis.billing.segments import Usages, by_name, decode, fold, fold_accelerators, once
from headway_api import names
from headway_api.artifacts import NUMBERED, SEGMENTS, written
from headway_api.document import Json
from headway_api.price_editions import Edition
from headway_api.prices import DEFAULT, PriceBook, cost_by_day, shown, unpriced
from headway_api.records import UsageEvent
from headway_api.stored import parsed, read_each
from headway_cli.artifact_list import aligned
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun, readable

HASH: Final = 12
"""Number of digits that are shown of a price book's SHA-256, the same as in the status."""
UNITS: Final = ("Tokens", "Seconds")
"""Suffixes of the fields of `status.usage` that are quantities."""


@dataclass(frozen=True)
class Used:
    """One kind of usage."""

    key: str
    """Class of usage, with the model or the accelerator product if that is not the job's own."""
    quantity: float
    """Tokens or seconds."""
    cost: str | None = None
    """US dollars; None if this kind has no price, or if the bill has only a total."""


@dataclass(frozen=True)
class Correction:
    """A change of the cost of earlier usage, because the price book changed."""

    edition: int
    """Number of the price book's new edition."""
    at: datetime
    before: str
    """US dollars before the change."""
    after: str
    """US dollars after the change."""


@dataclass(frozen=True)
class Estimated:
    """An estimate of the whole job's cost, in US dollars; None if unknown."""

    basis: str
    low: str | None
    likely: str | None
    high: str | None


@dataclass(frozen=True)
class Bill:
    """A job's usage by kind, and its cost."""

    used: tuple[Used, ...]
    cost: str
    """Total in US dollars."""
    unpriced: tuple[str, ...]
    """Kinds of usage without a price, which the total lacks."""
    price_book: str
    """Name and date of the price book's entry, as NAME@DATE."""
    price_book_hash: str
    """The first digits of the price book's SHA-256."""
    corrections: tuple[Correction, ...] = ()
    correction_count: int = 0
    problem: str | None = None
    """Why the present content of the price book's ConfigMap is not in force; None if it is."""
    estimates: tuple[Estimated, ...] = ()


def read(run: StoredRun, base: str | None) -> Bill:
    """The bill of a run, from its ledger in the store.

    Args:
        run: the run.
        base: the job's base model; None if the run's own files name it.

    Raises:
        RunNotFoundError: a ledger segment is torn or stored twice, or neither `base` nor the run says which
            model's prices apply.
    """
    days = _usage(run)
    editions = _editions(run)
    whole = editions[-1].book if editions else DEFAULT
    model = base if base is not None else model_of(run.job)
    if model is None and any(entry.models for entry in whole.entries):
        raise RunNotFoundError(
            "the price book has prices of single models, but this run does not name its own model: write "
            "--base URI, as in spec.model.base"
        )
    last = max((day for day, _ in days), default=datetime.now(UTC).date())
    return made(days, whole, model or "", last, editions, _estimates(run))


def _usage(run: StoredRun) -> Usages:
    folder = run.layout.usage
    with readable(folder):
        uris = written(run.store.list(folder), folder, SEGMENTS)
        first: dict[str, str] = {}
        events: list[UsageEvent] = []
        for uri, segment in zip(uris, read_each(run.store, uris, decode), strict=True):
            once(uri, segment, first)
            events += segment
    return by_name(fold(events), fold_accelerators(events, {}))


def _editions(run: StoredRun) -> list[Edition]:
    folder = run.layout.prices
    with readable(folder):
        uris = sorted(written(run.store.list(folder), folder, NUMBERED))
        return [*read_each(run.store, uris, partial(parsed, Edition))]


def _estimates(run: StoredRun) -> list[Estimated]:
    """The stored estimates. A local job's status adds its newest, if that one's basis is not stored."""
    found = []
    for basis in ("data", "preflight"):
        with readable(run.layout.root):
            kept = run.files.document(run.layout.estimate(basis))
        if kept is not None:
            found.append(Estimated(basis.capitalize(), *(kept.get("cost") or (None, None, None))))
    newest = of_status(run.status.get("estimate"))
    return found + [each for each in newest if each.basis not in {other.basis for other in found}]


def of_status(estimate: Mapping[str, Any] | None) -> list[Estimated]:
    """The estimates in `status.estimate`."""
    if not estimate:
        return []
    return [Estimated(str(estimate["basis"]), *(estimate.get(end) for end in ("low", "likely", "high")))]


def model_of(job: Mapping[str, Any]) -> str | None:
    """The model whose prices apply to a job's own usage: its base model.

    In an evaluation it is the base of all candidates, or an empty text if they have several bases. Returns
    None if the job does not name it.
    """
    spec = job.get("spec")
    if not spec:
        return None
    if job.get("kind") != names.EVAL_KIND:
        base = (spec.get("model") or {}).get("base")
        return None if base is None else str(base)
    candidates = job.get("candidates")
    if candidates is None and all("checkpoint" not in each for each in spec.get("candidates", ())):
        candidates = [each["model"] for each in spec.get("candidates", ()) if "model" in each]
    if candidates is None:
        return None
    bases = (each.get("trainedFrom") or each.get("base") for each in candidates)
    found = {base for base in bases if base is not None}
    return found.pop() if len(found) == 1 else ""


def made(
    days: Usages,
    whole: PriceBook,
    model: str,
    last: date,
    editions: Sequence[Edition] = (),
    estimates: Sequence[Estimated] = (),
) -> Bill:
    """The bill for usage by day.

    Args:
        days: usage of each day.
        whole: the price book, with the prices of all models.
        model: the model whose prices apply to the job's own usage; empty if there are several.
        last: the day whose entry of the price book the bill names.
        editions: every edition of the price book that was in force.
        estimates: estimates of the whole job's cost.
    """
    book = whole.of(model)
    totals: dict[str, float] = {}
    for _, used in days:
        for key, quantity in used.items():
            totals[key] = totals.get(key, 0.0) + quantity
    missing = unpriced(days, book)
    changed = [each for each in editions if each.before is not None and each.after is not None]
    return Bill(
        used=tuple(
            Used(key, quantity, _cost(days, key, book))
            for key, quantity in sorted(totals.items())
            if quantity
        ),
        cost=shown(cost_by_day(days, book)),
        unpriced=tuple(missing),
        price_book=book.edition(last),
        price_book_hash=whole.digest[:HASH],
        corrections=tuple(
            Correction(each.number, each.at, each.before or "", each.after or "") for each in changed
        ),
        correction_count=len(changed),
        estimates=tuple(estimates),
    )


def _cost(days: Usages, key: str, book: PriceBook) -> str | None:
    """Cost of one kind of usage; None if it has no price on any day."""
    priced = [
        (day, {key: used[key]}) for day, used in days if key in used and book.on(day).of_one(key) is not None
    ]
    return shown(cost_by_day(priced, book)) if priced else None


def from_status(status: Mapping[str, Any]) -> Bill:
    """The bill from a job's status, which has the quantity of each class, but only a total cost.

    Raises:
        RunNotFoundError: the status has no usage yet.
    """
    usage = status.get("usage")
    if usage is None:
        raise RunNotFoundError("the job has used nothing yet: its status has no usage")
    counted = {key: float(value) for key, value in usage.items() if key.endswith(UNITS)}
    counted.pop("totalTokens", None)
    return Bill(
        used=tuple(Used(key, quantity) for key, quantity in counted.items() if quantity),
        cost=str(usage.get("cost", "0")),
        unpriced=tuple(usage.get("unpriced", ())),
        price_book=str(usage.get("priceBook", "")),
        price_book_hash=str(usage.get("priceBookHash", "")),
        correction_count=int(usage.get("priceCorrections", 0)),
        problem=usage.get("priceBookProblem"),
        estimates=tuple(of_status(status.get("estimate"))),
    )


def text(bill: Bill) -> str:
    """The bill as text for a person."""
    apart = any(each.cost is not None for each in bill.used)
    rows = [("used", "quantity", "USD")]
    for each in bill.used:
        priced = each.cost or ("unpriced" if apart else "")
        rows.append((each.key, f"{each.quantity:,.0f}", priced))
    rows.append(("cost so far", "", bill.cost))
    lines = aligned([(*row, "") for row in rows])
    if bill.unpriced:
        lines.append(f"not in the cost, because they have no price: {', '.join(bill.unpriced)}")
    lines.append(f"prices {bill.price_book}, SHA-256 {bill.price_book_hash}")
    for correction in bill.corrections:
        edition = f"edition {correction.edition} of {correction.at:%Y-%m-%d %H:%M}"
        lines.append(f"corrected by {edition}: {correction.before} -> {correction.after} USD")
    if bill.correction_count > len(bill.corrections):
        lines.append(f"corrected {bill.correction_count} times by a changed price book")
    if bill.problem:
        lines.append(f"the current price book is not in force: {bill.problem}")
    for one in bill.estimates:
        amount = "unknown" if one.likely is None else f"{one.likely} USD ({one.low} to {one.high})"
        lines.append(f"estimate by {one.basis}, of the whole job: {amount}")
    return "\n".join(lines)


def as_json(bill: Bill) -> Json:
    """The bill as an object of JSON: amounts are strings, as in the status."""
    return {
        "used": [{"class": each.key, "quantity": each.quantity, "cost": each.cost} for each in bill.used],
        "cost": bill.cost,
        "currency": "USD",
        "unpriced": [*bill.unpriced],
        "priceBook": bill.price_book,
        "priceBookHash": bill.price_book_hash,
        "priceBookProblem": bill.problem,
        "priceCorrections": bill.correction_count,
        "corrections": [
            {"edition": each.edition, "time": each.at.isoformat(), "before": each.before, "after": each.after}
            for each in bill.corrections
        ],
        "estimates": [
            {"basis": each.basis, "low": each.low, "likely": each.likely, "high": each.high}
            for each in bill.estimates
        ],
    }
