"""Records the runs that are not recorded yet.

    python -m tests.signals.record [--split chosen_on] [--only NAME ...] [--again] [--describe]

A run depends only on its circumstances, and on how torch rounds on the machine. A recorded run is not run
again, so an interrupted recording continues where it stopped. `--describe` runs nothing. It updates what the
recorded metrics are expected to show, and deletes runs that are no longer listed.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import time
from collections.abc import Sequence
from typing import get_args

from tests.signals import clean, provocations, series
from tests.signals.circumstances import Circumstances, Split
from tests.signals.describe import NeverBeginsError, described


def every_run() -> list[Circumstances]:
    """All runs, beginning with those that provoke a symptom.

    Raises:
        ValueError: two runs have one name.
    """
    runs = [*provocations.RUNS, *clean.RUNS]
    names = [run.name for run in runs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two runs are called {', '.join(sorted(twice))}; give one another name")
    return runs


def wanted(split: str | None, only: Sequence[str], *, again: bool) -> list[Circumstances]:
    """The runs to record. `only` has patterns of their names."""
    recorded = set() if again else {run["name"] for run in series.index()}
    return [
        run
        for run in every_run()
        if run.name not in recorded
        and split in (None, run.split)
        and (not only or any(fnmatch.fnmatch(run.name, pattern) for pattern in only))
    ]


def describe() -> None:
    """Update the descriptions of the recorded runs."""
    runs = {run.name: run for run in every_run()}
    for recorded in series.read_all():
        if recorded.name in runs:
            series.write(described(runs[recorded.name], recorded.steps))
        else:
            series.forget(recorded)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", choices=get_args(Split))
    parser.add_argument("--only", nargs="+", default=[], help="names, or patterns such as clean-*")
    parser.add_argument("--again", action="store_true", help="those on record too")
    parser.add_argument("--describe", action="store_true", help="run nothing")
    options = parser.parse_args()
    if options.describe:
        describe()
        return
    runs = wanted(options.split, options.only, again=options.again)
    print(f"{len(runs)} runs to record", flush=True)
    if runs:
        record(runs)


def record(runs: Sequence[Circumstances]) -> None:
    """Run these circumstances one after the other, and record them."""
    from tests.signals import rig  # torch and DeepSpeed take seconds

    logging.getLogger("headway_coordinator").setLevel(logging.ERROR)
    for number, run in enumerate(runs, 1):
        started = time.monotonic()
        try:
            found = rig.run(run)
        except NeverBeginsError as error:
            print(f"{number}/{len(runs)} {run.name} is not recorded: {error}", flush=True)
            continue
        series.write(found)
        expected = ", ".join(f"{each.signal} from step {each.begin}" for each in found.expected)
        print(
            f"{number}/{len(runs)} {run.name}: {time.monotonic() - started:.0f} s; "
            f"{expected or found.unclean or 'clean'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
