"""The signals' results on the recorded runs."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.signals import page, read
from tests.signals.detection import (
    EARLIEST,
    WITHIN,
    Detection,
    detections,
    false_alarms,
    first_alarm,
    raised_at,
)
from tests.signals.known_misses import FALSE, FOUND_ONCE, MISSED

from headway_api.signals import SignalName

ROOT = Path(__file__).parents[2]
PROVOKING = {series.name: series for series in read.provoking()}
SYMPTOMS = [(name, expected.signal) for name, series in PROVOKING.items() for expected in series.expected]


@cache
def found_in(name: str) -> dict[SignalName, Detection]:
    """The detections of a run's symptoms."""
    return {each.signal: each for each in detections(PROVOKING[name])}


@pytest.mark.parametrize(("name", "signal"), SYMPTOMS)
def test_a_symptom_is_raised_within_ten_steps(name: str, signal: SignalName) -> None:
    found = found_in(name)[signal]
    if (name, signal) in MISSED:
        assert not found.in_time, f"it is found now: take it out of MISSED ({MISSED[name, signal]})"
    else:
        assert found.in_time, f"begins at {found.begin}, raised at {found.raised}; at most {WITHIN} later"


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        (range(20, 25), (20, False)),
        (range(23, 25), (23, False)),
        (range(20 - EARLIEST, 22), (20, True)),
        (range(19 - EARLIEST, 22), (None, False)),
        ([*range(19 - EARLIEST, 22), 25, 26], (25, False)),
        (range(5, 20), (None, False)),
        ([], (None, False)),
    ],
    ids=["at-once", "later", "early", "too-early", "too-early-and-again", "over-by-then", "never"],
)
def test_an_early_alarm_counts_for_ten_steps(raised: Iterable[int], found: tuple[int | None, bool]) -> None:
    assert first_alarm(20, set(raised)) == found


def test_every_signal_is_found_in_two_runs() -> None:
    found = Counter(signal for name, signal in SYMPTOMS if (name, signal) not in MISSED)
    assert {name for name in SignalName if found[name] < 2} == FOUND_ONCE.keys()


@pytest.mark.long
def test_clean_runs_raise_only_known_alarms() -> None:
    """bench/results/signals.md has the rates, by split."""
    found = [(series.name, alarm.signal) for series in read.clean() for alarm in false_alarms(series)]
    assert Counter(found) == Counter(FALSE.keys())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_page_of_results_equals_a_recount_of_the_runs() -> None:
    made = page.page(page.recorded())
    assert (ROOT / page.PAGE).read_text() == made, "run make test-signals"
    row = r"^\| sealed \| (\d+) \| (\d+) \(.*\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|$"
    [(symptoms, found, steps, false, rate, low, high)] = re.findall(row, made, re.MULTILINE)
    assert f"{found} of its {symptoms} symptoms are found, and {false} alarms of its {steps} clean" in made
    assert f"are false: {rate} in 1,000 ({low} to {high})" in made


def test_there_are_fifty_clean_runs() -> None:
    assert len(read.clean()) >= 50


def test_a_run_judged_again_has_the_same_result() -> None:
    series = read.provoking("chosen_on")[0]
    assert raised_at(series) == raised_at(series)
