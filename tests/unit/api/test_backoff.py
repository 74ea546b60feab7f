"""Pauses between tries: each is twice the last, at most the bound, and spread at random."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api.backoff import doubled, spread

SECONDS = st.floats(min_value=1e-3, max_value=1e6)


@pytest.mark.parametrize(
    ("failures", "pause"), [(0, 0.25), (1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (10**9, 30.0)]
)
def test_a_pause_doubles_up_to_its_bound(failures: int, pause: float) -> None:
    assert doubled(failures, 0.5, 30.0) == pause


@given(failures=st.integers(1, 10**12), first=SECONDS, maximum=SECONDS)
def test_a_pause_never_shrinks_and_keeps_its_bound(failures: int, first: float, maximum: float) -> None:
    assert 0 < doubled(failures, first, maximum) <= doubled(failures + 1, first, maximum) <= maximum


@given(first=st.floats(0.01, 30.0))
def test_a_pause_equals_that_of_a_doubling_loop(first: float) -> None:
    pause = first
    for failures in range(1, 40):
        assert doubled(failures, first, 30.0) == pytest.approx(pause)
        pause = min(2 * pause, 30.0)


@given(seconds=SECONDS, chance=st.floats(0, 1))
def test_a_spread_pause_is_half_of_it_or_more(seconds: float, chance: float) -> None:
    assert seconds / 2 <= spread(seconds, lambda: chance) <= seconds


def test_clients_that_fail_together_wait_differently() -> None:
    assert len({spread(1.0) for _ in range(20)}) > 1
