"""The bill's exports: CloudEvents with unique ids, and a table that adds up to the cost."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.billing import cloudevents, focus
from headway_analysis.report.table import parquet
from headway_api import prices
from headway_api.accelerators import Holder
from headway_api.config import Identity
from headway_api.prices import cost_by_day
from headway_api.records import UsageClass, UsageEvent

JOB = Identity(
    name="refunds", namespace="shop", uid="0b5e", kind="RLTrainingJob", labels={"acme.io/team": "returns"}
)
DAY = date(2026, 11, 3)
H100 = Holder("learner", "NVIDIA-H100")
QUANTITIES = st.integers(1, 10**12).map(lambda tenths: tenths / 10)
TOKENS = [name for name in UsageClass if name is not UsageClass.ACCELERATOR_SECONDS]
DAYS = st.dictionaries(
    st.dates(date(2025, 12, 1), date(2026, 12, 31)),
    st.dictionaries(st.sampled_from(TOKENS), QUANTITIES, max_size=6),
    max_size=5,
)
BOOK = prices.PriceBook(
    name="ours",
    entries=(
        prices.DatedPrices(since=date(2026, 1, 1), prices=prices.Prices(sample="0.4", train="0.123456")),
        prices.DatedPrices(since=date(2026, 6, 1), prices=prices.Prices(sample="0.7", prefill="0.01")),
    ),
)


def price(usage_class: UsageClass, day: date, product: str | None) -> Decimal | None:
    if product is not None:
        return Decimal("0.0011") if product == H100.product else None
    return BOOK.on(day).prices.by_class()[usage_class.value]


def sheet(
    days: dict[date, dict[UsageClass, float]], held: dict[date, dict[Holder, float]] | None = None
) -> list[dict[str, str]]:
    rows = focus.rows(JOB, focus.used(days, held or {}), price, BOOK.edition)
    return [*csv.DictReader(io.StringIO(focus.table(rows).decode()))]


def exact_sum(texts: list[str]) -> Decimal:
    with localcontext(prices.EXACT):
        return sum(map(Decimal, texts), Decimal(0))


@given(DAYS)
def test_the_rows_add_up_to_the_ledgers_cost_to_the_last_digit(
    days: dict[date, dict[UsageClass, float]],
) -> None:
    found = sheet(days)
    total = cost_by_day([(day, {n.value: q for n, q in used.items()}) for day, used in days.items()], BOOK)
    for column in ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost"):
        assert exact_sum([row[column] for row in found if row[column]]) == total
    assert len(found) == sum(map(len, days.values()))


@given(DAYS)
def test_quantity_times_price_is_the_cost_of_every_row(days: dict[date, dict[UsageClass, float]]) -> None:
    for row in sheet(days):
        if row["x_Unpriced"] == "false":
            with localcontext(prices.EXACT):
                assert Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) == Decimal(
                    row["ListCost"]
                )
        else:
            assert row["ListCost"] == row["BilledCost"] == row["ListUnitPrice"] == ""


def test_a_row_has_exact_cost_charge_day_and_billing_month() -> None:
    (row,) = sheet({DAY: {UsageClass.SAMPLE: 2_500_000.0}})
    assert row["BilledCost"] == "1.75000000"
    assert Decimal(row["BilledCost"]) == Decimal("1.75")
    assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == (
        "2026-11-03T00:00:00Z",
        "2026-11-04T00:00:00Z",
    )
    assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == (
        "2026-11-01T00:00:00Z",
        "2026-12-01T00:00:00Z",
    )
    assert (row["PricingUnit"], Decimal(row["PricingQuantity"])) == ("1M Tokens", Decimal("2.5"))
    assert (row["ConsumedUnit"], Decimal(row["ConsumedQuantity"])) == ("Tokens", 2_500_000)
    assert (row["SubAccountId"], row["ResourceId"], row["ResourceName"]) == ("shop", "0b5e", "refunds")
    assert json.loads(row["Tags"]) == {"acme.io/team": "returns"}
    assert row["SkuPriceId"] == "ours@2026-06-01/sample"


@pytest.mark.parametrize("day", [date(2026, 12, 31), date(2026, 1, 31), date(2028, 2, 29)])
def test_a_billing_period_is_the_month(day: date) -> None:
    (row,) = sheet({day: {UsageClass.SAMPLE: 1.0}})
    start, end = (datetime.fromisoformat(row[f"BillingPeriod{side}"]).date() for side in ("Start", "End"))
    assert (start.day, end.day) == (1, 1)
    assert start <= day < end
    assert 28 <= (end - start).days <= 31


def test_accelerators_are_rows_by_role_and_product_even_unpriced() -> None:
    held = {DAY: {H100: 3600.0, Holder("rollout", "L4"): 60.0}}
    known, unknown = sheet({DAY: {UsageClass.ACCELERATOR_SECONDS: 3660.0}}, held)
    assert (known["SkuId"], known["x_Role"], Decimal(known["BilledCost"])) == (
        "acceleratorSeconds/NVIDIA-H100", "learner", Decimal("3.96"),
    )  # fmt: skip
    assert (unknown["BilledCost"], unknown["x_Unpriced"], unknown["ConsumedQuantity"]) == ("", "true", "60.0")


def test_parquet_has_the_same_columns_and_rows() -> None:
    import pyarrow.parquet as pq

    rows = [*focus.rows(JOB, focus.used({DAY: {UsageClass.SAMPLE: 10.0}}, {}), price, BOOK.edition)]
    read = pq.read_table(io.BytesIO(parquet(focus.arrow(rows))))
    assert tuple(read.column_names) == focus.COLUMNS
    assert read.column("BilledCost").to_pylist() == [float(Decimal("0.000007"))]


def used(name: str, at: float, **more: Any) -> UsageEvent:
    return UsageEvent(id=name, usage_class=UsageClass.SAMPLE, quantity=3, at=at, **more)


def test_an_event_is_a_cloud_event() -> None:
    noon = datetime(2026, 11, 3, 12, tzinfo=UTC).timestamp()
    (event,) = map(json.loads, cloudevents.lines(JOB, [used("a/0/sample", noon)]).splitlines())
    assert event == {
        "specversion": "1.0",
        "type": "dev.headway.usage.v1",
        "source": "/apis/headway.dev/v1alpha1/namespaces/shop/rltrainingjobs/refunds/0b5e",
        "id": "a/0/sample",
        "time": "2026-11-03T12:00:00Z",
        "datacontenttype": "application/json",
        "data": {"class": "sample", "quantity": 3.0, "labels": {"acme.io/team": "returns"}},
    }


def test_events_that_are_exported_again_have_the_same_ids() -> None:
    events = [used(f"e{n}", 86_400.0 * n) for n in (2, 0, 1)]
    once, again = (cloudevents.lines(JOB, each) for each in (events, reversed(events)))
    assert once == again
    keys = [(event["source"], event["id"]) for event in map(json.loads, (once + again).splitlines())]
    assert len(set(keys)) == 3
    other = JOB.model_copy(update={"uid": "another"})
    assert cloudevents.source(other) != cloudevents.source(JOB)


def test_an_event_has_the_day_whose_price_it_gets() -> None:
    midnight = datetime(2026, 11, 4, tzinfo=UTC).timestamp()
    found = cloudevents.by_day([used("a", midnight - 0.001), used("b", midnight)])
    assert {day: [each.id for each in events] for day, events in found.items()} == {
        DAY: ["a"], date(2026, 11, 4): ["b"],
    }  # fmt: skip
