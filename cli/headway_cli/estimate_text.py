"""Formats an estimate as text for a person, and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headway_analysis.estimate.made import Made
from headway_api.document import Json
from headway_api.prices import PriceBook
from headway_cli.artifact_list import aligned

HASH = 12
"""Number of digits that are shown of a price book's SHA-256, the same as in the status."""


def text(made: Made, book: PriceBook, plays: str) -> str:
    """A job's estimated usage by class, and its cost, as text.

    Args:
        made: the estimate.
        book: the price book.
        plays: a sentence about the episodes that the job will play.
    """
    rows: list[tuple[str, ...]] = [("", "low", "likely", "high")]
    rows += [(key, *(f"{round(each):,}" for each in ends)) for key, ends in sorted(made.usage.items())]
    if made.cost is not None:
        rows.append(("USD in all", *made.cost))
    lines = [plays, *aligned(rows)]
    if made.unpriced:
        lines.append(f"not in the cost: {', '.join(made.unpriced)}")
    lines.append(f"prices {made.price_book}, SHA-256 {book.digest[:HASH]}")
    if made.why:
        lines.append(f"no closer estimate is possible: {made.why}")
    return "\n".join(lines)


def as_json(made: Made, book: PriceBook, plays: str, notes: Sequence[str]) -> Json:
    """The estimate as an object of JSON: amounts are strings, as in the status."""
    low, likely, high = made.cost or (None, None, None)
    return {
        "basis": made.basis,
        "plays": plays,
        "low": low,
        "likely": likely,
        "high": high,
        "currency": "USD",
        "usage": {
            key: dict(zip(("low", "likely", "high"), ends, strict=True)) for key, ends in made.usage.items()
        },
        "unpriced": made.unpriced,
        "priceBook": made.price_book,
        "priceBookHash": book.digest[:HASH],
        "message": made.why or None,
        "notes": list(notes),
    }
