"""Formats a job's status as lines of text. Pure; a missing field is not an error."""

from __future__ import annotations

from headway_api.document import Json
from headway_cli import status_values
from headway_cli.screen import overview, results
from headway_cli.status_values import UNKNOWN


def line(job: Json) -> str:
    """The status of a job in one line, with the fields of the columns of `kubectl get`."""
    status = status_values.block(job, "status")
    usage = status_values.block(status, "usage")
    currency = status_values.text(usage.get("currency")) or "USD"
    fields = {
        "state": overview.state_of(job),
        **(_measured(job) if overview.is_evaluation(job) else _trained(status)),
        "tokens": f"{status_values.count(usage.get('totalTokens')) or 0:,}",
        "cost": f"{status_values.number_text(usage.get('cost', '0'))} {currency}",
    }
    text = "  ".join(f"{name} {value}" for name, value in fields.items())
    reason = status_values.text(status.get("reason"))
    return f"{text}  ({reason})" if reason and reason not in (fields["state"], "Running") else text


def _trained(status: Json) -> dict[str, str]:
    progress = status_values.block(status, "progress")
    reached, maximum = (
        status_values.count(progress.get("step")) or 0,
        status_values.count(progress.get("maxSteps")),
    )
    return {
        "step": f"{reached}/{UNKNOWN if maximum is None else maximum}",
        "reward": status_values.number_text(status_values.block(status, "reward").get("mean")),
        "held-out": held_out(status_values.block(status, "validation")),
    }


def _measured(job: Json) -> dict[str, str]:
    """Finished rows, the score of each candidate under its name, and the gate's result."""
    progress = status_values.block(job, "status", "progress")
    reached, maximum = (
        status_values.count(progress.get("groups")) or 0,
        status_values.count(progress.get("ofGroups")),
    )
    fields = {"rows": f"{reached}/{UNKNOWN if maximum is None else maximum}"}
    for each in status_values.items(status_values.block(job, "status").get("results")):
        fields[status_values.text(each.get("name")) or UNKNOWN] = results.score(each)
    if gate := status_values.text(status_values.block(job, "status", "gate").get("result")):
        fields["gate"] = gate
    return fields


def held_out(validation: Json) -> str:
    """The external score in `status.validation` as text, with the step at which it was measured."""
    value, step = (
        status_values.number(validation.get("externalScore")),
        status_values.count(validation.get("step")),
    )
    if value is None:
        return UNKNOWN
    score = status_values.text(validation.get("score")) or f"{value:.0%}"
    return score if step is None else f"{score} (step {step})"


def preflight(job: Json) -> list[str]:
    """The results of the preflight's checks, one a line; empty before they are over."""
    found = status_values.block(job, "status", "preflight")
    if "findings" not in found:
        return []
    state, summary = status_values.text(found.get("state")), status_values.text(found.get("summary"))
    episodes = f"{status_values.count(found.get('episodes')) or 0} baseline episodes"
    lines = [f"preflight: {state} after {episodes}: {summary}"]
    for each in status_values.items(found["findings"]):
        verdict, check, value, message = (
            status_values.text(each.get(key)) for key in ("verdict", "check", "value", "message")
        )
        lines.append(f"  {verdict:7} {check}{f' {value}' if value else ''}: {message}")
    return lines


def is_true(job: Json, kind: str) -> bool:
    """Whether the job has the condition of type `kind` with status True."""
    return any(each.get("type") == kind and each.get("status") == "True" for each in _conditions(job))


def held_by(job: Json) -> str:
    """Why a job is held, and what resumes it."""
    if pause := status_values.block(job, "status", "pause"):
        why = status_values.text(pause.get("message")) or status_values.text(pause.get("signal"))
        return f"it is paused ({why}); write --resume to continue"
    by_type = {status_values.text(each.get("type")): each for each in _conditions(job)}
    for kind in ("BudgetExhausted", "Suspended", "Stalled"):
        found = by_type.get(kind, {})
        if found.get("status") == "True":
            return f"{status_values.text(found.get('reason'))}: {status_values.text(found.get('message'))}"
    return "see its conditions"


def conditions(job: Json) -> list[str]:
    """The conditions, one a line."""
    return [
        "  {}={} {}: {}".format(
            *(status_values.text(each.get(key)) for key in ("type", "status", "reason", "message"))
        )
        for each in _conditions(job)
    ]


def _conditions(job: Json) -> list[Json]:
    return status_values.items(status_values.block(job, "status").get("conditions"))
