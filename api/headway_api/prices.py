"""Prices, and what usage costs by them.

A price book is dated: what was used on a day costs what the book said on that day, whenever it is read.
Arithmetic is decimal and exact, so that the cost of a whole is the sum of the costs of its parts, to the
last digit; only `shown` rounds.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Context, Decimal, Inexact, localcontext
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from headway_api.base import SpecModel
from headway_api.spec.types import Money

Quantity = int | float | Decimal
PER_MILLION: Final = -6
EXACT: Final = Context(prec=200, traps=[Inexact])


class Prices(SpecModel):
    """US dollars by class of usage. What a class without a price costs is not known, which is not free."""

    prefill: Money = "0"
    """A million prompt tokens computed."""
    cached_prefill: Money = "0"
    """A million prompt tokens found in a server's cache."""
    sample: Money = "0"
    """A million tokens sampled."""
    train: Money = "0"
    """A million tokens trained."""
    discarded: Money = "0"
    """A million tokens sampled for nothing: of retried episodes and abandoned groups."""
    evaluation_prefill: Money = "0"
    """A million prompt tokens computed in validation."""
    evaluation_cached_prefill: Money = "0"
    """A million prompt tokens of validation found in a server's cache."""
    evaluation_sample: Money = "0"
    """A million tokens sampled in validation."""
    endpoint_prompt: Money | None = None
    """A million prompt tokens at an endpoint outside the job. Absent: each service has prices of its own."""
    endpoint_sample: Money | None = None
    """A million tokens sampled at an endpoint outside the job. Absent: as above."""
    judge_prompt: Money | None = None
    """A million tokens of questions to judges. Absent: as above."""
    judge_sample: Money | None = None
    """A million tokens of judges' answers. Absent: as above."""
    sandbox_seconds: Money = "0"
    """A second of one sandbox in use."""
    accelerator_seconds: Money = "0"
    """A second of one accelerator held. Not counted yet."""

    def by_class(self) -> Mapping[str, Decimal | None]:
        """Class name, as in `records.UsageClass` -> price of one token or second; None where it has none."""
        return self._by_class

    @cached_property
    def _by_class(self) -> Mapping[str, Decimal | None]:
        found: dict[str, str | None] = self.model_dump(mode="json", by_alias=True)
        return {name: None if price is None else _of_one(name, price) for name, price in found.items()}


def _of_one(name: str, price: str) -> Decimal:
    """The price of one token or second of a class."""
    return Decimal(price) if name.endswith("Seconds") else Decimal(price).scaleb(PER_MILLION)


class DatedPrices(SpecModel):
    """Prices from a day on, until the next entry's."""

    since: date
    """First day, UTC."""
    source: Annotated[str, Field(max_length=256)] = ""
    """Where the prices are from."""
    prices: Prices
    """The prices."""


class PriceBook(SpecModel):
    """The prices of every day, under a name."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    """Name jobs refer to it by."""
    entries: Annotated[tuple[DatedPrices, ...], Field(min_length=1, max_length=256)]
    """Prices, earliest first. The first also holds for all days before it."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if any(later.since <= earlier.since for earlier, later in pairwise(self.entries)):
            raise ValueError(
                "the entries of a price book must be in the order of their days, one for each day"
            )
        return self

    def on(self, day: date) -> DatedPrices:
        """The entry that holds on `day`."""
        started = [entry for entry in self.entries if entry.since <= day]
        return started[-1] if started else self.entries[0]

    def edition(self, day: date) -> str:
        """NAME@DATE of the entry that holds on `day`, as status names it."""
        return f"{self.name}@{self.on(day).since.isoformat()}"


DEFAULT: Final = PriceBook(
    name="default",
    entries=(
        DatedPrices(
            since=date(2026, 1, 1),
            source="Tinker's prices for Qwen3-8B, January 2026; cached prefill at 80 % off",
            prices=Prices(
                prefill="0.13",
                cached_prefill="0.026",
                sample="0.40",
                train="0.40",
                evaluation_prefill="0.13",
                evaluation_cached_prefill="0.026",
                evaluation_sample="0.40",
            ),
        ),
    ),
)
"""What the same tokens would cost at a managed service: a number to compare one's own cluster with."""


class UnknownClassError(KeyError):
    """Usage of a class the prices do not know; nothing is ever silently free."""


def cost(usage: Mapping[str, Quantity], prices: Prices) -> Decimal:
    """US dollars for `usage` (class -> tokens or seconds), exactly. Keys are `records.UsageClass` values.

    What `unpriced` names is not in it.
    """
    total = Decimal(0)
    with localcontext(EXACT):
        for price, quantity in _priced(usage, prices):
            if price is not None:
                total += price * (Decimal(repr(quantity)) if isinstance(quantity, float) else quantity)
    return total


def _priced(usage: Mapping[str, Quantity], prices: Prices) -> Iterator[tuple[Decimal | None, Quantity]]:
    known = prices.by_class()
    for name, quantity in usage.items():
        if name not in known:
            raise UnknownClassError(f"no price for usage class {name!r}; known: {', '.join(known)}")
        yield known[name], quantity


def unpriced(usage: Iterable[tuple[date, Mapping[str, Quantity]]], book: PriceBook) -> list[str]:
    """The classes that were used on a day on which they have no price: what they cost is not known."""
    found = set[str]()
    for day, used in usage:
        known = book.on(day).prices.by_class()
        found |= {name for name, quantity in used.items() if quantity and known.get(name) is None}
    return sorted(found)


def cost_by_day(usage: Iterable[tuple[date, Mapping[str, Quantity]]], book: PriceBook) -> Decimal:
    """US dollars for usage of several days, each at its own day's prices."""
    with localcontext(EXACT):
        return sum((cost(used, book.on(day).prices) for day, used in usage), Decimal(0))


def shown(amount: Decimal) -> str:
    """An amount as status shows it: to a hundredth of a cent, at least two digits after the point."""
    text = f"{amount:.4f}"
    return text[:-2] if text.endswith("00") else text
