"""The pool's size is decided by pure functions. Property tests check them."""

from hypothesis import given
from hypothesis import strategies as st

from headway_sandbox.broker.pool import (
    ANSWER_SECONDS,
    PENDING_SECONDS,
    Counts,
    Demand,
    Limits,
    Pod,
    creates,
    idle_target,
    overdue,
    pause_after,
    surplus,
    tries,
)

numbers = st.integers(0, 200)
demands = st.builds(Demand, st.floats(0, 50), st.floats(0, 60))
counts_of = st.builds(Counts, numbers, numbers, numbers, numbers, numbers)


@st.composite
def limits_of(draw: st.DrawFn) -> Limits:
    maximum = draw(st.integers(1, 100))
    return Limits(draw(st.integers(0, maximum)), maximum, draw(st.integers(1, 32)))


@given(limits_of(), counts_of, demands)
def test_the_pool_never_exceeds_its_maximum(limits: Limits, counts: Counts, demand: Demand) -> None:
    made = creates(limits, counts, demand)
    assert made >= 0
    assert made == 0 or counts.alive + made <= limits.maximum


@given(limits_of(), counts_of, demands)
def test_pods_that_do_not_go_away_hold_back_new_ones(limits: Limits, counts: Counts, demand: Demand) -> None:
    made = creates(limits, counts, demand)
    assert made == 0 or counts.alive + counts.leaving + made <= limits.maximum + limits.starting_at_once


@given(limits_of(), counts_of, demands)
def test_no_more_pods_start_at_once_than_allowed(limits: Limits, counts: Counts, demand: Demand) -> None:
    made = creates(limits, counts, demand)
    assert made == 0 or counts.starting + made <= limits.starting_at_once


@given(limits_of(), counts_of, st.integers(1, 5))
def test_pods_tried_together_stay_within_the_same_limits(limits: Limits, counts: Counts, wanted: int) -> None:
    made = tries(limits, counts, wanted)
    assert 0 <= made <= wanted
    assert made == 0 or counts.alive + made <= limits.maximum
    assert made == 0 or counts.starting + made <= min(wanted, limits.starting_at_once)


@given(limits_of(), counts_of, demands)
def test_the_pool_never_creates_pods_while_it_has_a_surplus(
    limits: Limits, counts: Counts, demand: Demand
) -> None:
    assert not (creates(limits, counts, demand) and surplus(limits, counts, demand))


@given(limits_of(), counts_of, demands)
def test_deleting_the_surplus_creates_no_pods(limits: Limits, counts: Counts, demand: Demand) -> None:
    extra = surplus(limits, counts, demand)
    after = Counts(counts.starting, counts.ready - extra, counts.leased, counts.waiting)
    assert not extra or creates(limits, after, demand) == 0


@given(limits_of(), demands)
def test_the_pool_settles_at_a_constant_size(limits: Limits, demand: Demand) -> None:
    counts = Counts(0, 0, 0, 0)
    for _ in range(200):
        made = creates(limits, counts, demand)
        counts = Counts(0, counts.ready + made, 0, 0)
    assert counts.ready == idle_target(limits, counts, demand)
    assert counts.ready >= min(limits.minimum, limits.maximum)


@given(limits_of(), st.integers(1, 300), demands)
def test_a_waiter_is_served_while_there_is_room(limits: Limits, waiting: int, demand: Demand) -> None:
    counts = Counts(starting=0, ready=0, leased=limits.maximum - 1, waiting=waiting)
    assert creates(limits, counts, demand) == 1


def test_a_full_pool_creates_nothing() -> None:
    assert creates(Limits(4, 8, 16), Counts(0, 0, 8, 20), Demand(5.0, 3.0)) == 0


def test_idle_pods_cover_the_demand_of_one_start_time() -> None:
    assert idle_target(Limits(2, 100, 16), Counts(0, 0, 10, 0), Demand(4.0, 2.5)) == 10


@given(st.integers(0, 1000))
def test_failures_slow_creation_down_but_never_stop_it(failures: int) -> None:
    assert 0 <= pause_after(failures) <= pause_after(failures + 1) <= 30


def test_a_pod_may_pend_long_but_must_answer_soon_once_running() -> None:
    waiting = Pod("p", created=0.0)
    silent = Pod("p", created=0.0, running_since=100.0)
    assert overdue(waiting, PENDING_SECONDS - 1) is None
    assert overdue(silent, 100.0 + ANSWER_SECONDS - 1) is None
    assert "does not run" in (overdue(waiting, PENDING_SECONDS) or "")
    assert "has not answered on port 8080" in (overdue(silent, 100.0 + ANSWER_SECONDS) or "")
