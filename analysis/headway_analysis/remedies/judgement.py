"""Decides whether a watched remedy is kept, by its signal, the reward and held-out rows."""

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
"""Steps of a watch whose signal was not judged in `WATCH` steps: no validation or figure came."""


@dataclass(frozen=True)
class Judgement:
    """The result of a watch."""

    stays: bool
    raised: bool
    """Whether the signal is still raised."""
    why: str
    """With the figures."""


def over(entry: Entry, situation: RemedyContext) -> bool:
    """Whether a remedy was watched for long enough."""
    watched = situation.step - entry.step
    return watched >= (WATCH if _is_fresh(entry, situation) else LONGEST_WATCH)


def returned(entry: Entry, situation: RemedyContext) -> bool:
    """Whether the signal of a remedy was cleared and is raised again."""
    found = situation.verdict(entry.decision.signal) if entry.decision.signal else None
    return found is not None and found.standing.state == "Raised" and found.standing.since > entry.step


def judge(entry: Entry, situation: RemedyContext) -> Judgement:
    """The result of a remedy's watch. One that a person ordered stays: a person may take it back."""
    reward, reward_says = _reward(entry, situation)
    rows, rows_say = _rows(entry, situation)
    if entry.decision.signal is None:
        return Judgement(True, False, f"a person ordered it; {reward_says}; {rows_say}")
    sign, sign_says = _sign(entry, situation)
    why = f"{sign_says}; {reward_says}; {rows_say}"
    return Judgement(sign is not False and reward and rows, sign is False, why)


def _is_fresh(entry: Entry, situation: RemedyContext) -> bool:
    """Whether the signal of a remedy was judged since, at a step or at a validation."""
    found = situation.verdict(entry.decision.signal) if entry.decision.signal else None
    return found is None or found.standing.read > entry.step


def _sign(entry: Entry, situation: RemedyContext) -> tuple[bool | None, str]:
    """Whether the signal is cleared; None if it is still raised, and nothing since shows that it should
    be."""
    assert entry.decision.signal is not None
    name, found = entry.decision.signal, situation.verdict(entry.decision.signal)
    if found is None or found.standing.state != "Raised":
        return True, f"{name} is not raised any more"
    if not _is_fresh(entry, situation):
        return None, f"{name} was not judged since"
    reading = found.standing.reading
    saw = f" ({reading.saw})" if reading is not None else ""
    if not is_over(found):
        return None, f"{name} is about to clear{saw}"
    return False, f"{name} is raised still{saw}"


def _reward(entry: Entry, situation: RemedyContext) -> tuple[bool, str]:
    """Whether the reward is not surely below what it was when the remedy was taken."""
    before = up_to(situation.rewards, entry.step - 1)
    now = up_to(situation.rewards, situation.step, after=entry.step)
    moved = shift(before, now)
    if moved is None:
        return True, "too few steps tell how the reward moved"
    said = (
        f"the reward moved by {decimal(moved.value)} ({decimal(moved.low)} to {decimal(moved.high)}) from "
        f"the {len(before)} steps before"
    )
    return not moved.falls, said


def _rows(entry: Entry, situation: RemedyContext) -> tuple[bool, str]:
    """Whether held-out rows do not surely score below what they did when the remedy was taken."""
    before = latest(situation.validations, entry.step - 1)
    now = latest(situation.validations, situation.step, after=entry.step)
    if before is None or now is None:
        return True, "no validation was made both before and since"
    found = held_out(now, before)
    if found is None:
        return True, "too few held-out rows tell how they moved"
    said = (
        f"held-out rows moved by {decimal(found.value)} ({decimal(found.low)} to {decimal(found.high)}) from "
        f"step {before.step} to {now.step}"
    )
    return not found.falls, said
