"""The bill as a table in the style of FOCUS 1.2, the FinOps Open Cost and Usage Specification.

The table has one row for each UTC day and class of usage. Accelerator seconds have a row for each role and
product, and tokens of models other than the job's own have a row for each model. Costs are exact: the sum of
BilledCost is the ledger's cost to the last digit. The table departs from the specification in three ways. A
row without a price has no costs, and its `x_Unpriced` is true. Nobody invoices, so billed, effective,
contracted and list cost are equal. Columns of FOCUS that do not apply are left out.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Final

from headway_api.accelerators import Holder
from headway_api.config import Identity
from headway_api.prices import EXACT, class_of, whose
from headway_api.records import UsageClass

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = "1.2"
MILLION: Final = 1_000_000
COLUMNS: Final = (
    "BilledCost", "BillingAccountId", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost",
    "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit",
    "ProviderName", "PublisherName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory",
    "ServiceName", "SkuId", "SkuPriceId", "SubAccountId", "Tags",
    "x_Model", "x_PriceBook", "x_Role", "x_Unpriced", "x_UsageClass",
)  # fmt: skip
NUMBERS: Final = frozenset(
    {
        "BilledCost", "ConsumedQuantity", "ContractedCost", "ContractedUnitPrice", "EffectiveCost",
        "ListCost", "ListUnitPrice", "PricingQuantity",
    }
)  # fmt: skip
Row = Mapping[str, str | None]
Price = Callable[[UsageClass, date, str | None], Decimal | None]
"""Class, day, and product or model -> price of one token or second; None if there is no price."""


@dataclass(frozen=True)
class Used:
    """The usage that one row of the table bills."""

    day: date
    usage_class: UsageClass
    quantity: float
    role: str | None = None
    product: str | None = None
    model: str | None = None

    @property
    def product_or_model(self) -> str | None:
        """Product or model, on which the price depends besides class and day."""
        return self.product or self.model


def used(
    days: Mapping[date, Mapping[str, float]], held_seconds: Mapping[date, Mapping[Holder, float]]
) -> Iterator[Used]:
    """The ledger's usage by day, class and model; accelerator seconds by role and product."""
    for day in sorted({*days, *held_seconds}):
        for name, quantity in sorted(days.get(day, {}).items()):
            usage_class = UsageClass(class_of(name))
            if usage_class is not UsageClass.ACCELERATOR_SECONDS and quantity:
                yield Used(day, usage_class, quantity, model=whose(name))
        for holder, seconds in sorted(held_seconds.get(day, {}).items()):
            if seconds:
                yield Used(day, UsageClass.ACCELERATOR_SECONDS, seconds, holder.role, holder.product)


def rows(job: Identity, found: Iterable[Used], price: Price, edition: Callable[[date], str]) -> Iterator[Row]:
    """The table's rows. `edition` names the price book's entry of a day."""
    with localcontext(EXACT):
        yield from [
            _row(job, each, price(each.usage_class, each.day, each.product_or_model), edition)
            for each in found
        ]


def _row(job: Identity, each: Used, price: Decimal | None, edition: Callable[[date], str]) -> Row:
    seconds = each.usage_class.value.endswith("Seconds")
    unit, many = ("Seconds", 1) if seconds else ("Tokens", MILLION)
    quantity = Decimal(repr(each.quantity))
    cost = None if price is None else _text(price * quantity)
    unit_price = None if price is None else _text(price * many)
    sku = (
        each.usage_class.value
        if each.product_or_model is None
        else f"{each.usage_class.value}/{each.product_or_model}"
    )
    month = each.day.replace(day=1)
    return {
        "BilledCost": cost,
        "BillingAccountId": job.namespace,
        "BillingCurrency": "USD",
        "BillingPeriodEnd": _midnight((month + timedelta(days=31)).replace(day=1)),
        "BillingPeriodStart": _midnight(month),
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{each.usage_class.value} of {job.kind} {job.namespace}/{job.name}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _midnight(each.day + timedelta(days=1)),
        "ChargePeriodStart": _midnight(each.day),
        "ConsumedQuantity": _text(quantity),
        "ConsumedUnit": unit,
        "ContractedCost": cost,
        "ContractedUnitPrice": unit_price,
        "EffectiveCost": cost,
        "InvoiceIssuerName": "Headway",
        "ListCost": cost,
        "ListUnitPrice": unit_price,
        "PricingCategory": "Standard",
        "PricingQuantity": _text(quantity if seconds else quantity.scaleb(-6)),
        "PricingUnit": unit if seconds else "1M Tokens",
        "ProviderName": "Headway",
        "PublisherName": "Headway",
        "ResourceId": job.uid,
        "ResourceName": job.name,
        "ResourceType": job.kind,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Headway",
        "SkuId": sku,
        "SkuPriceId": f"{edition(each.day)}/{sku}",
        "SubAccountId": job.namespace,
        "Tags": json.dumps(job.labels or {}, sort_keys=True),
        "x_Model": each.model,
        "x_PriceBook": edition(each.day),
        "x_Role": each.role,
        "x_Unpriced": "true" if price is None else "false",
        "x_UsageClass": each.usage_class.value,
    }


def _midnight(day: date) -> str:
    return f"{day.isoformat()}T00:00:00Z"


def _text(number: Decimal) -> str:
    """A number with all its digits and no exponent."""
    return f"{number:f}"


def table(found: Iterable[Row]) -> bytes:
    """The table as CSV; a null is an empty field."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return out.getvalue().encode()


def arrow(found: Iterable[Row]) -> pa.Table:
    """The table in Arrow's format. Its numbers are doubles, for readers that sum; the CSV has every digit."""
    import pyarrow as pa

    listed = [*found]
    columns = {name: [row[name] for row in listed] for name in COLUMNS}
    return pa.table(
        {
            name: pa.array([None if v is None else float(v) for v in values], pa.float64())
            if name in NUMBERS
            else pa.array(values, pa.string())
            for name, values in columns.items()
        }
    )
