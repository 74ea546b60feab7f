"""The arithmetic of a budget: its limits, what is spent, and what is reserved. No clock, waiting or I/O.

The amount spent is the ledger's usage at the current prices, so a corrected price changes it. Reservations
are kept in tokens and seconds. In money, a reservation counts as the most that it may cost at these prices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation, localcontext
from typing import Final, Protocol

from headway_api.grants import NAMESPACE, Grant, Part
from headway_api.prices import EXACT, Quantity, class_of
from headway_api.records import UsageClass
from headway_api.spec import lifecycle
from headway_api.spec.lifecycle import USD, BudgetSpec
from headway_coordinator.budget.worst import Amounts, Slot
from headway_coordinator.ledger.usage import ENDPOINT, EVALUATION, JUDGE

CENTS: Final = Decimal("0.0001")
"""Money is shown to a hundredth of a cent."""
LOW: Final = Decimal("0.2")
"""Below this share of a limit, little is left."""
CLASSES: Final[Mapping[str, Collection[UsageClass]]] = {
    "prefill": (UsageClass.PREFILL,),
    "cachedPrefill": (UsageClass.CACHED_PREFILL,),
    "sample": (UsageClass.SAMPLE,),
    "train": (UsageClass.TRAIN,),
    "discarded": (UsageClass.DISCARDED,),
    "evaluation": EVALUATION,
    "endpoint": ENDPOINT,
    "judge": JUDGE,
}
"""Field of `spec.budget.tokens` -> the bill's classes that it limits."""
_BY_NAME: Final = {f"tokens.{name}": frozenset(map(str, classes)) for name, classes in CLASSES.items()}


class Prices(Protocol):
    """The part of a price book that a budget needs."""

    def highest_price(self, key: str) -> Decimal | None:
        """The highest price from today on of a token or second, by the bill's key. None without a price."""

    def spent(self) -> Decimal:
        """US dollars for everything in the ledger."""

    def used(self) -> Mapping[str, Quantity]:
        """Usage in the ledger, by class."""


class NoPrices:
    """The prices of a job without a budget."""

    def highest_price(self, key: str) -> Decimal | None:
        """Always None: nothing has a price."""

    def spent(self) -> Decimal:
        """Always 0: nothing has a price."""
        return Decimal(0)

    def used(self) -> Mapping[str, Quantity]:
        """Always empty: no usage is read."""
        return {}


@dataclass(frozen=True)
class Limit:
    """One limit of a budget."""

    name: str
    """The name in the status."""
    field: str
    """The field in the spec."""
    maximum: Decimal
    classes: frozenset[str] = frozenset()
    """Classes of tokens that it limits. If empty, it limits US dollars."""
    granted: bool = False
    """Whether the limit is a grant of the namespace's RLBudget, which is raised on request if possible."""
    refused: Decimal | None = None
    """For a granted limit: the smallest need that the namespace has refused, if it has refused one."""

    def rounded(self, much: Decimal) -> Decimal:
        """An amount as messages show it, rounded up to a whole token or a hundredth of a cent."""
        return much.to_integral_value(ROUND_CEILING) if self.classes else much.quantize(CENTS, ROUND_CEILING)

    def takes(self, slot: Slot) -> bool:
        """Whether tokens of a slot may count against this limit."""
        return any(class_of(key) in self.classes for key in slot)


@dataclass(frozen=True)
class LimitUse:
    """The use of one limit."""

    limit: Limit
    spent: Decimal
    reserved: Decimal

    @property
    def left(self) -> Decimal:
        """The part that is neither spent nor reserved.

        It is below 0 after a corrected price or a lowered limit.
        """
        return self.limit.maximum - self.spent - self.reserved

    @property
    def is_low(self) -> bool:
        """Whether less than a fifth of the limit is unspent."""
        return self.limit.maximum - self.spent < LOW * self.limit.maximum


@dataclass(frozen=True)
class Shortfall:
    """A limit that is too small for the work to come."""

    limit: Limit
    needed: Decimal
    """The smallest limit that would be enough."""

    @property
    def lasts(self) -> bool:
        """Whether a person has to raise the limit: it is the spec's, or the namespace can grant no more."""
        refused = self.limit.refused
        return not self.limit.granted or (refused is not None and self.limit.rounded(self.needed) >= refused)


@dataclass(frozen=True)
class GrantRequest:
    """A job's request to raise a limit that its namespace grants."""

    needed: Decimal | None
    """The smallest limit with which the job can go on. None if it can go on with the current one."""
    wished: Decimal
    """The limit that the job would like to have."""


def limits_of(spec: BudgetSpec | None) -> tuple[Limit, ...]:
    """The limits of a budget."""
    found = lifecycle.limits_of(spec).items()
    return tuple(Limit(name, f"spec.budget.{name}", maximum, _classes(name)) for name, maximum in found)


