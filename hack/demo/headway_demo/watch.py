"""Shows the live progress of a job: one line at each change of its status."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headway_cli import progress
from headway_demo.kube import Kube, KubeError

Job = dict[str, Any]


def condition(job: Job, kind: str) -> dict[str, Any] | None:
    """The condition of this type, if the status has it."""
    found = (c for c in job.get("status", {}).get("conditions", []) if c["type"] == kind)
    return next(found, None)


def why(job: Job) -> str:
    """The job's conditions as text, for a message about a failed or late job."""
    return "\n".join(progress.conditions(job)) or "  (no conditions)"


def follow(
    kube: Kube, namespace: str, name: str, *, deadline_s: float, show: Callable[[str], None] = print
) -> Job:
    """Show progress until the job is Complete.

    Raises:
        KubeError: the job failed or missed the deadline. The message has the job's conditions.
    """
    started, shown, checked, job = time.monotonic(), "", False, Job()
    for job in kube.changes("rltrainingjob", name, "-n", namespace, deadline_s=deadline_s):
        elapsed = time.monotonic() - started
        line = progress.line(job)
        if line != shown:
            show(f"{elapsed:6.0f} s  {line}")
            shown = line
        if not checked and (lines := progress.preflight(job)):
            checked = True
            for text in lines:
                show(f"{elapsed:6.0f} s  {text}")
        if progress.is_true(job, "Complete"):
            return job
        if progress.is_true(job, "Failed"):
            raise KubeError(f"job {name} failed:\n{why(job)}")
    raise KubeError(f"job {name} is not complete after {deadline_s:.0f} s:\n{why(job)}")
