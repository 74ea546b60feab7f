"""A job's spec may name exactly the checks that exist."""

from __future__ import annotations

from headway_analysis.preflight.catalogue import CHECKS
from headway_api.preflight import CHECK_IDS


def test_spec_and_catalogue_name_the_same_checks() -> None:
    assert tuple(check.id for check in CHECKS) == CHECK_IDS
