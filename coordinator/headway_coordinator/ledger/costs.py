"""The cost of each kind of usage. The bill is the sum of these parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, localcontext
from typing import Final

from headway_analysis.billing.segments import Usages
from headway_api.accelerators import Holder
from headway_api.prices import ACCELERATORS, EXACT, PriceBook, class_of, cost_by_day, whose
from headway_api.records import UsageClass
from headway_coordinator.metrics.prometheus import Sample

KINDS: Final[Mapping[UsageClass, str]] = {
    UsageClass.PREFILL: "prefill",
    UsageClass.CACHED_PREFILL: "cachedPrefill",
    UsageClass.SAMPLE: "sample",
    UsageClass.TRAIN: "train",
    UsageClass.DISCARDED: "discarded",
    UsageClass.EVALUATION_PREFILL: "evaluation",
    UsageClass.EVALUATION_CACHED_PREFILL: "evaluation",
    UsageClass.EVALUATION_SAMPLE: "evaluation",
    UsageClass.ENDPOINT_PROMPT: "endpoint",
    UsageClass.ENDPOINT_SAMPLE: "endpoint",
    UsageClass.JUDGE_PROMPT: "judge",
    UsageClass.JUDGE_SAMPLE: "judge",
    UsageClass.SANDBOX_SECONDS: "sandbox",
    UsageClass.ACCELERATOR_SECONDS: "accelerator",
}
"""Class of usage -> the kind of cost in metrics."""


def by_kind(used: Usages, book: PriceBook) -> dict[str, Decimal]:
    """US dollars by kind, exactly. Their sum equals the sum of `cost_by_day`."""
    found = dict.fromkeys(KINDS.values(), Decimal(0))
    with localcontext(EXACT):
        for (kind, _), amount in by_model(used, book).items():
            found[kind] += amount
    return found


def by_model(used: Usages, book: PriceBook) -> dict[tuple[str, str], Decimal]:
    """US dollars by kind and model, exactly.

    The model is empty for the job's own model and for usage without a model. Every kind has an entry without
    a model.
    """
    found = {(kind, ""): Decimal(0) for kind in KINDS.values()}
    with localcontext(EXACT):
        for day, quantities in used:
            for name, quantity in quantities.items():
                usage_class = class_of(name)
                model = "" if usage_class == ACCELERATORS else whose(name) or ""
                part = KINDS[UsageClass(usage_class)], model
                amount = cost_by_day([(day, {name: quantity})], book)
                found[part] = found.get(part, Decimal(0)) + amount
    return found


def samples(used: Usages, held_seconds: Mapping[Holder, float], book: PriceBook) -> Iterator[Sample]:
    """The parts of the bill for `/metrics`."""
    for (kind, model), amount in by_model(used, book).items():
        yield Sample("cost/usd", float(amount), {"class": kind, "model": model})
    for holder, seconds in sorted(held_seconds.items()):
        yield Sample("usage/accelerator_seconds", seconds, holder._asdict())
