"""Decides whether a watched remedy is kept, from its signal, the reward and the held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headway_analysis.remedies.context import RemedyContext, is_over
from headway_analysis.remedies.course import Entry
from headway_analysis.remedies.measured import held_out, latest, up_to
from headway_analysis.signals.evidence import shift
from headway_api.remedies import WATCH
from headway_api.status import decimal

LONGEST_WATCH: Final = 50
"""Steps of a watch if the signal was not judged within `WATCH` steps, for lack of a validation or metric."""


@dataclass(frozen=True)
class Judgement:
    """The result of a watch."""

    stays: bool
    """Whether the remedy is kept."""
    raised: bool
    """Whether the signal is still raised."""
    why: str
    """The reason, with the numbers."""


def over(entry: Entry, context: RemedyContext) -> bool:
    """Whether a remedy was watched for long enough."""
    watched = context.step - entry.step
    return watched >= (WATCH if _is_fresh(entry, context) else LONGEST_WATCH)


def returned(entry: Entry, context: RemedyContext) -> bool:
    """Whether the signal that caused a remedy was cleared since and is raised again."""
    found = context.verdict(entry.decision.signal) if entry.decision.signal else None
    return found is not None and found.standing.state == "Raised" and found.standing.since > entry.step


def judge(entry: Entry, context: RemedyContext) -> Judgement:
    """The result of a remedy's watch. A remedy that a person ordered stays: only a person takes it back."""
    reward, reward_says = _reward(entry, context)
    rows, rows_say = _rows(entry, context)
    if entry.decision.signal is None:
        return Judgement(True, False, f"a person ordered it; {reward_says}; {rows_say}")
    cleared, signal_says = _signal(entry, context)
    why = f"{signal_says}; {reward_says}; {rows_say}"
    return Judgement(cleared is not False and reward and rows, cleared is False, why)


def _is_fresh(entry: Entry, context: RemedyContext) -> bool:
    """Whether the remedy's signal was judged after the remedy, at a step or at a validation."""
    found = context.verdict(entry.decision.signal) if entry.decision.signal else None
    return found is None or found.standing.read > entry.step


def _signal(entry: Entry, context: RemedyContext) -> tuple[bool | None, str]:
    """Whether the signal is cleared, and a text that says so. None: it is raised, but it was not judged
    since the remedy, or its last reading is no longer over the threshold."""
    assert entry.decision.signal is not None
    name, found = entry.decision.signal, context.verdict(entry.decision.signal)
    if found is None or found.standing.state != "Raised":
        return True, f"{name} is no longer raised"
    if not _is_fresh(entry, context):
        return None, f"{name} has not been judged since"
    reading = found.standing.reading
    observed = f" ({reading.observed})" if reading is not None else ""
    if not is_over(found):
        return None, f"{name} is about to clear{observed}"
    return False, f"{name} is still raised{observed}"


def _reward(entry: Entry, context: RemedyContext) -> tuple[bool, str]:
    """False if the reward is surely lower than before the remedy, else True; and a text with the numbers."""
    before = up_to(context.rewards, entry.step - 1)
    now = up_to(context.rewards, context.step, after=entry.step)
    moved = shift(before, now)
    if moved is None:
        return True, "too few steps tell how the reward moved"
    text = (
        f"the reward moved by {decimal(moved.value)} ({decimal(moved.low)} to {decimal(moved.high)}) from "
        f"the {len(before)} steps before"
    )
    return not moved.falls, text


def _rows(entry: Entry, context: RemedyContext) -> tuple[bool, str]:
    """False if held-out rows surely score lower than before the remedy, else True; and a text."""
    before = latest(context.validations, entry.step - 1)
    now = latest(context.validations, context.step, after=entry.step)
    if before is None or now is None:
        return True, "there are no validations both before and since"
    found = held_out(now, before)
    if found is None:
        return True, "too few held-out rows tell how they moved"
    text = (
        f"held-out rows moved by {decimal(found.value)} ({decimal(found.low)} to {decimal(found.high)}) from "
        f"step {before.step} to {now.step}"
    )
    return not found.falls, text
