"""An estimate as status shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headway_analysis.estimate.made import Made
from headway_api import status as st
from headway_api.prices import ACCELERATORS, class_of
from headway_api.records import UsageClass
from headway_coordinator.ledger.usage import ENDPOINT, EVALUATION, JUDGE

LONGEST: Final = 20
"""The most characters of an amount of money in a status."""


def of_status(made: Made) -> st.Estimate:
    """An estimate as status shows it: the bounds of the cost, and the likely value of everything else."""
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
    """An amount of money; None if a status has no room for it."""
    return amount if len(amount) <= LONGEST else None
