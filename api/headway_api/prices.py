"""Prices, and the cost of usage by them.

A price book is dated. Usage of a day costs what the book says for that day, whenever the book is read, so a
corrected price also corrects the past. A class without a price is not free: its cost is unknown. Arithmetic
is decimal and exact, so the cost of a whole is the sum of the costs of its parts, to the last digit. Only
`shown` rounds.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Context, Decimal, Inexact, localcontext
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Final, Self

from pydantic import Field, PrivateAttr, model_validator

from headway_api.base import SpecModel
from headway_api.field_types import Money

Quantity = int | float | Decimal
Product = Annotated[str, Field(min_length=1, max_length=128)]
Pattern = Annotated[str, Field(pattern=r"^[^*\s]+\*?$|^\*$", max_length=512)]
PER_MILLION: Final = -6
ACCELERATORS: Final = "acceleratorSeconds"
EXACT: Final = Context(prec=200, traps=[Inexact])


class Prices(SpecModel):
    """US dollars by class of usage. The cost of a class without a price is unknown, not 0. If a class is
    free, write "0"."""

    prefill: Money | None = None
    """A million prompt tokens computed."""
    cached_prefill: Money | None = None
    """A million prompt tokens found in a server's cache."""
    sample: Money | None = None
    """A million tokens sampled."""
    train: Money | None = None
    """A million tokens trained."""
    discarded: Money = "0"
    """A million discarded tokens, of retried episodes and abandoned groups. Absent: free."""
    evaluation_prefill: Money | None = None
    """A million prompt tokens computed in episodes that are billed as evaluation."""
    evaluation_cached_prefill: Money | None = None
    """A million prompt tokens of such episodes, found in a server's cache."""
    evaluation_sample: Money | None = None
    """A million tokens sampled in episodes that are billed as evaluation."""
    endpoint_prompt: Money | None = None
    """A million prompt tokens at an endpoint outside the job."""
    endpoint_sample: Money | None = None
    """A million tokens sampled at an endpoint outside the job."""
    judge_prompt: Money | None = None
    """A million tokens of questions to judges."""
    judge_sample: Money | None = None
    """A million tokens of judges' answers."""
    sandbox_seconds: Money | None = None
    """A second of one sandbox in use."""
    accelerator_seconds: Money | None = None
    """A second of one accelerator held, for any product that `accelerators` does not name."""
    accelerators: Annotated[dict[Product, Money], Field(max_length=64, default_factory=dict)]
    """A second of one accelerator held, by product as `status.accelerators` names it."""

    def over(self, other: "Prices") -> "Prices":
        """These prices, and for the classes that have no price here, the prices of `other`."""
        own, others = (each.model_dump(exclude_unset=True, exclude_none=True) for each in (self, other))
        return Prices.model_validate(others | own)

    def by_class(self) -> Mapping[str, Decimal | None]:
        """Class name, as in `records.UsageClass` -> price of one token or second; None if it has no price."""
        return self._by_class

    @cached_property
    def _by_class(self) -> Mapping[str, Decimal | None]:
        found: dict[str, str | None] = self.model_dump(mode="json", by_alias=True, exclude={"accelerators"})
        found |= {of_accelerator(product): price for product, price in self.accelerators.items()}
        return {name: None if price is None else _of_one(name, price) for name, price in found.items()}

    def of_one(self, name: str) -> Decimal | None:
        """The price of one token or second of a class, or of a second of one product (`of_accelerator`).

        Raises:
            UnknownClassError: there is no such class.
        """
        known = self.by_class()
        found = name if name in known else class_of(name)
        if found not in known:
            raise UnknownClassError(f"no price for usage class {name!r}; known: {', '.join(known)}")
        return known[found]


def of(usage_class: str, whose: str | None) -> str:
    """The name under which usage is counted: CLASS:NAME for one product or model, else CLASS."""
    return usage_class if whose is None else f"{usage_class}:{whose}"


def of_accelerator(product: str) -> str:
    """The name under which the seconds of one accelerator product are counted."""
    return of(ACCELERATORS, product)


def class_of(name: str) -> str:
    """The class in a name that `of` made."""
    return name.partition(":")[0]


def whose(name: str) -> str | None:
    """The product or model in a name that `of` made; None for the job's own."""
    return name.partition(":")[2] or None


class UnknownClassError(KeyError):
    """Usage has an unknown class. This is an error, so that nothing is free by accident."""


def _of_one(name: str, price: str) -> Decimal:
    """The price of one token or second of a class."""
    return Decimal(price) if class_of(name).endswith("Seconds") else Decimal(price).scaleb(PER_MILLION)


