"""How readings become states for any signal: hysteresis, and repeated, late or broken metrics."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.signals.definition import Level, Reading, Signal
from headway_analysis.signals.history import FIRST_KEPT, LAST_KEPT, Change, History, Job, Series
from headway_analysis.signals.standing import SignalTrack, after
from headway_analysis.signals.watch import Watch
from headway_api.signals import SignalName

JOB = Job(reward_low=0.0, reward_high=1.0, max_steps_off_policy=3, max_turns=8)
LEVELS = {"o": Level.OVER, "b": Level.BETWEEN, "c": Level.CLEAR}


def a_signal(judge: Callable[[History], Reading | None] = lambda history: None, **changes: object) -> Signal:
    words = dict.fromkeys(
        ("meaning", "number", "threshold", "reason", "source", "advice", "confirmed_by"), "some words"
    )
    return Signal(
        name=SignalName.REWARD_FLAT,
        judge=judge,
        look_at=(),
        **{**words, **changes},  # type: ignore[arg-type]
    )


def of_value(history: History) -> Reading | None:
    value = history.latest("x")
    if value is None:
        return None
    return Reading(Level.OVER if value > 1 else Level.CLEAR, value, 1.0, f"x is {value:g}")


def states(levels: str) -> str:
    """The first letters of the states after readings; `-` is a step without a reading."""
    signal, standing, found = a_signal(), SignalTrack(), ""
    for step, letter in enumerate(levels, 1):
        reading = None if letter == "-" else Reading(LEVELS[letter], 0.0, 0.0, "")
        standing = after(signal, standing, reading, step)
        found += standing.state[0]
    return found


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ("---", "UUU"),
        ("ccc", "CCC"),
        ("ooo", "SSR"),
        ("oco", "SCS"),
        ("oo-o", "SSSR"),
        ("obbob", "SSSSS"),
        ("oboob", "SSSRR"),
        ("oooccoccc", "SSRRRRRRC"),
        ("ooobbbb", "SSRRRRR"),
        ("bbb", "CCC"),
    ],
)
def test_raising_and_clearing_both_take_three_readings(levels: str, expected: str) -> None:
    assert states(levels) == expected


def test_a_reading_that_is_sure_raises_a_signal_alone() -> None:
    sure = Reading(Level.OVER, 0.0, 0.0, "", sure=True)
    standing = after(a_signal(), SignalTrack(), sure, 1)
    assert (standing.state, standing.over) == ("Raised", 3)
    standing = after(a_signal(), standing, Reading(Level.CLEAR, 0.0, 0.0, ""), 2)
    assert (standing.state, standing.over) == ("Raised", 0)


def test_a_track_knows_since_when_its_state_holds() -> None:
    signal, standing = a_signal(), SignalTrack()
    since = []
    for step, letter in enumerate("coooo", 1):
        standing = after(signal, standing, Reading(LEVELS[letter], 0.0, 0.0, ""), step)
        since.append(standing.since)
    assert since == [1, 2, 2, 4, 4]


def watch_of(values: Mapping[int, float]) -> Watch:
    watch = Watch(JOB, [a_signal(of_value)])
    for step, value in values.items():
        watch.step(step, {"x": value})
    return watch


def state_of(watch: Watch) -> SignalTrack:
    [verdict] = watch.verdicts()
    return verdict.standing


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_a_number_is_unknown(broken: float) -> None:
    watch = watch_of(dict.fromkeys(range(1, 20), broken))
    assert state_of(watch).state == "Unknown"


def test_a_broken_metric_does_not_raise_or_clear() -> None:
    values = {1: 2.0, 2: 2.0, 3: math.nan, 4: 2.0}
    assert state_of(watch_of(values)).state == "Raised"
    assert state_of(watch_of({**values, 5: math.inf, 6: math.nan})).state == "Raised"


@given(st.lists(st.floats(0, 2), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_order_in_which_steps_become_known_changes_nothing(
    values: list[float], rng: random.Random
) -> None:
    known = dict(enumerate(values, 1))
    shuffled = [*known.items()]
    rng.shuffle(shuffled)
    assert state_of(watch_of(dict(shuffled))) == state_of(watch_of(known))


def test_a_step_that_is_taken_again_is_judged_again() -> None:
    watch = watch_of(dict.fromkeys(range(1, 6), 2.0))
    assert state_of(watch).state == "Raised"
    for step in (3, 4, 5):
        watch.step(step, {"x": 0.0})
    assert state_of(watch) == state_of(watch_of({1: 2.0, 2: 2.0, 3: 0.0, 4: 0.0, 5: 0.0}))


def test_a_step_that_comes_twice_counts_once() -> None:
    watch = watch_of({1: 2.0})
    for _ in range(10):
        watch.step(1, {"x": 2.0})
    assert state_of(watch).state == "Suspect"


def test_a_late_validation_gives_the_same_state_as_a_timely_one() -> None:
    def judge(history: History) -> Reading | None:
        """A judge whose reading is over if the step's own value is, whatever came since."""
        value = history.latest("x")
        return None if value is None else Reading(Level.OVER, value, 0.0, f"{len(history.validated('v'))}")

    signal = a_signal(judge, clock="validation", raise_after=1)
    early, late = Watch(JOB, [signal]), Watch(JOB, [signal])
    for step in range(1, 5):
        early.step(step, {"x": float(step)})
        if step == 2:
            early.validation(2, {"v": 1.0})
        late.step(step, {"x": float(step)})
    late.validation(2, {"v": 1.0})
    assert state_of(early) == state_of(late)
    assert state_of(late).since == 2


