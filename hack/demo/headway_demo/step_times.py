"""Accounts for the seconds of each step, from a copy of the job's folder, and checks that little is
missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from headway_analysis.report.timeline import EpisodeTiming, StepTime, spent
from headway_api.artifacts import RunLayout
from headway_api.run_files import RunFiles
from headway_api.store import FileStore

LEAST_SECONDS = 10.0
"""Shorter steps are not checked, because some milliseconds between two processes can be 1 % of them."""
LEAST_KNOWN = 0.99
"""Minimum share of a longer step's time that must be accounted for."""
PARTS = 3
"""Number of parts of a step that are printed."""


class TimeUnaccountedError(Exception):
    """Too much of a step's time is not accounted for."""


def read(run: Path) -> list[StepTime]:
    """The times of every step with groups, in the order of the steps."""
    files = RunFiles(FileStore(), RunLayout.of(f"file://{run.resolve()}"))
    found = []
    for before, report in pairwise(files.steps()):
        if report.groups:
            groups = files.groups([files.layout.train_group(each) for each in report.groups])
            every = [
                EpisodeTiming.of(each) for group in groups for each in (*group.episodes, *group.discarded)
            ]
            found.append(spent(before, report, every))
    return [each for each in found if each is not None]


def lines(times: Sequence[StepTime]) -> Iterator[str]:
    """A line for each step, with the share of its time that is accounted for, and its largest parts."""
    for each in times:
        parts = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in [*each.parts.items()][:PARTS])
        yield f"  step {each.step:>3}  {each.seconds:6.1f} s  {each.known:6.1%} accounted for: {parts}"


def verified(times: Sequence[StepTime]) -> str:
    """The lines of all steps as one text, after a check.

    Raises:
        TimeUnaccountedError: no step has times, or too little of a long step is accounted for.
    """
    if not times:
        raise TimeUnaccountedError("no report of a step says when it ended")
    for each in times:
        if each.seconds > LEAST_SECONDS and each.known < LEAST_KNOWN:
            parts = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in each.parts.items())
            raise TimeUnaccountedError(
                f"of the {each.seconds:.1f} s of step {each.step}, {each.known:.1%} are accounted for: "
                f"{parts}"
            )
    return "\n".join(lines(times))
