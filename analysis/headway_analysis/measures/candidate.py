"""A candidate's measures with their intervals, per task and over all, and how it differs from a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Final

from headway_analysis.measures.catalogue import Measure, Price
from headway_analysis.measures.tries import Try
from headway_analysis.statistics.differences import Difference, compare, corrected
from headway_analysis.statistics.estimates import Estimate, Sample, estimate, total
from headway_api.prices import EXACT, PriceBook, cost_by_day, unpriced

ALL: Final = "all"
"""The name for all tasks of the job's own rows together. Samples of suites do not belong to it."""


def priced(book: PriceBook) -> Price:
    """A function that gives a try's cost at the prices of its days; None if the cost is unknown."""

    def price(each: Try) -> Decimal | None:
        used = each.usage_by_day.items()
        return cost_by_day(used, book) if each.bill_known and not unpriced(used, book) else None

    return price


def total_cost(tries: Sequence[Try], price: Price) -> Decimal | None:
    """US dollars of all tries, exactly; None if the cost of one of them is unknown."""
    found = [price(each) for each in tries]
    known = [each for each in found if each is not None]
    with localcontext(EXACT):
        return sum(known, Decimal(0)) if len(known) == len(found) else None


def of_task(tries: Sequence[Try], task: str) -> list[Try]:
    """The tries of a task or suite. The task `all` has every try outside suites."""
    if task == ALL:
        return [each for each in tries if not each.place.suite]
    return [each for each in tries if each.place.task == task]


def suites_of(tries: Iterable[Try]) -> list[str]:
    """The names of the suites to which some of the tries belong."""
    return sorted({each.place.task for each in tries if each.place.suite})


def tasks_of(tries: Sequence[Try]) -> list[str]:
    """`all`, and then the tasks of the tries in the order of their names."""
    return [ALL, *sorted({each.place.task for each in tries} - {"", ALL})]


def estimates(
    tries: Sequence[Try], measures: Mapping[str, Measure], price: Price | None = None
) -> dict[str, Estimate]:
    """Every measure of one candidate's tries, by name; a measure without a value is left out."""
    found = {name: estimate(measure.sample(tries)) for name, measure in measures.items()}
    known = {name: each for name, each in found.items() if each is not None}
    cost = total_cost(tries, price) if price is not None and tries else None
    if cost is not None:
        known["cost_total"] = total(float(cost), measures["infra_error"].sample(tries))
    return known


def by_task(
    tries: Sequence[Try], measures: Mapping[str, Measure], price: Price | None = None
) -> dict[str, dict[str, Estimate]]:
    """The measures of one candidate's tries: task -> measure -> estimate, also for the task `all`."""
    return {task: estimates(of_task(tries, task), measures, price) for task in tasks_of(tries)}


def samples(tries: Sequence[Try], measures: Mapping[str, Measure]) -> dict[str, Sample]:
    """One candidate's values of every measure that has any. The gate judges these values."""
    found = {name: measure.sample(tries) for name, measure in measures.items()}
    return {name: sample for name, sample in found.items() if sample.bottoms.sum() > 0}


def less_is_better(measures: Mapping[str, Measure]) -> frozenset[str]:
    """The measures that are better when lower."""
    return frozenset(name for name, measure in measures.items() if measure.less_is_better)


def differences(tries: Mapping[str, Sequence[Try]], baseline: str, measure: Measure) -> dict[str, Difference]:
    """Every other candidate's paired difference from the baseline, with p values by Holm's correction.

    Args:
        tries: by candidate. A row that a candidate has not measured yet is left out of its pairs.
    """
    base = measure.sample(tries[baseline])
    found = {name: compare(measure.sample(of), base) for name, of in tries.items() if name != baseline}
    known = {name: each for name, each in found.items() if each is not None}
    return dict(zip(known, corrected(list(known.values())), strict=True))
