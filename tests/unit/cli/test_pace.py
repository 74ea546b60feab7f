"""How fast a job goes, by the changes that were seen. No number is made up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_cli import pace
from headway_cli.pace import History, Track

START = datetime(2026, 3, 4, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def seen(*looks: tuple[float, int | None]) -> Track:
    track = Track()
    for seconds, value in looks:
        track = track.seen(value, at(seconds))
    return track


@given(
    first=st.integers(0, 10**12),
    growth=st.integers(1, 10**6),
    gap=st.integers(2, 900),
    changes=st.integers(2, 40),
)
def test_a_total_that_grows_evenly_has_its_growth_as_rate(
    first: int, growth: int, gap: int, changes: int
) -> None:
    track = seen(*((number * gap, first + number * growth) for number in range(changes + 1)))
    assert track.rate(at(changes * gap)) == pytest.approx(growth / gap)


@given(
    st.lists(st.tuples(st.floats(0, 10**6), st.none() | st.integers(0, 2**63)), max_size=30),
    st.floats(0, 10**7),
)
def test_no_series_of_looks_gives_a_rate_below_0(looks: list[tuple[float, int | None]], now: float) -> None:
    rate = seen(*looks).rate(at(now))
    assert rate is None or rate > 0


def test_the_first_total_may_be_old_and_gives_no_rate() -> None:
    assert seen((0, 5_000_000), (10, 5_000_100)).rate(at(10)) is None
    assert seen((0, 5_000_000), (10, 5_000_100), (20, 5_000_300)).rate(at(20)) == pytest.approx(20)


def test_a_look_without_changes_keeps_the_rate() -> None:
    assert seen((0, 1), (10, 2), (20, 3)) == seen((0, 1), (5, 1), (10, 2), (11, None), (20, 3))


def test_a_total_that_falls_begins_again() -> None:
    track = seen((0, 10), (10, 20), (20, 30), (30, 5))
    assert track.rate(at(30)) is None
    assert track.seen(6, at(40)).seen(7, at(50)).rate(at(50)) == pytest.approx(0.1)


def test_a_total_that_is_constant_for_long_has_no_rate() -> None:
    track = seen((0, 1), (10, 2), (20, 3))
    assert track.rate(at(80)) == pytest.approx(0.1)
    assert track.rate(at(81)) is None
    slow = seen((0, 1), (600, 2), (1200, 3))
    assert slow.rate(at(3000)) == pytest.approx(1 / 600)
    assert slow.rate(at(3001)) is None


def test_old_changes_do_not_count() -> None:
    track = seen((0, 0), *((seconds, 1000 * seconds) for seconds in range(1, 60)))
    for seconds in range(1801, 1901, 10):
        track = track.seen(59_000 + seconds, at(seconds))
    assert track.rate(at(1891)) == pytest.approx(1)


def test_a_clock_that_is_set_back_gives_no_rate() -> None:
    track = seen((100, 1), (110, 2), (120, 3))
    assert track.rate(at(50)) is None
    assert track.seen(4, at(50)).rate(at(50)) is None


def test_tokens_are_those_of_training_and_evaluation() -> None:
    usage = {"totalTokens": 10, "prefillTokens": 4, "evaluationTokens": 3, "endpointTokens": 2}
    assert pace.tokens({"status": {"usage": usage}}) == 15
    del usage["totalTokens"]
    assert pace.tokens({"status": {"usage": usage}}) == 9
    assert pace.tokens({"status": {"usage": {"cost": "1"}}}) is None
    assert pace.tokens({}) is None


def test_rows_of_an_evaluation_count_as_steps_do() -> None:
    history = History()
    for minute in range(3):
        history = history.seen({"status": {"progress": {"groups": minute}}}, at(60 * minute))
    assert history.done.rate(at(120)) == pytest.approx(1 / 60)
