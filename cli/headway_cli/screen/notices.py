"""What a person should look at: signals, conditions, remedies, preflight findings. Rows, pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headway_api.document import Json
from headway_cli import reading
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
"""Status of a condition -> the types that hold a job, or mean that something is wrong, at that status.
GatePassed is not among them: the gate has a row of its own.
"""
UNDER_WAY: Final = ("Running", "Sampling", "Starting")
"""Reasons of a condition that is not yet True."""
OF_PODS: Final = ("LearnerReady", "RolloutReady", "SandboxesReady", "WeightsInSync")
"""Conditions that mean nothing for a job whose pods must go."""
GONE: Final = ("Complete", "Failed", "Suspending", "Suspended")
"""States of such a job."""
REMEDIES_SHOWN: Final = 3
GRAVE: Final = {"Raised": "red", "Suspect": "yellow"}
VERDICTS: Final = {"Fail": "red", "Warn": "yellow", "Unknown": ""}


def signals(job: Json) -> Iterator[Row]:
    """Raised and suspected signals, each with what was seen and the first thing to change."""
    for each in reading.items(reading.block(job, "status").get("signals")):
        state = reading.text(each.get("state"))
        if state in GRAVE:
            since, value = reading.count(each.get("since")), reading.text(each.get("value"))
            said = reading.text(each.get("name"))
            said += "" if since is None else f" since step {since:,}"
            limit = reading.text(each.get("threshold"))
            number = f"{value or reading.UNKNOWN} against a threshold of {limit}" if limit else value
            pieces = [said, number, reading.text(each.get("message"))]
            yield Row(state.lower(), tuple(filter(None, pieces)), GRAVE[state])


def holds(job: Json) -> Iterator[Row]:
    """Why the job is held or has trouble: a pause, no progress, and conditions."""
    status = reading.block(job, "status")
    state = reading.text(status.get("state"))
    if is_paused(status):
        pause = reading.block(status, "pause")
        pieces = [reading.text(pause.get("message")) or reading.text(pause.get("signal"))]
        if resume := reading.text(pause.get("resume")):
            pieces.append(f"to go on: {resume}")
        yield Row("paused", tuple(filter(None, pieces)) or ("see status.pause",), "yellow")
    if stalled := reading.text(reading.block(status, "progress").get("stalled")):
        yield Row("stalled", (stalled,), "yellow")
    yield from _conditions(status, state, {row.pieces[0].partition(" ")[0] for row in signals(job)})


def _conditions(status: Json, state: str, signals: set[str]) -> Iterator[Row]:
    """The conditions that hold the job; of several with the same text, the first. Signals have rows of their
    own."""
    told: set[tuple[str, str]] = set()
    for each in reading.items(status.get("conditions")):
        kind, found = reading.text(each.get("type")), reading.text(each.get("status"))
        reason, message = reading.text(each.get("reason")), reading.text(each.get("message"))
        holds = kind in BAD.get(found, ()) and not (kind in OF_PODS and state in GONE)
        holds = holds and reason not in UNDER_WAY
        if not holds or reason in signals or (reason, message) in told:
            continue
        told.add((reason, message))
        head = f"{kind} is {found}" + (f" ({reason})" if reason else "")
        yield Row("condition", (f"{head}: {message}" if message else head,), "yellow")


def is_paused(status: Json) -> bool:
    """Whether training was paused at a collapse signal, and nobody has ended the pause yet."""
    time = reading.block(status, "pause").get("time")
    return bool(reading.block(status, "pause")) and time != status.get("resumedPause")


def remedies(job: Json) -> Iterator[Row]:
    """The last changes made to the running job, and an order that is not carried out yet."""
    status = reading.block(job, "status")
    for each in reading.items(status.get("remediations"))[-REMEDIES_SHOWN:]:
        step, signal = reading.count(each.get("step")), reading.text(each.get("signal"))
        action = reading.text(each.get("action")) or reading.text(each.get("remedy"))
        said = action if step is None else f"step {step:,}: {action}"
        pieces = [said, f"against {signal}" if signal else "ordered", reading.text(each.get("state"))]
        yield Row("remedy", tuple(filter(None, pieces)))
    order = reading.block(status, "remedyOrder")
    if (state := reading.text(order.get("state"))) in ("Waiting", "Refused"):
        pieces = [f"{state.lower()}: {reading.text(order.get('order'))}", reading.text(order.get("message"))]
        yield Row("order", tuple(filter(None, pieces)), "yellow" if state == "Refused" else "")


def preflight(job: Json) -> Iterator[Row]:
    """The state of the checks, and each check that did not pass."""
    found = reading.block(job, "status", "preflight")
    if not found:
        return
    pieces = [reading.text(found.get("state"))]
    if (episodes := reading.count(found.get("episodes"))) is not None:
        wanted = reading.count(found.get("wantedEpisodes"))
        pieces.append(f"{episodes:,}{'' if wanted is None else f' of {wanted:,}'} baseline episodes")
    pieces.append(reading.text(found.get("summary")))
    yield Row("preflight", tuple(filter(None, pieces)) or (reading.UNKNOWN,))
    waits = reading.block(found, "waitsFor")
    failed = [each for each in reading.items(found.get("checks")) if each.get("passed") is False]
    for label, each in (
        *(("waits for", each) for each in (waits,) if waits),
        *(("fail", each) for each in failed),
    ):
        yield Row(label, (_told(reading.text(each.get("name")), each),), "yellow")
    for each in reading.items(found.get("findings")):
        verdict = reading.text(each.get("verdict"))
        if verdict in VERDICTS:
            value = reading.text(each.get("value"))
            named = f"{reading.text(each.get('check'))} {value}".strip()
            yield Row(verdict.lower(), (_told(named, each),), VERDICTS[verdict])


def _told(named: str, found: Json) -> str:
    message = reading.text(found.get("message"))
    return f"{named}: {message}" if named and message else named or message or reading.UNKNOWN
