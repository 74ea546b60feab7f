"""Finds the published weights that deltas of later steps are built on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headway_api.artifacts import by_number
from headway_api.weights_format import DELTA_FILE


def delta_steps(uris: Iterable[str], folder: str) -> set[int]:
    """Steps below `folder` (`.../weights`) that this learner or an earlier one published as a delta."""
    deltas = (uri for uri in uris if uri.endswith(f"/{DELTA_FILE}"))
    return set(by_number(deltas, folder))


def built_on(kept: Collection[int], deltas: Collection[int]) -> set[int]:
    """Steps that the deltas among `kept` need: each earlier step, back to one with full weights.

    Every step is published, so a delta's chain has no gaps. A step with full weights counts as a delta if an
    earlier process published it as a delta. Then more steps are kept than needed, never fewer.
    """
    needed: set[int] = set()
    for step in kept:
        while step in deltas and step - 1 not in needed:
            step -= 1
            needed.add(step)
    return needed
