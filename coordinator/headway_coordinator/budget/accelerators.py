"""The accelerator time to reserve: what the job's pods may still hold until they could have ended. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from headway_api import prices
from headway_api.accelerators import Accelerators, Holder, seconds
from headway_coordinator.budget.worst import Slot

AHEAD_SECONDS: Final = 300
"""The longest that accelerators may still be held once the budget is used up. The coordinator has to notice,
the operator has to learn that, and the pods have to end within their grace period."""


def worst_case(report: Accelerators | None, counted: Mapping[Holder, float], now: datetime) -> Counter[Slot]:
    """Accelerator usage that is not in the ledger yet, including the time until the job's pods could end.

    Args:
        report: the operator's last report.
        counted: usage in the ledger.
    """
    found: Counter[Slot] = Counter()
    if report is None:
        return found
    since = max(0.0, (now - report.seen_time).total_seconds())
    for whose, held_seconds in seconds(report).items():
        found[_slot(whose.product)] += max(0, math.ceil(held_seconds - counted.get(whose, 0.0)))
    for pod in report.pods:
        if pod.until is None:
            found[_slot(pod.product)] += pod.count * math.ceil(since + AHEAD_SECONDS)
    return +found


def _slot(product: str) -> Slot:
    return (prices.of_accelerator(product),)
