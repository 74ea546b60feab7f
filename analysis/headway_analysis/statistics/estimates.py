"""A sample in clusters, and its mean with a 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    """Why there is no interval."""

    TOO_FEW_CLUSTERS = "TooFewClusters"
    """Fewer than two clusters: nothing shows how they differ."""
    NO_SPREAD = "NoSpread"
    """All values are the same, and nothing bounds what another row would give."""
    TOTAL = "Total"
    """A sum over the run, not an estimate."""


@dataclass(frozen=True)
class Estimate:
    """A measure's value, and how sure it is."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None where `why` says that there is none."""
    high: float | None
    n: int
    """Rows that have a value."""
    clusters: int
    """Independent clusters among them: rows, or values of `clusterColumn`."""
    tries: int
    """Tries that have a value."""
    method: str
    """How the interval was made: `wilson`, `wilson-clustered`, `t-clustered` or `none`."""
    why: Why | None = None
