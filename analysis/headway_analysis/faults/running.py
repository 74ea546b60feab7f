"""Faults of a job that runs."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, Kind, Stage

FAULTS: tuple[Fault, ...] = (
    Fault(
        "out-of-time",
        Kind.MANIFEST,
        Stage.RUN,
        "The job has run for as long as it may.",
        "spec.activeDeadlineSeconds: the job has run for ... s; raise it in a new job, or lower "
        "spec.schedule.maxSteps",
        reason="ActiveDeadlineExceeded",
    ),
)
