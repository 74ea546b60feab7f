"""Says from a job's status whether it runs, has ended or is held. Pure."""

from __future__ import annotations

from headway_api import names
from headway_api.document import Json
from headway_cli import progress

HOLDING = ("BudgetExhausted", "Suspended", "Stalled")
"""Conditions that hold a job, in the order in which an error prefers them."""


class RunFailedError(Exception):
    """The job has failed."""

    def __init__(self, name: str, reason: str, message: str) -> None:
        """
        Args:
            name: name of the job.
            reason: one word that scripts may compare.
            message: what is wrong and what to change.
        """
        super().__init__(f"{name} failed: {reason}: {message}")
        self.reason = reason
        self.message = message


class RunHeldError(Exception):
    """The job is held until somebody changes something; the message says what to change."""


def require_complete(job: Json) -> None:
    """Check that a job that no longer runs is Complete.

    Raises:
        RunFailedError: the job has failed.
        RunHeldError: the job is held, or no process runs it.
    """
    if progress.is_true(job, "Complete"):
        return
    name, by_type = job["metadata"]["name"], _conditions(job)
    if progress.is_true(job, "Failed"):
        raise RunFailedError(name, by_type["Failed"].get("reason", ""), by_type["Failed"].get("message", ""))
    kind = next((each for each in HOLDING if progress.is_true(job, each)), None)
    if kind is None:
        raise RunHeldError(f"{name} is not running: no process runs this job: train it again to continue")
    raise RunHeldError(
        f"{name} is not running: {by_type[kind].get('reason', '')}: {by_type[kind].get('message', '')}"
    )


def is_over(job: Json) -> bool:
    """Whether a job is Complete or Failed."""
    return progress.is_true(job, "Complete") or progress.is_true(job, "Failed")


def is_held(job: Json) -> bool:
    """Whether a job on a cluster is suspended or stalled under its newest spec.

    A job that was just resumed is not held, although its status says so until the operator has seen the
    change.
    """
    now = job["metadata"].get("generation")
    by_type = _conditions(job)
    holding = [by_type[kind] for kind in ("Suspended", "Stalled") if progress.is_true(job, kind)]
    return not _goes_on(job) and any(each.get("observedGeneration", now) == now for each in holding)


def _goes_on(job: Json) -> bool:
    """Whether a person has ended the job's pause, and the status does not show that yet."""
    status, metadata = job.get("status", {}), job["metadata"]
    paused = status.get("pause", {}).get("time")
    ended = (metadata.get("annotations") or {}).get(names.ANNOTATION_RESUME)
    return paused is not None and paused == ended != status.get("resumedPause")


def _conditions(job: Json) -> dict[str, Json]:
    return {each["type"]: each for each in job.get("status", {}).get("conditions", [])}
