"""Rows about what needs a person's attention: signals, conditions, remedies, preflight findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headway_api.document import Json
from headway_cli import status_values
from headway_cli.screen.layout import Row

BAD: Final = {
    "True": ("BudgetLow", "BudgetExhausted", "Stalled", "Failed"),
    "False": (
        "Accepted",
        "CandidatesResolved",
        "PreflightPassed",
        "LearnerReady",
        "RolloutReady",
        "SandboxesReady",
        "WeightsInSync",
        "Healthy",
    ),
}
"""Types of conditions that hold a job or mean a problem, by the status at which they do. GatePassed is
missing, because the gate has a row of its own."""
UNDER_WAY: Final = ("Running", "Sampling", "Starting")
"""Reasons of a condition that is not True yet, and will become True without any change."""
OF_PODS: Final = ("LearnerReady", "RolloutReady", "SandboxesReady", "WeightsInSync")
"""Conditions that mean nothing for a job in a state of `GONE`, which must have no pods."""
GONE: Final = ("Complete", "Failed", "Suspending", "Suspended")
"""States of a job whose pods are gone or are being deleted."""
REMEDIES_SHOWN: Final = 3
GRAVE: Final = {"Raised": "red", "Suspect": "yellow"}
VERDICTS: Final = {"Fail": "red", "Warn": "yellow", "Unknown": ""}


def signals(job: Json) -> Iterator[Row]:
    """A row for each raised or suspected signal, with its value, threshold and message."""
    for each in status_values.items(status_values.block(job, "status").get("signals")):
        state = status_values.text(each.get("state"))
        if state in GRAVE:
            since, value = status_values.count(each.get("since")), status_values.text(each.get("value"))
            text = status_values.text(each.get("name"))
            text += "" if since is None else f" since step {since:,}"
            limit = status_values.text(each.get("threshold"))
            number = f"{value or status_values.UNKNOWN} against a threshold of {limit}" if limit else value
            pieces = [text, number, status_values.text(each.get("message"))]
            yield Row(state.lower(), tuple(filter(None, pieces)), GRAVE[state])


def holds(job: Json) -> Iterator[Row]:
    """Rows that say why the job is held or has a problem: a pause, no progress, and conditions."""
    status = status_values.block(job, "status")
    state = status_values.text(status.get("state"))
    if is_paused(status):
        pause = status_values.block(status, "pause")
        pieces = [status_values.text(pause.get("message")) or status_values.text(pause.get("signal"))]
        if resume := status_values.text(pause.get("resume")):
            pieces.append(f"to go on: {resume}")
        yield Row("paused", tuple(filter(None, pieces)) or ("see status.pause",), "yellow")
    if stalled := status_values.text(status_values.block(status, "progress").get("stalled")):
        yield Row("stalled", (stalled,), "yellow")
    yield from _conditions(
        status, state, {row.pieces[0].partition(" ")[0] for row in signals(job) if row.pieces}
    )


def _conditions(status: Json, state: str, signals: set[str]) -> Iterator[Row]:
    """Rows about conditions that hold the job or mean a problem.

    Of conditions with the same text only the first is shown. A condition about one of the `signals` is left
    out, because each signal has a row of its own.
    """
    shown: set[tuple[str, str]] = set()
    for each in status_values.items(status.get("conditions")):
        kind, found = status_values.text(each.get("type")), status_values.text(each.get("status"))
        reason, message = status_values.text(each.get("reason")), status_values.text(each.get("message"))
        holds = kind in BAD.get(found, ()) and not (kind in OF_PODS and state in GONE)
        holds = holds and reason not in UNDER_WAY
        if not holds or reason in signals or (reason, message) in shown:
            continue
        shown.add((reason, message))
        head = f"{kind} is {found}" + (f" ({reason})" if reason else "")
        yield Row("condition", (f"{head}: {message}" if message else head,), "yellow")


def is_paused(status: Json) -> bool:
    """Whether training is paused at a signal: nobody has ended the pause yet."""
    time = status_values.block(status, "pause").get("time")
    return bool(status_values.block(status, "pause")) and time != status.get("resumedPause")


def remedies(job: Json) -> Iterator[Row]:
    """Rows about the last remedies, and about an ordered remedy that waits or was refused."""
    status = status_values.block(job, "status")
    for each in status_values.items(status.get("remediations"))[-REMEDIES_SHOWN:]:
        step, signal = status_values.count(each.get("step")), status_values.text(each.get("signal"))
        action = status_values.text(each.get("action")) or status_values.text(each.get("remedy"))
        text = action if step is None else f"step {step:,}: {action}"
        pieces = [text, f"against {signal}" if signal else "ordered", status_values.text(each.get("state"))]
        yield Row("remedy", tuple(filter(None, pieces)))
    order = status_values.block(status, "remedyOrder")
    if (state := status_values.text(order.get("state"))) in ("Waiting", "Refused"):
        pieces = [
            f"{state.lower()}: {status_values.text(order.get('order'))}",
            status_values.text(order.get("message")),
        ]
        yield Row("order", tuple(filter(None, pieces)), "yellow" if state == "Refused" else "")


def preflight(job: Json) -> Iterator[Row]:
    """Rows about the state of the preflight, and each check that did not pass."""
    found = status_values.block(job, "status", "preflight")
    if not found:
        return
    pieces = [status_values.text(found.get("state"))]
    if (episodes := status_values.count(found.get("episodes"))) is not None:
        wanted = status_values.count(found.get("wantedEpisodes"))
        pieces.append(f"{episodes:,}{'' if wanted is None else f' of {wanted:,}'} baseline episodes")
    pieces.append(status_values.text(found.get("summary")))
    yield Row("preflight", tuple(filter(None, pieces)) or (status_values.UNKNOWN,))
    waits = status_values.block(found, "waitsFor")
    failed = [each for each in status_values.items(found.get("checks")) if each.get("passed") is False]
    for label, each in (
        *(("waits for", each) for each in (waits,) if waits),
        *(("fail", each) for each in failed),
    ):
        yield Row(label, (_labelled(status_values.text(each.get("name")), each),), "yellow")
    for each in status_values.items(found.get("findings")):
        verdict = status_values.text(each.get("verdict"))
        if verdict in VERDICTS:
            value = status_values.text(each.get("value"))
            named = f"{status_values.text(each.get('check'))} {value}".strip()
            yield Row(verdict.lower(), (_labelled(named, each),), VERDICTS[verdict])


def _labelled(named: str, found: Json) -> str:
    message = status_values.text(found.get("message"))
    return f"{named}: {message}" if named and message else named or message or status_values.UNKNOWN
