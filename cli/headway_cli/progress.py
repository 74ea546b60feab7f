"""A job's progress as lines, from its status. Pure; a missing field is no error."""

from __future__ import annotations

from headway_api.document import Json
from headway_cli import reading
from headway_cli.reading import UNKNOWN
from headway_cli.screen import figures, results


def line(job: Json) -> str:
    """The status of a job in one line, as the printer columns of kubectl show it."""
    status = reading.block(job, "status")
    usage = reading.block(status, "usage")
    fields = {
        "state": figures.state_of(job),
        **(_measured(job) if figures.is_evaluation(job) else _trained(status)),
        "tokens": f"{reading.count(usage.get('totalTokens')) or 0:,}",
        "cost": f"{reading.figure(usage.get('cost', '0'))} {reading.text(usage.get('currency')) or 'USD'}",
    }
    said = "  ".join(f"{name} {value}" for name, value in fields.items())
    reason = reading.text(status.get("reason"))
    return f"{said}  ({reason})" if reason and reason not in (fields["state"], "Running") else said


def _trained(status: Json) -> dict[str, str]:
    progress = reading.block(status, "progress")
    reached, most = reading.count(progress.get("step")) or 0, reading.count(progress.get("maxSteps"))
    return {
        "step": f"{reached}/{UNKNOWN if most is None else most}",
        "reward": reading.figure(reading.block(status, "reward").get("mean")),
        "held-out": held_out(reading.block(status, "validation")),
    }


def _measured(job: Json) -> dict[str, str]:
    """Rows, and the score of each candidate under its name."""
    progress = reading.block(job, "status", "progress")
    reached, most = reading.count(progress.get("groups")) or 0, reading.count(progress.get("ofGroups"))
    fields = {"rows": f"{reached}/{UNKNOWN if most is None else most}"}
    for each in reading.items(reading.block(job, "status").get("results")):
        fields[reading.text(each.get("name")) or UNKNOWN] = results.score(each)
    if gate := reading.text(reading.block(job, "status", "gate").get("result")):
        fields["gate"] = gate
    return fields


def held_out(validation: Json) -> str:
    """The external score of held-out rows, and the step at which it was measured."""
    value, step = reading.number(validation.get("externalScore")), reading.count(validation.get("step"))
    if value is None:
        return UNKNOWN
    score = reading.text(validation.get("score")) or f"{value:.0%}"
    return score if step is None else f"{score} (step {step})"


def preflight(job: Json) -> list[str]:
    """The results of the preflight's checks, one a line; empty before they are over."""
    found = reading.block(job, "status", "preflight")
    if "findings" not in found:
        return []
    state, summary = reading.text(found.get("state")), reading.text(found.get("summary"))
    episodes = f"{reading.count(found.get('episodes')) or 0} baseline episodes"
    lines = [f"preflight: {state} after {episodes}: {summary}"]
    for each in reading.items(found["findings"]):
        verdict, check, value, message = (
            reading.text(each.get(key)) for key in ("verdict", "check", "value", "message")
        )
        lines.append(f"  {verdict:7} {check}{f' {value}' if value else ''}: {message}")
    return lines


def is_true(job: Json, kind: str) -> bool:
    """Whether the condition exists and is True."""
    return any(each.get("type") == kind and each.get("status") == "True" for each in _conditions(job))


def held_by(job: Json) -> str:
    """Why a job is held, and what resumes it."""
    if pause := reading.block(job, "status", "pause"):
        why = reading.text(pause.get("message")) or reading.text(pause.get("signal"))
        return f"it is paused ({why}); write --resume to go on"
    told = {reading.text(each.get("type")): each for each in _conditions(job)}
    for kind in ("BudgetExhausted", "Suspended", "Stalled"):
        found = told.get(kind, {})
        if found.get("status") == "True":
            return f"{reading.text(found.get('reason'))}: {reading.text(found.get('message'))}"
    return "see its conditions"


def conditions(job: Json) -> list[str]:
    """The conditions, one a line."""
    return [
        "  {}={} {}: {}".format(
            *(reading.text(each.get(key)) for key in ("type", "status", "reason", "message"))
        )
        for each in _conditions(job)
    ]


def _conditions(job: Json) -> list[Json]:
    return reading.items(reading.block(job, "status").get("conditions"))
