"""The signals' results on the recorded runs, as a page.

    python -m tests.signals.page [--split held_out] [--write]

`--write` writes bench/results/signals.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from scipy.special import gammaincinv
from tests.signals import clean, known_misses, labels, read, thresholds
from tests.signals.detection import (
    EARLIEST,
    WITHIN,
    Alarm,
    Detection,
    alarms,
    detections,
    steps_of,
    suspicions,
)
from tests.signals.read import Series, Split

from headway_api.signals import SignalName
from headway_operator.plan.fact import tenth

APART: Final[tuple[Split, ...]] = ("fresh", "unseen", "untouched", "sealed")
"""Splits whose numbers are also shown separately."""
MAX_FALSE: Final = 1
"""Allowed false alarms in 1,000 clean steps."""
PAGE: Final = Path("bench/results/signals.md")
TAIL: Final = 0.025
"""Probability outside a 95 % interval, on each side."""
INTRODUCTION: Final = """\
# How the signals do on recorded runs

Made by `make test-signals`. The runs are those of tests/signals: the demo's tiny model, trained by the real \
learner.

Runs of `chosen_on` were recorded before any threshold was chosen, except {later}. \
Runs of `held_out` have other seeds and settings, and no threshold was chosen on them. \
Then these runs were looked at. After that, two signals and a label were redefined: {redefined}. \
So both splits flatter now. {before}

Runs of `fresh` have other seeds and settings again. The definitions were committed before the first of \
these runs was recorded, and so was the list of the runs. Only clean-225 to clean-244 were added later, \
before any signal was looked at. Their provocations are of signals that few others provoke, at rates and \
scales that are clearly too much. {before_since} Then these runs were looked at, and more was redefined. \
{redefined_since}. The labels hold for runs of all splits, but they were written after these runs were seen. \
So `fresh` flatters now, too.

Runs of `unseen` are clean ones alone, and have other seeds and settings again. Their list, the definitions \
and the labels were committed before the first of them was recorded. {before_unseen} Then these runs were \
looked at, and more was redefined. {redefined_last} So `unseen` flatters now, too.

Runs of `untouched` have other seeds and settings again. Their list and the labels were committed before \
the first of them was recorded. The definitions were committed then too, except one. It was committed \
while these runs were recorded: PolicyMismatch and MismatchTail do not wait where policies are far apart. \
Without it the signals of [remedies](remedies.md) would be raised steps later than before. No signal and \
no clean run of `untouched` had been looked at by then, and nothing was changed since. The runs were \
recorded in the order of their list until the time was over. They are {provoked} that provoke a symptom, \
then the first {recorded} of {listed} that were to be clean. So what they showed did not choose them, and \
the rates of `untouched` were what to expect of another job like them. Its provocations are clearly too \
much, and several have old batches. {before_untouched} Then these runs were looked at, and more was \
redefined. {redefined_untouched} So `untouched` flatters now, too.
"""
SEALED: Final = """\
Runs of `sealed` have other seeds and settings again. Their list, the definitions and the labels were \
committed before the first of them was recorded. One thing was changed since, for no run's sake: \
StalenessAtBound is clear where nothing may be stale, which raises and misses nothing here. The runs were \
recorded in the order of their list until the time was over. They are {provoked} that provoke a symptom, \
then the first {recorded} of {listed} that were to be clean. So what they showed did not choose them, and \
the rates of `sealed` are what to expect of another job like them. Its provocations are clearly too much. \
Many are of signals that were made more patient before. {sealed}
"""


def recorded() -> list[Split]:
    """Splits that have recorded runs."""
    return [split for split in get_args(Split) if read.all_series(split)]


def page(splits: Sequence[Split]) -> str:
    """The page on these splits. For several splits it also shows them together."""
    runs = {split: [_judged(series) for series in read.all_series(split)] for split in splits}
    everything = [run for split in splits for run in runs[split]]
    groups: list[tuple[str, Sequence[_Judged]]] = list(runs.items())
    if len(splits) > 1:
        groups.append(("together", everything))
    shown = [(name, judged) for name, judged in groups if _found(judged)]
    provoked = [name for name, _ in shown if name in splits]
    parts = [
        INTRODUCTION.format(
            later=" and ".join(known_misses.LATER),
            redefined=known_misses.REDEFINED,
            before=known_misses.BEFORE,
            redefined_since=known_misses.REDEFINED_SINCE,
            before_since=known_misses.BEFORE_SINCE,
            before_unseen=known_misses.BEFORE_UNSEEN,
            redefined_last=known_misses.REDEFINED_LAST,
            before_untouched=known_misses.BEFORE_UNTOUCHED,
            redefined_untouched=known_misses.REDEFINED_UNTOUCHED,
            **_recorded(read.all_series("untouched"), "untouched"),
        ),
        *_sealed(runs.get("sealed", ())),
        _table(
            ("goal", "found", "met"),
            [
                *_goals(everything),
                *(row for split in APART for row in _goals_apart(split, runs.get(split, ()))),
            ],
        ),
        "## In all\n",
        f"A symptom counts as found where its signal is raised within {WITHIN} steps of its first one. "
        "A clean run is one that goes as it should. A signal that it raises is a false alarm, unless the raw "
        "metrics show its symptom at some step (tests/signals/labels.py). The interval supposes that false "
        "alarms come independently (Garwood 1936).\n",
        _table(
            (
                "runs",
                "symptoms",
                "found",
                "clean runs",
                "clean steps",
                "false alarms",
                "per 1,000 steps",
                "95 % interval",
            ),
            [_in_all(*group) for group in groups],
        ),
        _without_symptoms(everything),
        _suspicions([run.series for run in everything]),
        "## Symptoms\n",
        "Found of all, and the steps from the symptom's first one to the alarm. A `*` marks an alarm that "
        f"was raised in the {EARLIEST} steps before the one at which the rule has the symptom begin. An "
        "earlier alarm does not count.\n",
        _table(
            ("signal", *(name for name, _ in shown), *(f"steps to the alarm, {name}" for name in provoked)),
            [_of_signal(signal, shown, len(provoked)) for signal in SignalName],
        ),
        "## Thresholds\n",
        "How far the signals' numbers are from their thresholds. A signal's line leaves out clean runs that "
        "show its symptom. A reading is bad if all conditions of the signal's "
        "[definition](../../docs/signals.md) hold, so a number beyond the threshold may still not be bad.\n",
        _table(thresholds.HEAD, thresholds.rows(run.series for run in everything)),
        "## Symptoms that are not found in time\n",
        _table(
            ("run", "split", "signal", "begins at", "raised at", "why"),
            [_missed(each) for each in _found(everything) if not each.in_time],
        ),
        "## False alarms\n",
        _table(
            ("run", "split", "signal", "step", "what it saw", "why"),
            [_false_alarm(*each) for each in _false(everything)],
        ),
        "Alarms of clean runs that are right, as the run's raw metrics show the symptom:\n",
        _table(("signal", "clean runs that show it", "alarms", "runs"), _right(everything)),
        "## Runs that do not count\n",
        "These were to go as they should and did not, by the held-out external score alone.\n",
        _table(
            ("run", "split", "why"),
            [
                (run.series.name, run.series.split, run.series.unclean)
                for run in everything
                if run.series.unclean
            ],
        ),
        "These were to provoke a symptom that their raw metrics do not show (tests/signals/symptoms.py). "
        "Each was replaced before any signal was looked at.\n",
        _table(
            ("run", "what it was", "what was seen", "what it is now"),
            [(name, *row) for name, row in known_misses.REPLACED.items()],
        ),
    ]
    return "\n".join(parts)


@dataclass(frozen=True)
class _Judged:
    """A run, with the signals' results on it."""

    series: Series
    symptoms: Sequence[Detection]
    false: Sequence[Alarm]
    right: Sequence[Alarm]
    """Alarms of a clean run for symptoms that its raw metrics show."""


