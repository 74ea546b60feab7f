"""What the ledger says, as status shows it, and what it costs."""

from __future__ import annotations

from datetime import date

from headway_api.prices import PriceBook, cost_by_day, shown, unpriced
from headway_api.records import UsageClass
from headway_api.status import Usage, decimal
from headway_coordinator.ledger.segments import Days, total

EVALUATION = (
    UsageClass.EVALUATION_PREFILL,
    UsageClass.EVALUATION_CACHED_PREFILL,
    UsageClass.EVALUATION_SAMPLE,
)
ENDPOINT = (UsageClass.ENDPOINT_PROMPT, UsageClass.ENDPOINT_SAMPLE)
JUDGE = (UsageClass.JUDGE_PROMPT, UsageClass.JUDGE_SAMPLE)


def usage(days: Days, book: PriceBook, today: date) -> Usage:
    """The bill so far: each day's usage at that day's prices."""
    totals = total(days)
    tokens = {usage_class: round(quantity) for usage_class, quantity in totals.items()}
    by_day = [(day, {name.value: amount for name, amount in used.items()}) for day, used in days.items()]
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
        cost=shown(cost_by_day(by_day, book)),
        unpriced=unpriced(by_day, book),
        price_book=book.edition(today),
    )
