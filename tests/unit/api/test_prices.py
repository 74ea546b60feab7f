"""Costs add up to the last digit, and usage of a day has that day's price."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway_api.prices import (
    DEFAULT,
    DatedPrices,
    PriceBook,
    Prices,
    UnknownClassError,
    cost,
    cost_by_day,
    shown,
    unpriced,
)
from headway_api.records import UsageClass

PRICES = DEFAULT.entries[0].prices
usages = st.dictionaries(
    st.sampled_from([kind.value for kind in UsageClass if kind != UsageClass.SANDBOX_SECONDS]),
    st.integers(0, 10**15),
)


def test_the_book_knows_every_class_of_the_ledger() -> None:
    assert {kind.value for kind in UsageClass} <= PRICES.by_class().keys()


def test_a_bill_equals_a_calculation_by_hand() -> None:
    used = {
        UsageClass.PREFILL: 2_000_000,
        UsageClass.CACHED_PREFILL: 500_000,
        UsageClass.SAMPLE: 1,
        UsageClass.DISCARDED: 7,
    }
    assert cost(used, PRICES) == Decimal("0.26") + Decimal("0.013") + Decimal("0.0000004")


@given(usages, usages)
def test_the_whole_costs_the_sum_of_its_parts(one: dict[str, int], other: dict[str, int]) -> None:
    both = {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}
    assert cost(both, PRICES) == cost(one, PRICES) + cost(other, PRICES)


@given(st.lists(st.integers(0, 10**12), max_size=20))
def test_order_does_not_matter(tokens: list[int]) -> None:
    parts = [cost({"sample": count}, PRICES) for count in tokens]
    assert sum(parts, Decimal(0)) == sum(reversed(parts), Decimal(0)) == cost({"sample": sum(tokens)}, PRICES)


@given(st.floats(0, 1e9))
def test_seconds_are_taken_as_written(seconds: float) -> None:
    assert cost({"sandboxSeconds": seconds}, Prices(sandbox_seconds="0.5")) == Decimal(
        repr(seconds)
    ) * Decimal("0.5")


def test_nothing_is_silently_free() -> None:
    with pytest.raises(UnknownClassError, match="'samples'; known: prefill"):
        cost({"samples": 1}, PRICES)


def test_a_class_without_a_price_is_named_and_not_free() -> None:
    """Each service has its own prices, so the default book has none for endpoints."""
    day = date(2026, 5, 1)
    used = {"endpointPrompt": 10**6, "endpointSample": 0, "sample": 10**6}
    assert unpriced([(day, used)], DEFAULT) == ["endpointPrompt"]
    assert cost(used, PRICES) == cost({"sample": 10**6}, PRICES)
    known = PriceBook(
        name="known",
        entries=(DatedPrices(since=day, prices=Prices(endpoint_prompt="2", endpoint_sample="8")),),
    )
    assert unpriced([(day, used)], known) == ["sample"]
    assert cost_by_day([(day, used)], known) == 2
    assert PriceBook.model_validate(DEFAULT.as_object()) == DEFAULT


BOOK = PriceBook(
    name="ours",
    entries=(
        DatedPrices(since=date(2026, 1, 1), prices=Prices(sample="1")),
        DatedPrices(since=date(2026, 7, 1), prices=Prices(sample="2")),
    ),
)


@pytest.mark.parametrize(
    ("day", "edition"),
    [
        (date(2025, 1, 1), "ours@2026-01-01"),
        (date(2026, 6, 30), "ours@2026-01-01"),
        (date(2026, 7, 1), "ours@2026-07-01"),
        (date(2030, 1, 1), "ours@2026-07-01"),
    ],
)
def test_the_price_is_that_of_the_day(day: date, edition: str) -> None:
    assert BOOK.edition(day) == edition


def test_a_later_price_does_not_touch_what_was_used_before() -> None:
    used = [(date(2026, 6, 30), {"sample": 10**6}), (date(2026, 7, 1), {"sample": 10**6})]
    assert cost_by_day(used, BOOK) == 3


def test_entries_are_in_order() -> None:
    with pytest.raises(ValidationError, match="in the order of their days"):
        PriceBook(name="ours", entries=tuple(reversed(BOOK.entries)))


def test_a_book_is_read_from_json() -> None:
    assert PriceBook.model_validate(BOOK.as_object()) == BOOK


@pytest.mark.parametrize(
    ("amount", "text"),
    [("18.42", "18.42"), ("0", "0.00"), ("0.00004", "0.00"), ("3.14159", "3.1416"), ("1.505", "1.5050")],
)
def test_status_shows_hundredths_of_a_cent(amount: str, text: str) -> None:
    assert shown(Decimal(amount)) == text
