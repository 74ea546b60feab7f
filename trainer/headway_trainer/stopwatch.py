"""Measures the seconds of each phase of a learner step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headway_api.records import StepReport


@dataclass
class Stopwatch:
    """Seconds of one step, by the name of the phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    """Unix time at which the previous step ended, or this process started."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    def complete(self, ended: float) -> dict[str, float]:
        """The seconds by phase, with the rest of the time until `ended` (Unix time) as `other`."""
        rest = ended - self.began - sum(self.seconds.values())
        return self.seconds | {"other": max(0.0, rest)}

    @classmethod
    def of_first_step(cls, report: StepReport, started: float) -> Stopwatch:
        """The stopwatch of a process's first step.

        It begins at the start of the process. If this process made step 0, it begins at the end of step 0.

        Args:
            report: the report of the step that the process resumed, or of step 0 that it made.
            started: when the process started, in Unix time.
        """
        if report.ended_at is not None and report.ended_at >= started:
            return cls({"report": max(0.0, time.time() - report.ended_at)}, report.ended_at)
        return cls({"start": max(0.0, time.time() - started)}, started)
