"""A status is written sparsely, so that two writers never own the same field."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from headway_api.field_types import DECIMAL_PATTERN
from headway_api.status import Check, Preflight, RLTrainingJobStatus, Role, TrainingProgress, Usage, decimal


def test_an_empty_status_has_no_fields() -> None:
    assert RLTrainingJobStatus().as_object() == {}
    assert RLTrainingJobStatus(progress=TrainingProgress(step=0)).as_object() == {
        "progress": {"step": 0, "epoch": 0, "episodes": 0}
    }
    assert RLTrainingJobStatus(preflight=Preflight(state="Running")).as_object() == {
        "preflight": {"state": "Running"}
    }


def test_lists_are_kept_if_they_are_not_empty() -> None:
    status = RLTrainingJobStatus(
        roles=[Role(name="learner", desired=1)],
        preflight=Preflight(state="Failed", checks=[Check(name="foothold", passed=False, message="0 of 64")]),
    )
    again = RLTrainingJobStatus.model_validate(status.as_object())
    assert again == status


def test_a_status_of_a_newer_version_is_read() -> None:
    status = RLTrainingJobStatus.model_validate(
        {"observedGeneration": 2, "mood": "good", "usage": {"joules": 3}}
    )
    assert (status.observed_generation, status.usage) == (2, Usage())


def test_total_is_what_is_billed() -> None:
    usage = Usage(
        prefill_tokens=1, cached_prefill_tokens=10, sample_tokens=2, train_tokens=4, discarded_tokens=100
    )
    assert usage.as_object()["totalTokens"] == 7
    assert Usage.model_validate(usage.as_object()) == usage


@given(st.floats(min_value=-1e9, max_value=1e9), st.integers(0, 9))
def test_every_decimal_matches_the_schema(value: float, digits: int) -> None:
    text = decimal(value, digits)
    assert re.fullmatch(DECIMAL_PATTERN, text)
    assert len(text) <= 32
    assert abs(float(text) - value) <= 0.5000001 * 10**-digits + abs(value) * 1e-15


def test_decimals_are_short() -> None:
    assert [decimal(0.5), decimal(100.0), decimal(-0.00001), decimal(2 / 3)] == ["0.5", "100", "0", "0.6667"]
