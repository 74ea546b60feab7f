"""Recomputes the cost of tries from the table of tries and the report's price book.

The module is independent of Headway on purpose, like recount_eval.py. There are two reasons why the cost of a
try may be unknown. The book may have no price for one of its classes, or the endpoint did not report the
tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal, localcontext
from typing import Any

Line = Mapping[str, Any]


class Costs:
    """The cost of every try of a table."""

    def __init__(self, lines: Sequence[Line], entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = [(date.fromisoformat(entry["since"]), entry) for entry in entries]
        self.by_try = {line["episode_id"]: self._cost(line) for line in lines}
        """Episode -> its cost in US dollars; None if the cost is not known."""

    def total(self, lines: Iterable[Line]) -> float | None:
        """US dollars of some tries; None if the cost of one of them is not known."""
        found = [self.by_try[line["episode_id"]] for line in lines]
        known = [cost for cost in found if cost is not None]
        return float(sum(known)) if len(known) == len(found) else None

    def bill(self, lines: Iterable[Line]) -> float:
        """US dollars of all usage that has a price."""
        return float(sum(self._billed(line) for line in lines))

    def unpriced(self, lines: Iterable[Line]) -> list[str]:
        """Classes without a price that some tries used."""
        used = (each for line in lines for each in line["usage"] if each["quantity"])
        return sorted({named(each) for each in used if self._price(each) is None})

    def _cost(self, line: Line) -> Decimal | None:
        uncounted = line["uncounted_turns"] and line["sampled_by"] == "endpoint"
        return None if uncounted or self.unpriced([line]) else self._billed(line)

    def _billed(self, line: Line) -> Decimal:
        with localcontext() as context:
            context.prec = 60
            return sum(
                ((self._price(each) or 0) * Decimal(repr(each["quantity"])) for each in line["usage"]),
                Decimal(0),
            )

    def _price(self, used: Line) -> Decimal | None:
        """The price of one token or second of a class and model, on the day of the usage; None if there is
        none."""
        first = self._entries[0][1]
        begun = [entry for since, entry in self._entries if since <= used["day"]] or [first]
        prices = of_model(begun[-1], used.get("model"))
        if used["class"] not in prices:
            return None
        price = Decimal(prices[used["class"]])
        return price if used["class"].endswith("Seconds") else price / 1_000_000


def named(used: Line) -> str:
    """The class of a usage, as CLASS or CLASS:MODEL."""
    return used["class"] if used.get("model") is None else f"{used['class']}:{used['model']}"


def of_model(entry: Mapping[str, Any], model: str | None) -> Mapping[str, str]:
    """An entry's prices of a model. With None, its prices of the job's own model."""
    if model is None:
        return entry["prices"]
    best: Mapping[str, str] = {}
    longest = -1
    for pattern, prices in entry.get("models", {}).items():
        if pattern == model:
            return {**entry.get("own", entry["prices"]), **prices}
        if pattern.endswith("*") and model.startswith(pattern[:-1]) and len(pattern) > longest:
            best, longest = prices, len(pattern)
    return {**entry.get("own", entry["prices"]), **best}
