"""A job's progress in lines, from its status. Pure."""

from __future__ import annotations

from headway_api.document import Json


def line(job: Json) -> str:
    """The status of a job in one line, as the printer columns of kubectl show it."""
    status = job.get("status", {})
    progress, usage = status.get("progress", {}), status.get("usage", {})
    fields = {
        "state": status.get("state", "Pending"),
        "step": f"{progress.get('step', 0)}/{progress.get('maxSteps', '-')}",
        "reward": status.get("reward", {}).get("mean", "-"),
        "held-out": held_out(status.get("validation", {})),
        "tokens": f"{usage.get('totalTokens', 0):,}",
        "cost": f"{usage.get('cost', '0')} {usage.get('currency', 'USD')}",
    }
    said = "  ".join(f"{name} {value}" for name, value in fields.items())
    reason = status.get("reason", "")
    return f"{said}  ({reason})" if reason and reason not in (fields["state"], "Running") else said


def held_out(validation: Json) -> str:
    """The external score of held-out rows and when it was measured."""
    if "externalScore" not in validation:
        return "-"
    return f"{float(validation['externalScore']):.0%} (step {validation['step']})"


def preflight(job: Json) -> list[str]:
    """What the checks of baseline episodes came to, a line each; nothing before they are over."""
    found = job.get("status", {}).get("preflight", {})
    if "findings" not in found:
        return []
    episodes = f"{found.get('episodes', 0)} baseline episodes"
    lines = [f"preflight: {found['state']} after {episodes}: {found.get('summary', '')}"]
    for each in found["findings"]:
        number = f" {each['value']}" if "value" in each else ""
        lines.append(f"  {each['verdict']:7} {each['check']}{number}: {each.get('message', '')}")
    return lines


def is_true(job: Json, kind: str) -> bool:
    """Whether a condition is there and True."""
    return any(
        each["type"] == kind and each["status"] == "True"
        for each in job.get("status", {}).get("conditions", [])
    )


def held_by(job: Json) -> str:
    """Why a job stands still, and what has it go on."""
    if pause := job.get("status", {}).get("pause"):
        return f"it is paused ({pause.get('message') or pause.get('signal')}); write --resume to go on"
    told = {each["type"]: each for each in job.get("status", {}).get("conditions", [])}
    for kind in ("BudgetExhausted", "Suspended", "Stalled"):
        found = told.get(kind, {})
        if found.get("status") == "True":
            return f"{found.get('reason', '')}: {found.get('message', '')}"
    return "see its conditions"


def conditions(job: Json) -> list[str]:
    """What the conditions say, a line each."""
    return [
        f"  {each['type']}={each['status']} {each.get('reason', '')}: {each.get('message', '')}"
        for each in job.get("status", {}).get("conditions", [])
    ]