def test_a_steps_verdict_does_not_depend_on_validations() -> None:
    seen = []

    def judge(history: History) -> Reading | None:
        seen.append(history.validated("v"))
        return None

    watch = Watch(JOB, [a_signal(judge)])
    watch.validation(0, {"v": 1.0})
    watch.step(1, {"x": 1.0})
    assert seen == [[]]


def test_a_changed_job_is_judged_by_its_settings_at_each_step() -> None:
    def judge(history: History) -> Reading | None:
        bound = history.job.max_steps_off_policy
        return Reading(Level.OVER if bound == 0 else Level.CLEAR, bound, 0.0, "")

    signal = a_signal(judge, raise_after=1)
    live, restarted = Watch(JOB, [signal]), Watch(JOB, [signal])
    other = replace(JOB, max_steps_off_policy=0)
    for step in (1, 2):
        live.step(step, {"x": 1.0})
    live.changed(3, other)
    assert state_of(live).state == "Clear"
    live.step(4, {"x": 1.0})
    for step in (1, 2, 4):
        restarted.step(step, {"x": 1.0})
    restarted.changed(3, other)
    assert state_of(live) == state_of(restarted)
    assert (state_of(live).state, state_of(live).since) == ("Raised", 4)


def test_a_metric_is_read_by_step() -> None:
    watch = watch_of({1: 2.0, 2: math.nan, 3: 4.0})
    assert watch.metric("x") == {1: 2.0, 3: 4.0}
    assert watch.metric("y") == {}


def test_a_long_job_keeps_its_first_and_its_last_steps() -> None:
    series = Series()
    for step in range(1, 2000):
        assert series.put(step, {"x": 1.0}) is Change.NEWEST
    assert len(series.steps) == FIRST_KEPT + LAST_KEPT
    assert series.steps[:FIRST_KEPT] == [*range(1, FIRST_KEPT + 1)]
    assert series.steps[-1] == 1999


def test_windows_leave_out_what_is_missing() -> None:
    steps = Series()
    for step, value in ((1, 1.0), (2, math.nan), (5, 5.0), (6, 6.0)):
        steps.put(step, {"x": value})
    history = History(JOB, steps, Series(), 6)
    assert history.recent("x", 2) == [5.0, 6.0]
    assert history.recent("x", 6) == [1.0, 5.0, 6.0]
    assert history.recent("x", 2, until=3) == []
    assert history.first("x", 2) == [1.0, 5.0]
    assert History(JOB, steps, Series(), 4).latest("x") is None