def _judged(series: Series) -> _Judged:
    if not series.clean:
        return _Judged(series, detections(series), (), ())
    found = alarms(series)
    false = [alarm for alarm in found if not labels.shows(series, alarm.signal, alarm.step)]
    return _Judged(series, (), false, [alarm for alarm in found if alarm not in false])


def _found(runs: Iterable[_Judged]) -> list[Detection]:
    return [each for run in runs for each in run.symptoms]


def _clean(runs: Iterable[_Judged]) -> list[Series]:
    return [run.series for run in runs if run.series.clean]


def _false(runs: Iterable[_Judged]) -> list[tuple[Series, Alarm]]:
    return [(run.series, alarm) for run in runs for alarm in run.false]


def _recorded(runs: Sequence[Series], split: Split) -> dict[str, int]:
    """How many runs of a split are recorded."""
    provoked = sum(bool(series.expected) for series in runs)
    return {"provoked": provoked, "recorded": len(runs) - provoked, "listed": len(clean.NUMBERS[split])}


def _sealed(runs: Sequence[_Judged]) -> list[str]:
    """The text about the last split. It is empty if no run of the split is recorded or requested."""
    if not runs:
        return []
    symptoms, false, steps = _found(runs), len(_false(runs)), steps_of(_clean(runs))
    low, high = _interval(false)
    per = 1000 / max(1, steps)
    text = known_misses.SEALED.format(
        found=sum(each.in_time for each in symptoms),
        symptoms=len(symptoms),
        false=false,
        steps=f"{steps:,}",
        rate=f"{per * false:.2f}",
        low=f"{per * low:.2f}",
        high=f"{per * high:.2f}",
        goal=MAX_FALSE,
        met="true" if per * false <= MAX_FALSE else "not true",
        sure="true" if per * high <= MAX_FALSE else "not true",
        one_more=f"{per * (false + 1):.2f}",
    )
    return [SEALED.format(sealed=text, **_recorded([run.series for run in runs], "sealed"))]


