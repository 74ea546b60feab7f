"""What the signals made of the recorded runs, as a page.

    python -m tests.signals.page [--split held_out] [--write]

`--write` writes bench/results/signals.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, get_args

from scipy.special import gammaincinv
from tests.signals import known, read
from tests.signals.detection import (
    WITHIN,
    Alarm,
    Detection,
    detections,
    false_alarms,
    steps_of,
)
from tests.signals.read import Series, Split

from headway_api.signals import SignalName

PAGE: Final = Path("bench/results/signals.md")
TAIL: Final = 0.025
"""Of a 95 % interval, on each side."""
INTRODUCTION: Final = """\
# How the signals do on recorded runs

Made by `make test-signals`. The runs are those of tests/signals: the demo's tiny model, trained by the real \
learner.

Runs of `chosen_on` were recorded before any threshold was chosen, but for {later}. \
Runs of `held_out` have other seeds and settings. They were recorded when every threshold, window and \
formula was fixed, and none was changed since. So its figures are what to expect of another job like these; \
those of `chosen_on` flatter.
"""


def page(splits: Sequence[Split]) -> str:
    """The page on these splits; with both of them on them together, too."""
    found = {split: _found(split) for split in splits}
    false = {split: _false(split) for split in splits}
    groups: list[tuple[str, tuple[Split, ...]]] = [(split, (split,)) for split in splits]
    if len(splits) > 1:
        groups.append(("together", tuple(splits)))
    parts = [
        INTRODUCTION.format(later=" and ".join(known.LATER)),
        "## In all\n",
        f"A symptom counts as found where its signal is raised within {WITHIN} steps of its first one. "
        "A clean run is one that goes as it should: a signal that it raises is a false alarm, unless the raw "
        "figures show its symptom (tests/signals/labels.py). The interval supposes that false alarms come "
        "independently (Garwood 1936).\n",
        _table(
            ("split", "symptoms", "found", "clean runs", "clean steps", "false alarms",
             "per 1,000 steps", "95 % interval"),
            [_in_all(name, members, found, false) for name, members in groups],
        ),
        "## Symptoms\n",
        "Found of all, and the steps from the symptom's first one to the alarm. A `*` marks an alarm that "
        "was there before the step at which the rule has the symptom begin.\n",
        _table(
            ("signal", *(name for name, _ in groups), *(f"steps to the alarm, {split}" for split in splits)),
            [_of_signal(signal, groups, found) for signal in SignalName],
        ),
        "## Symptoms that are not found in time\n",
        _missed(found),
        "## False alarms\n",
        _table(
            ("run", "split", "signal", "step", "what it saw", "why"),
            [_false_alarm(*each) for split in splits for each in false[split]],
        ),
        "## Runs that do not count\n",
        "These were to go as they should and did not, by the held-out external score alone.\n",
        _table(("run", "split", "why"), _unclean(splits)),
        "These were to provoke a symptom that their raw figures do not show (tests/signals/shown.py). Each "
        "was replaced before any signal was looked at.\n",
        _table(("run", "what it was", "what was seen", "what it is now"),
               [(name, *said) for name, said in known.REPLACED.items()]),
    ]  # fmt: skip
    return "\n".join(parts)


def _found(split: Split) -> list[Detection]:
    return [each for series in read.provoking(split) for each in detections(series)]


def _false(split: Split) -> list[tuple[Series, Alarm]]:
    return [(series, alarm) for series in read.clean(split) for alarm in false_alarms(series)]


def _in_all(
    name: str,
    splits: Iterable[Split],
    found: dict[Split, list[Detection]],
    false: dict[Split, list[tuple[Series, Alarm]]],
) -> tuple[object, ...]:
    symptoms = [each for split in splits for each in found[split]]
    runs = [series for split in splits for series in read.clean(split)]
    count, steps = sum(len(false[split]) for split in splits), steps_of(runs)
    low, high = _interval(count)
    in_time = sum(each.in_time for each in symptoms)
    return (
        name,
        len(symptoms),
        f"{in_time} ({in_time / len(symptoms):.1%})",
        len(runs),
        f"{steps:,}",
        count,
        f"{1000 * count / steps:.2f}",
        f"{1000 * low / steps:.2f} to {1000 * high / steps:.2f}",
    )


def _interval(count: int) -> tuple[float, float]:
    """Of the mean of a Poisson variable that came out as `count`: 95 %."""
    low = float(gammaincinv(count, TAIL)) if count else 0.0
    return low, float(gammaincinv(count + 1, 1 - TAIL))


def _of_signal(
    signal: SignalName,
    groups: Sequence[tuple[str, tuple[Split, ...]]],
    found: dict[Split, list[Detection]],
) -> tuple[object, ...]:
    shares, delays = [], []
    for _, splits in groups:
        mine = [each for split in splits for each in found[split] if each.signal is signal]
        shares.append(f"{sum(each.in_time for each in mine)} of {len(mine)}")
        if len(splits) == 1:
            delays.append(", ".join(map(_delay, mine)))
    return (signal, *shares, *delays)


def _delay(found: Detection) -> str:
    return ("never" if found.delay is None else str(found.delay)) + "*" * found.early


def _false_alarm(series: Series, alarm: Alarm) -> tuple[object, ...]:
    why = known.FALSE.get((series.name, alarm.signal), "not known")
    return (series.name, series.split, alarm.signal, alarm.step, alarm.saw, why)


def _missed(found: dict[Split, list[Detection]]) -> str:
    rows = [
        (
            each.run,
            each.split,
            each.signal,
            each.begin,
            "never" if each.raised is None else each.raised,
            known.MISSED.get((each.run, each.signal), "not known"),
        )
        for split in found
        for each in found[split]
        if not each.in_time
    ]
    return _table(("run", "split", "signal", "begins at", "raised at", "why"), rows)


def _unclean(splits: Sequence[Split]) -> list[tuple[object, ...]]:
    return [
        (series.name, series.split, series.unclean)
        for split in splits
        for series in read.all_series(split)
        if series.unclean
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """None where there are no rows."""
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
    recorded = [split for split in get_args(Split) if read.all_series(split)]
    text = page((options.split,) if options.split else recorded)
    print(text)
    if options.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
