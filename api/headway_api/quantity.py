"""Kubernetes quantities: a number and a suffix."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_DECIMALS: Final = {
    suffix: Decimal(10) ** power
    for suffix, power in zip(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), range(-9, 19, 3), strict=True)
}
_BINARIES: Final = {f"{suffix}i": Decimal(1024) ** n for n, suffix in enumerate("KMGTPE", start=1)}
SUFFIXES: Final = _DECIMALS | _BINARIES
"""Suffixes of Kubernetes quantities (apimachinery's pkg/api/resource), and their factors."""
LARGEST_POWER: Final = 100
"""Largest power of ten in an exponent. A larger exponent counts as this one, because no machine has more of
anything."""
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]{1,32}\.?[0-9]{0,32}|\.[0-9]{1,32}))(?:[eE]([+-]?[0-9]{1,32})|([numkMGTPE]|[KMGTPE]i))?"
)


def amount(quantity: str) -> Decimal:
    """The number that a Kubernetes quantity means: `500m`, `1500000u`, `2k`, `1Ki`, `2e3`.

    Raises:
        ValueError: it is not a quantity.
    """
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        raise ValueError(f"{quantity!r} is not a quantity: write a number, and a suffix such as m or k")
    number, exponent, suffix = found.groups()
    power = max(-LARGEST_POWER, min(LARGEST_POWER, int(exponent or 0)))
    return Decimal(number).scaleb(power) * SUFFIXES[suffix or ""]
