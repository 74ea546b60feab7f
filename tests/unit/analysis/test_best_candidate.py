"""Which candidate is best: the one with the highest score among those whose means may be ranked."""

from __future__ import annotations

import pytest

from headway_analysis.comparison import Comparison
from headway_analysis.statistics.estimates import Estimate


def compared(**candidates: tuple[float, float]) -> Comparison:
    """A comparison of candidates with these external scores and these shares of lost tries."""

    def estimate(value: float) -> Estimate:
        return Estimate(value, None, None, n=100, clusters=100, tries=100, method="none")

    found = {
        name: {"all": {"external_score": estimate(score), "infra_error": estimate(lost)}}
        for name, (score, lost) in candidates.items()
    }
    return Comparison(baseline="base", estimates=found)


@pytest.mark.parametrize(
    ("candidates", "best"),
    [
        ({"base": (0.60, 0.0), "tuned": (0.61, 0.88)}, "base"),
        ({"base": (0.60, 0.0), "tuned": (0.61, 0.05)}, "tuned"),
        ({"base": (0.60, 0.0), "tuned": (0.61, 0.06)}, "base"),
        ({"base": (0.60, 0.20), "tuned": (0.61, 0.24), "few": (0.9, 0.88)}, "tuned"),
        ({"base": (0.60, 0.0), "tuned": (0.60, 0.0)}, "base"),
        ({}, None),
    ],
)
def test_a_candidate_that_lost_many_more_tries_is_not_best(
    candidates: dict[str, tuple[float, float]], best: str | None
) -> None:
    assert compared(**candidates).best() == best
