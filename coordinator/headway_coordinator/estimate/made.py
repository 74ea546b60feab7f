"""An estimate as it is kept, shown in status and held against what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from pydantic import Field

from headway_analysis.estimate.whole import Basis, Estimate
from headway_api import status as st
from headway_api.prices import ACCELERATORS, class_of, shown
from headway_api.record import Record
from headway_api.records import UsageClass
from headway_coordinator.ledger.usage import ENDPOINT, EVALUATION, JUDGE

LONGEST: Final = 20
"""Characters that status has room for in an amount of money."""
Ends = tuple[float, float, float]
"""Low, likely and high."""


class Made(Record):
    """An estimate, and when it was made."""

    basis: Basis
    time: datetime
    """When this basis began."""
    usage: dict[str, Ends] = Field(default_factory=dict)
    """By key of the bill (`prices.of`)."""
    cost: tuple[str, str, str] | None = None
    """US dollars: low, likely and high. None where nothing can be told."""
    unpriced: list[str] = Field(default_factory=list)
    """Classes that are not in the cost."""
    seconds: Ends | None = None
    episodes: int = Field(default=0, ge=0)
    """That were measured."""
    price_book: str
    """The prices it is by: NAME@DATE."""
    why: str = ""
    """Why it says nothing, or no more than it does."""

    @classmethod
    def of(cls, found: Estimate, time: datetime, price_book: str) -> Made:
        """An estimate, made now."""
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


def of_status(made: Made) -> st.Estimate:
    """As status shows it: the ends of the cost, and what is likely of all else."""
    likely: dict[str, float] = {}
    for key, amount in made.usage.items():
        likely[class_of(key)] = likely.get(class_of(key), 0.0) + amount[1]
    low, middle, high = (None, None, None) if made.cost is None else map(_money, made.cost)
    return st.Estimate(
        basis=made.basis,
        low=low,
        likely=middle,
        high=high,
        prefill_tokens=_tokens(likely, [UsageClass.PREFILL]),
        cached_prefill_tokens=_tokens(likely, [UsageClass.CACHED_PREFILL]),
        sample_tokens=_tokens(likely, [UsageClass.SAMPLE]),
        train_tokens=_tokens(likely, [UsageClass.TRAIN]),
        discarded_tokens=_tokens(likely, [UsageClass.DISCARDED]),
        evaluation_tokens=_tokens(likely, EVALUATION),
        endpoint_tokens=_tokens(likely, ENDPOINT),
        judge_tokens=_tokens(likely, JUDGE),
        sandbox_seconds=st.decimal(likely.get(UsageClass.SANDBOX_SECONDS, 0.0), 1),
        accelerator_seconds=st.decimal(likely[ACCELERATORS], 1) if ACCELERATORS in likely else None,
        seconds=None if made.seconds is None else round(made.seconds[1]),
        unpriced=[name[:128] for name in made.unpriced[:16]],
        episodes=made.episodes,
        price_book=made.price_book[:128],
        time=made.time,
        message=made.why[:1024] or None,
    )


def _tokens(likely: dict[str, float], classes: Iterable[UsageClass]) -> int:
    return sum(round(likely.get(name.value, 0.0)) for name in classes)


def _money(amount: str) -> str | None:
    """None of an amount that status has no room for."""
    return amount if len(amount) <= LONGEST else None


def no_less(made: Made, cost: Decimal) -> Made:
    """An estimate of which no end is below what is billed: some was, perhaps, since it was made.

    Args:
        made: with a cost, or without.
        cost: US dollars that are billed.
    """
    if made.cost is None:
        return made
    ends = (shown(max(Decimal(amount), cost)) for amount in made.cost)
    return made.model_copy(update={"cost": (*ends,)})


def compared(made: Made, actual: Decimal) -> dict[str, Any]:
    """An estimate beside what came of it: how far the likely cost was off, of the actual one."""
    told = made.model_dump(mode="json")
    if made.cost is None:
        return told
    low, likely, high = map(Decimal, made.cost)
    error = float((likely - actual) / actual) if actual else None
    return told | {"relative_error": error, "inside": low <= actual <= high}
