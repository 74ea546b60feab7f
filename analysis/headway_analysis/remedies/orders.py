"""What a person may order: the annotation `headway.dev/remedy` on a job.

OnPolicy       apply the remedy of that name
OnPolicy@2     apply it once more: each value of the annotation is carried out only once
Undo           take back the last change
"""

from __future__ import annotations

import re
from typing import Final, Literal

from headway_api.spec.trust import REMEDIES, RemedyName

UNDO: Final = "Undo"
_ORDER: Final = re.compile(r"([A-Za-z]+)(@[0-9]{1,9})?")


class InvalidOrderError(ValueError):
    """An order names neither a remedy nor `Undo`. The message says what to write instead."""


def read(order: str) -> RemedyName | Literal["Undo"]:
    """The remedy that an annotation names.

    Raises:
        InvalidOrderError: it names neither a remedy nor `Undo`.
    """
    found = _ORDER.fullmatch(order.strip())
    name = None if found is None else found[1]
    if name == UNDO:
        return "Undo"
    for remedy in REMEDIES:
        if name == remedy:
            return remedy
    names = ", ".join((*REMEDIES, UNDO))
    raise InvalidOrderError(f"it names no remedy; write one of {names}, or NAME@2 to repeat one")
