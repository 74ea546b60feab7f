"""Live progress of a job: one line whenever its status says something new."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headway_demo.kube import Kube, KubeError

Job = dict[str, Any]


def progress_line(job: Job) -> str:
    """The status of a job in one line, as the printer columns show it."""
    status = job.get("status", {})
    progress, usage = status.get("progress", {}), status.get("usage", {})
    validation = status.get("validation", {})
    fields = {
        "state": status.get("state", "Pending"),
        "step": f"{progress.get('step', 0)}/{progress.get('maxSteps', '-')}",
        "reward": status.get("reward", {}).get("mean", "-"),
        "held-out": _held_out(validation),
        "tokens": f"{usage.get('totalTokens', 0):,}",
        "cost": f"{usage.get('cost', '0')} {usage.get('currency', 'USD')}",
    }
    return "  ".join(f"{name} {value}" for name, value in fields.items())


def _held_out(validation: dict[str, Any]) -> str:
    if "externalScore" not in validation:
        return "-"
    return f"{float(validation['externalScore']):.0%} (step {validation['step']})"


def preflight_lines(job: Job) -> list[str]:
    """What the checks of baseline episodes came to, once they are over; a line each."""
    found = job.get("status", {}).get("preflight", {})
    if "findings" not in found:
        return []
    episodes = f"{found.get('episodes', 0)} baseline episodes"
    lines = [f"preflight: {found['state']} after {episodes}: {found.get('summary', '')}"]
    return lines + [_finding(each) for each in found["findings"]]


def _finding(found: dict[str, Any]) -> str:
    number = f" {found['value']}" if "value" in found else ""
    return f"  {found['verdict']:7} {found['check']}{number}: {found.get('message', '')}"


def condition(job: Job, kind: str) -> dict[str, Any] | None:
    """The condition of this type, if the status has it."""
    found = (c for c in job.get("status", {}).get("conditions", []) if c["type"] == kind)
    return next(found, None)


def is_true(job: Job, kind: str) -> bool:
    """Whether a condition is there and True."""
    found = condition(job, kind)
    return found is not None and found["status"] == "True"


def why(job: Job) -> str:
    """What the conditions say, for a message about a job that does not do what is wanted."""
    lines = [
        f"  {c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}"
        for c in job.get("status", {}).get("conditions", [])
    ]
    return "\n".join(lines) or "  (no conditions)"


def follow(
    kube: Kube, namespace: str, name: str, *, deadline_s: float, show: Callable[[str], None] = print
) -> Job:
    """Show progress until the job is Complete; KubeError with its conditions if it fails or is late."""
    started, shown, checked = time.monotonic(), "", False
    while True:
        job = kube.get("rltrainingjob", name, "-n", namespace)
        elapsed = time.monotonic() - started
        line = progress_line(job)
        if line != shown:
            show(f"{elapsed:6.0f} s  {line}")
            shown = line
        if not checked and (lines := preflight_lines(job)):
            checked = True
            for text in lines:
                show(f"{elapsed:6.0f} s  {text}")
        if is_true(job, "Complete"):
            return job
        if is_true(job, "Failed"):
            raise KubeError(f"job {name} failed:\n{why(job)}")
        if elapsed > deadline_s:
            raise KubeError(f"job {name} is not complete after {deadline_s:.0f} s:\n{why(job)}")
        time.sleep(2)
