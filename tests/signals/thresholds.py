"""How far clean and provoked runs are from each signal's threshold."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.signals import labels
from tests.signals.detection import verdicts
from tests.signals.read import Series

from headway_analysis.signals.definition import Level, Reading
from headway_api.signals import SignalName

HEAD: Final = (
    "signal",
    "threshold",
    "clean runs: 99 % of the readings are",
    "bad readings",
    "provoked runs: median since the symptom began",
    "bad readings",
)
QUANTILES: Final = 100


@dataclass
class Readings:
    """The readings of one signal."""

    clean: list[Reading] = field(default_factory=list)
    """Readings of clean runs that do not show the symptom."""
    provoked: list[Reading] = field(default_factory=list)
    """Readings of runs with the symptom, from its first step on."""

    def row(self, signal: SignalName) -> tuple[object, ...]:
        """The signal's line in the table of `HEAD`."""
        every = [*self.clean, *self.provoked]
        beyond = [one.value - one.threshold for one in every if one.level is Level.OVER]
        above = statistics.fmean(beyond) >= 0
        cuts = statistics.quantiles([one.value for one in self.clean], n=QUANTILES, method="inclusive")
        edge = f"at most {cuts[-1]:.3g}" if above else f"at least {cuts[0]:.3g}"
        middle = statistics.median(one.value for one in self.provoked)
        return (
            signal,
            f"{'above' if above else 'below'} {statistics.median(one.threshold for one in every):.3g}",
            f"{edge} (of {len(self.clean):,})",
            _share(self.clean),
            f"{middle:.3g} (of {len(self.provoked):,})",
            _share(self.provoked),
        )


def rows(runs: Iterable[Series]) -> list[tuple[object, ...]]:
    """A line for each signal."""
    found = {name: Readings() for name in SignalName}
    for series in runs:
        if series.clean or series.expected:
            _add(found, series)
    return [readings.row(name) for name, readings in found.items()]


def _add(found: Mapping[SignalName, Readings], series: Series) -> None:
    begins = {each.signal: each.begin for each in series.expected}
    ill = labels.shown_by(series) if series.clean else set()
    for step, now in verdicts(series):
        for verdict in now:
            name, reading = verdict.signal.name, verdict.standing.reading
            if reading is None:
                continue
            if series.clean and name not in ill:
                found[name].clean.append(reading)
            elif name in begins and step >= begins[name]:
                found[name].provoked.append(reading)


def _share(readings: list[Reading]) -> str:
    return f"{sum(one.level is Level.OVER for one in readings) / len(readings):.1%}"
