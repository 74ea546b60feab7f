"""The ledger's totals as status shows them, and their cost."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Final

from headway_analysis.billing.segments import Days, Usages, by_name, total
from headway_api.prices import ACCELERATORS, PriceBook, class_of, cost_by_day, shown, unpriced
from headway_api.records import UsageClass
from headway_api.status import Usage, decimal
from headway_coordinator.ledger.books import Books

EVALUATION = (
    UsageClass.EVALUATION_PREFILL,
    UsageClass.EVALUATION_CACHED_PREFILL,
    UsageClass.EVALUATION_SAMPLE,
)
ENDPOINT = (UsageClass.ENDPOINT_PROMPT, UsageClass.ENDPOINT_SAMPLE)
JUDGE = (UsageClass.JUDGE_PROMPT, UsageClass.JUDGE_SAMPLE)
MAX_UNPRICED: Final = 16
"""The most entries of `status.usage.unpriced`."""
NAME_LENGTH: Final = 128
"""The most characters of such an entry."""


def usage(
    days: Days, book: PriceBook, today: date, books: Books | None = None, used: Usages | None = None
) -> Usage:
    """The bill so far: each day's usage at that day's prices.

    Args:
        books: the source of `book`, which knows its corrections and problems.
        used: the same usage with accelerator seconds by product, if there are any.
    """
    totals = total(days)
    tokens = {usage_class: round(quantity) for usage_class, quantity in totals.items()}
    by_day = used or by_name(days, {})
    return Usage(
        prefill_tokens=tokens[UsageClass.PREFILL],
        cached_prefill_tokens=tokens[UsageClass.CACHED_PREFILL],
        sample_tokens=tokens[UsageClass.SAMPLE],
        train_tokens=tokens[UsageClass.TRAIN],
        discarded_tokens=tokens[UsageClass.DISCARDED],
        evaluation_tokens=sum(tokens[usage_class] for usage_class in EVALUATION),
        endpoint_tokens=sum(tokens[usage_class] for usage_class in ENDPOINT),
        judge_tokens=sum(tokens[usage_class] for usage_class in JUDGE),
        sandbox_seconds=decimal(totals[UsageClass.SANDBOX_SECONDS], 1),
        accelerator_seconds=decimal(seconds, 0)
        if (seconds := totals[UsageClass.ACCELERATOR_SECONDS])
        else None,
        cost=shown(cost_by_day(by_day, book)),
        unpriced=without_price(unpriced(by_day, book)),
        price_book=book.edition(today),
        price_book_hash=(books.whole if books else book).digest[:12],
        price_corrections=len(books.corrections) if books else 0,
        price_book_problem=books.problem if books else None,
    )


def without_price(names: Iterable[str]) -> list[str]:
    """Usage without a price, as status shows it: CLASS or CLASS:MODEL.

    If there are too many, the last entry gives the number of the rest.
    """
    known = sorted({ACCELERATORS if class_of(name) == ACCELERATORS else name for name in names})
    listed = [name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 3]}..." for name in known]
    if len(listed) <= MAX_UNPRICED:
        return listed
    shown_first = listed[: MAX_UNPRICED - 1]
    return [*shown_first, f"and {len(listed) - len(shown_first)} more"]