def _classes(name: str) -> frozenset[str]:
    """The classes of tokens that a limit bounds, by the limit's name. Empty for the limit in US dollars.

    Raises:
        KeyError: this limit is unknown.
    """
    return frozenset() if name == USD else _BY_NAME[name]


def granted(grant: Grant | None) -> tuple[Limit, ...]:
    """The grant of the namespace's RLBudget as limits, beside those of the job's spec.

    Raises:
        ValueError: this version does not know a part's class or amount.
    """
    return tuple(_granted(part) for part in (grant.parts if grant is not None else ()))


def _granted(part: Part) -> Limit:
    try:
        classes = _classes(part.name)
        maximum = Decimal(part.granted)
        refused = None if part.refused is None else Decimal(part.refused)
    except KeyError as error:
        raise ValueError(f"status.grant.parts[{part.name}]: this limit is unknown") from error
    except InvalidOperation as error:
        raise ValueError(f"status.grant.parts[{part.name}]: {part.granted!r} is not an amount") from error
    field = f"spec.{part.name} of the namespace's RLBudget"
    return Limit(f"{NAMESPACE}{part.name}", field, maximum, classes, True, refused)


class Account:
    """The reservations of one job's budget, by the name of their holder."""

    def __init__(self, prices: Prices, limits: Sequence[Limit] = ()) -> None:
        self.limits = tuple(limits)
        self._prices = prices
        self._reserved: dict[str, Amounts] = {}
        self._total: Counter[Slot] = Counter()

    def reserve(self, whose: str, amounts: Amounts) -> None:
        """Reserve amounts, replacing those under the same name. Empty amounts release them."""
        self._total.subtract(self._reserved.pop(whose, {}))
        kept = {slot: much for slot, much in amounts.items() if much}
        if kept:
            self._reserved[whose] = kept
            self._total.update(kept)
        self._total = +self._total

    def shortfalls(self, more: Amounts) -> list[Shortfall]:
        """The limits that are too small for `more` beside what is spent and reserved. Empty if it fits."""
        found = []
        for limit, (spent, reserved) in self._each():
            needed = spent + reserved + self.worth(limit, more)
            if needed > limit.maximum:
                found.append(Shortfall(limit, needed))
        return found

    def grant_request(self, standing: LimitUse, waiting: Sequence[Amounts]) -> GrantRequest | None:
        """The request to raise a granted limit. None if the job has enough for now.

        The job wishes for everything that waits, and for half of its reservations on top. So the next group
        rarely has to wait.

        Args:
            standing: the limit and its current use.
            waiting: worst cases of groups and questions that do not fit yet; the first is the most urgent.
        """
        limit, now = standing.limit, standing.spent + standing.reserved
        # The job's current use comes first. Without it the job stops, whatever waits.
        needed = now + (self.worth(limit, waiting[0]) if waiting and now <= limit.maximum else 0)
        ahead = now + standing.reserved / 2
        if max(needed, ahead) <= limit.maximum:
            return None
        wished = ahead + sum((self.worth(limit, each) for each in waiting), Decimal(0))
        own = [each.maximum for each in self.limits if not each.granted and each.classes == limit.classes]
        least = needed if needed > limit.maximum else None
        return GrantRequest(least, max(needed, min([wished, *own])))

    def standings(self) -> list[LimitUse]:
        """The use of each limit."""
        return [LimitUse(limit, *amounts) for limit, amounts in self._each()]

    def unpriced(self) -> list[str]:
        """Classes in use or reserved that the limit in US dollars cannot bound: they have no price."""
        if all(limit.classes for limit in self.limits):
            return []
        used = {name for name, quantity in self._prices.used().items() if quantity}
        keys = used | {key for slot in self._total for key in slot}
        return sorted({class_of(key) for key in keys if self._prices.highest_price(key) is None})

    def worth(self, limit: Limit, amounts: Amounts) -> Decimal:
        """The most that amounts may use of a limit, in US dollars or tokens as the limit counts."""
        with localcontext(EXACT):
            if limit.classes:
                return sum((Decimal(much) for slot, much in amounts.items() if limit.takes(slot)), Decimal(0))
            return sum((self._highest_price(slot) * much for slot, much in amounts.items()), Decimal(0))

    def _highest_price(self, slot: Slot) -> Decimal:
        known = (self._prices.highest_price(key) for key in slot)
        return max((price for price in known if price is not None), default=Decimal(0))

    def _each(self) -> Iterator[tuple[Limit, tuple[Decimal, Decimal]]]:
        for limit in self.limits:
            yield limit, (self._spent(limit), self.worth(limit, self._total))

    def _spent(self, limit: Limit) -> Decimal:
        if not limit.classes:
            return self._prices.spent()
        with localcontext(EXACT):
            counted = (q for name, q in self._prices.used().items() if class_of(name) in limit.classes)
            return sum(
                (Decimal(repr(q)) if isinstance(q, float) else Decimal(q) for q in counted), Decimal(0)
            )