class DatedPrices(SpecModel):
    """Prices from one day until the next entry's day."""

    since: date
    """First day, UTC."""
    source: Annotated[str, Field(max_length=256)] = ""
    """Where the prices are from."""
    prices: Prices
    """The prices."""
    models: Annotated[dict[Pattern, Prices], Field(max_length=256, default_factory=dict)]
    """Prices of single models of the job, its judges and its candidates. A base model is named as in
    `spec.model.base`, a model at an endpoint as in `endpoint.model`. A name that ends in * matches all names
    with that beginning. An exact name wins, otherwise the longest match. A class that is absent has the
    entry's own price."""
    _own: Prices | None = PrivateAttr(default=None)
    """What `prices` were before `for_job` replaced them by those of the job's model; None if it has not."""

    def of(self, model: str) -> Prices:
        """The prices of usage of `model`."""
        fit = [name for name in self.models if _fits(name, model)]
        best = model if model in fit else max(fit, key=len, default=None)
        return self.own if best is None else self.models[best].over(self.own)

    @property
    def own(self) -> Prices:
        """The prices of usage of a model that `models` does not name."""
        return self._own or self.prices

    def for_job(self, model: str) -> Self:
        """This entry for jobs of `model`: `prices` are that model's, and other models keep theirs. An
        entry that is already for jobs of a model stays unchanged."""
        if self._own is not None:
            return self
        # This makes no copy: a copy would share the cache of prices in `_found`.
        found = type(self)(since=self.since, source=self.source, prices=self.of(model), models=self.models)
        found._own = self.prices
        return found

    @cached_property
    def _found(self) -> dict[str, Prices]:
        """Cache of the models' prices that were looked up so far; a job has few models."""
        return {}

    def of_one(self, name: str) -> Decimal | None:
        """The price of one token or second of a class, or of a name that `of` made; None if it has none.

        Raises:
            UnknownClassError: there is no such class.
        """
        usage_class, model = class_of(name), whose(name)
        if model is None or usage_class == ACCELERATORS:
            return self.prices.of_one(name)
        if model not in self._found:
            self._found[model] = self.of(model)
        return self._found[model].of_one(usage_class)


def _fits(name: str, model: str) -> bool:
    return model.startswith(name[:-1]) if name.endswith("*") else model == name


class PriceBook(SpecModel):
    """The prices of every day, under a name."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    """Name by which jobs refer to it."""
    entries: Annotated[tuple[DatedPrices, ...], Field(min_length=1, max_length=256)]
    """Prices, earliest first. The first also applies to all days before it."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for number, (earlier, later) in enumerate(pairwise(self.entries), 1):
            if later.since <= earlier.since:
                raise ValueError(
                    f"entries[{number}].since: {later.since} does not follow {earlier.since}; write the "
                    "entries in the order of their days, one for each day"
                )
        return self

    def of(self, model: str) -> Self:
        """This book for jobs of one model; other models, of judges and candidates, keep their prices."""
        entries = tuple(entry.for_job(model) for entry in self.entries)
        return self.model_copy(update={"entries": entries})

    @property
    def digest(self) -> str:
        """SHA-256 of the whole content, in hex."""
        document = json.dumps(self.as_object(), sort_keys=True, separators=(",", ":"))
        return sha256(document.encode()).hexdigest()

    def on(self, day: date) -> DatedPrices:
        """The entry that applies on `day`."""
        started = [entry for entry in self.entries if entry.since <= day]
        return started[-1] if started else self.entries[0]

    def edition(self, day: date) -> str:
        """NAME@DATE of the entry that applies on `day`, as status names it."""
        return f"{self.name}@{self.on(day).since.isoformat()}"


DEFAULT: Final = PriceBook(
    name="default",
    entries=(
        DatedPrices(
            since=date(2026, 1, 1),
            source="Tinker's prices for Qwen3-8B, January 2026; cached prefill at 80 % off; no sandboxes",
            prices=Prices(
                sandbox_seconds="0",
                discarded="0",
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
"""The prices of a managed service, for comparison with the cost of one's own cluster."""


def cost(usage: Mapping[str, Quantity], prices: Prices | DatedPrices) -> Decimal:
    """US dollars for `usage` (class -> tokens or seconds), exactly. Keys are `records.UsageClass` values, or
    names that `of` made.

    Classes that `unpriced` names are left out.
    """
    total = Decimal(0)
    with localcontext(EXACT):
        for price, quantity in _priced(usage, prices):
            if price is not None:
                total += price * (Decimal(repr(quantity)) if isinstance(quantity, float) else quantity)
    return total


def _priced(
    usage: Mapping[str, Quantity], prices: Prices | DatedPrices
) -> Iterator[tuple[Decimal | None, Quantity]]:
    for name, quantity in usage.items():
        yield prices.of_one(name), quantity


def unpriced(usage: Iterable[tuple[date, Mapping[str, Quantity]]], book: PriceBook) -> list[str]:
    """The classes that were used on a day without a price for them, so their cost is unknown. They are named
    as in `usage`: with the model or product if `of` added it."""
    found = set[str]()
    for day, used in usage:
        prices = book.on(day)
        found |= {name for name, quantity in used.items() if quantity and prices.of_one(name) is None}
    return sorted(found)


def cost_by_day(usage: Iterable[tuple[date, Mapping[str, Quantity]]], book: PriceBook) -> Decimal:
    """US dollars for usage of several days, each at its own day's prices."""
    with localcontext(EXACT):
        return sum((cost(used, book.on(day)) for day, used in usage), Decimal(0))


class Tariff:
    """The prices of a price book for one job."""

    def __init__(self, book: PriceBook, model: str = "") -> None:
        """`model`: the job's base model; empty if there are several."""
        self._book = book.of(model)

    def price(self, name: str, day: date) -> Decimal | None:
        """US dollars for one token or second of a class, or of a name that `of` made; None if it has no
        price.

        Raises:
            UnknownClassError: there is no such class.
        """
        return self._book.on(day).of_one(name)

    def cost(self, usage: Iterable[tuple[date, Mapping[str, Quantity]]]) -> Decimal:
        """US dollars for the usage, exactly. Classes without a price are left out."""
        return cost_by_day(usage, self._book)

    def edition(self, day: date) -> str:
        """NAME@DATE of the entry that applies on `day`."""
        return self._book.edition(day)


def shown(amount: Decimal) -> str:
    """An amount as status shows it: to a hundredth of a cent, at least two digits after the point."""
    text = f"{amount:.4f}"
    return text[:-2] if text.endswith("00") else text