def _goals(runs: Sequence[_Judged]) -> list[tuple[object, ...]]:
    found = _found(runs)
    late = sum(not each.in_time for each in found)
    often = Counter(each.signal for each in found if each.in_time)
    rare = [name for name in SignalName if often[name] < 2]
    rate = 1000 * len(_false(runs)) / max(1, steps_of(_clean(runs)))
    return [
        (
            f"every symptom is raised within {WITHIN} steps",
            f"{len(found) - late} of {len(found)}",
            _met(not late),
        ),
        (
            "every signal is found in two runs at least",
            f"all but {', '.join(rare)}" if rare else "all",
            _met(not rare),
        ),
        ("50 clean runs", len(_clean(runs)), _met(len(_clean(runs)) >= 50)),
        (f"at most {MAX_FALSE} false alarm in 1,000 clean steps", f"{rate:.2f}", _met(rate <= MAX_FALSE)),
    ]


def _goals_apart(split: Split, runs: Sequence[_Judged]) -> list[tuple[object, ...]]:
    """The goals that one split alone can meet."""
    if not runs:
        return []
    symptoms, *_, rate = _goals(runs)
    own = [row for row, known in ((symptoms, _found(runs)), (rate, _clean(runs))) if known]
    return [(f"{split} alone: {goal}", found, met) for goal, found, met in own]


def _met(met: bool) -> str:
    return "yes" if met else "no"


def _in_all(name: str, runs: Sequence[_Judged]) -> tuple[object, ...]:
    symptoms, clean = _found(runs), _clean(runs)
    count, steps = len(_false(runs)), steps_of(clean)
    per = 1000 / max(1, steps)
    low, high = _interval(count)
    in_time = sum(each.in_time for each in symptoms)
    return (
        name,
        len(symptoms),
        f"{in_time} ({in_time / len(symptoms):.1%})" if symptoms else 0,
        len(clean),
        f"{steps:,}",
        count,
        f"{per * count:.2f}",
        f"{per * low:.2f} to {per * high:.2f}" if steps else "",
    )


def _without_symptoms(runs: Sequence[_Judged]) -> str:
    """How often signals are raised in clean runs that show no symptom of any signal."""
    well = [run for run in runs if run.series.clean and not labels.shown_by(run.series)]
    steps, count = steps_of(run.series for run in well), sum(len(run.false) for run in well)
    return (
        f"{len(well)} of the clean runs show no symptom of any signal, by the labels. Signals were raised "
        f"{count} times in their {steps:,} steps.\n"
    )


def _suspicions(runs: Sequence[Series]) -> str:
    """How often a signal is suspect, and how often that writes an event."""
    found = [(series, suspicions(series), max(step.step for step in series.steps)) for series in runs]
    clean = [(series, many) for series, many, _ in found if series.clean]
    count, steps = sum(len(many) for _, many, _ in found), steps_of(runs)
    of_clean, clean_steps = sum(len(many) for _, many in clean), steps_of(series for series, _ in clean)
    events = sum(len({(name, tenth(step, last)) for name, step in many}) for _, many, last in found)
    often, in_clean = 1000 * count / max(1, steps), 1000 * of_clean / max(1, clean_steps)
    return (
        f"A signal became suspect {count} times in {steps:,} steps: {often:.0f} times in 1,000, and "
        f"{in_clean:.0f} times in 1,000 steps of clean runs. Told at its first time in each tenth of a run, "
        f"{events} of the {count} are events.\n"
    )


def _interval(count: int) -> tuple[float, float]:
    """The 95 % interval of a Poisson variable's mean, given the observed `count`."""
    low = float(gammaincinv(count, TAIL)) if count else 0.0
    return low, float(gammaincinv(count + 1, 1 - TAIL))


def _of_signal(
    signal: SignalName, groups: Sequence[tuple[str, Sequence[_Judged]]], splits: int
) -> tuple[object, ...]:
    found = [[each for each in _found(runs) if each.signal is signal] for _, runs in groups]
    shares = [f"{sum(each.in_time for each in mine)} of {len(mine)}" for mine in found]
    return (signal, *shares, *(", ".join(map(_delay, mine)) for mine in found[:splits]))


def _delay(found: Detection) -> str:
    return ("never" if found.delay is None else str(found.delay)) + "*" * found.early


def _false_alarm(series: Series, alarm: Alarm) -> tuple[object, ...]:
    why = known_misses.FALSE.get((series.name, alarm.signal), "not known")
    return (series.name, series.split, alarm.signal, alarm.step, alarm.observed, why)


def _right(runs: Sequence[_Judged]) -> list[tuple[object, ...]]:
    names = {
        name: [r.series.name for r in runs for alarm in r.right if alarm.signal is name]
        for name in SignalName
    }
    shown = Counter(name for series in _clean(runs) for name in labels.shown_by(series))
    return [
        (signal, shown[signal], len(found), ", ".join(dict.fromkeys(found)))
        for signal, found in names.items()
        if shown[signal]
    ]


def _missed(found: Detection) -> tuple[object, ...]:
    raised = "never" if found.raised is None else found.raised
    why = known_misses.MISSED.get((found.run, found.signal), "not known")
    return (found.run, found.split, found.signal, found.begin, raised, why)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table, or None if it has no rows."""
    if not rows:
        return "None.\n"
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:], ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", choices=get_args(Split))
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    options = parser.parse_args()
    text = page((options.split,) if options.split else recorded())
    print(text)
    if options.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
