"""An estimate as it is stored, and a comparison with the actual cost."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import Field

from headway_analysis.estimate.whole import Basis, Estimate
from headway_api.prices import shown
from headway_api.record import Record

Ends = tuple[float, float, float]
"""The low, likely and high value."""


class Made(Record):
    """An estimate, and when it was made."""

    basis: Basis
    time: datetime
    """Since when the estimate has this basis."""
    usage: dict[str, Ends] = Field(default_factory=dict)
    """Tokens or seconds by key of the bill (`prices.of`)."""
    cost: tuple[str, str, str] | None = None
    """US dollars: low, likely and high. None if no estimate is possible."""
    unpriced: list[str] = Field(default_factory=list)
    """Classes of usage that `cost` does not include."""
    seconds: Ends | None = None
    episodes: int = Field(default=0, ge=0)
    """The number of measured episodes."""
    price_book: str
    """The price book and its entry: NAME@DATE."""
    why: str = ""
    """Why the estimate is missing or incomplete."""

    @classmethod
    def of(cls, found: Estimate, time: datetime, price_book: str) -> Made:
        """An estimate in its stored form. `time`: when its basis began."""
        ends = found.seconds
        return cls(
            basis=found.basis,
            time=time,
            usage={name: (much.low, much.likely, much.high) for name, much in sorted(found.usage.items())},
            cost=None if found.cost is None else (*map(shown, found.cost),),
            unpriced=list(found.unpriced),
            seconds=None if ends is None else (ends.low, ends.likely, ends.high),
            episodes=found.episodes,
            price_book=price_book,
            why=found.why,
        )


def no_less(made: Made, cost: Decimal) -> Made:
    """The estimate with low, likely and high cost raised to at least the cost that is billed by now.

    Args:
        made: the estimate; it stays as it is if it has no cost.
        cost: US dollars that are billed by now.
    """
    if made.cost is None:
        return made
    ends = (shown(max(Decimal(amount), cost)) for amount in made.cost)
    return made.model_copy(update={"cost": (*ends,)})


def compared(made: Made, actual: Decimal) -> dict[str, Any]:
    """An estimate as a JSON document, with the likely cost's error as a share of the actual cost."""
    document = made.model_dump(mode="json")
    if made.cost is None:
        return document
    low, likely, high = map(Decimal, made.cost)
    error = float((likely - actual) / actual) if actual else None
    return document | {"relative_error": error, "inside": low <= actual <= high}
