"""What was changed in a job so far: a fold over decisions, what was kept of them, and step reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headway_api.decisions import Decision, Kept, Measured
from headway_api.in_force import InForce
from headway_api.records import StepReport
from headway_api.spec.trust import RemedyName
from headway_api.status import RemedyState


@dataclass(frozen=True)
class Entry:
    """A remedy and its result."""

    decision: Decision
    was: InForce
    """What was in force before it."""
    state: RemedyState
    restored: int | None = None
    """The step whose weights it went back to."""
    why: str = ""
    """The reason of the state, if there is one to give."""
    after: Measured | None = None
    """How the job did when the watch ended."""
    ended: int | None = None
    """The last step of the watch."""

    @property
    def number(self) -> int:
        return self.decision.number

    @property
    def step(self) -> int:
        """The step that applied the remedy."""
        return self.decision.step

    @property
    def remedy(self) -> RemedyName:
        return self.decision.directive.remedy

    @property
    def is_in_force(self) -> bool:
        """Whether the remedy's change is in force."""
        return self.state not in ("Undone", "Refused")


@dataclass(frozen=True)
class Course:
    """All remedies of a job."""

    entries: tuple[Entry, ...] = ()
    """Those whose step was taken, in their order."""
    pending: tuple[Decision, ...] = ()
    """Decisions whose steps are still to be taken, by step."""
    numbered: int = 0
    """The highest number that was given."""
    orders: frozenset[str] = frozenset()
    """Persons' orders that became decisions, including pending ones and those that the learner refused."""

    @property
    def watched(self) -> Entry | None:
        """The remedy whose watch is not over."""
        return next((entry for entry in self.entries if entry.state == "Watching"), None)

    @property
    def tried(self) -> frozenset[RemedyName]:
        """Remedies that were tried by themselves, the refused ones included: each is tried once."""
        return frozenset(entry.remedy for entry in self.entries if entry.decision.signal is not None)

    @property
    def made(self) -> int:
        """Changes that were made by themselves, undone ones included."""
        made = [entry for entry in self.entries if entry.state != "Refused"]
        return sum(entry.decision.signal is not None for entry in made)

    def due(self, step: int) -> Decision | None:
        """The pending decision for a step."""
        return next((decision for decision in self.pending if decision.step == step), None)


def course(
    decisions: Collection[Decision],
    kept: Mapping[int, Kept],
    reports: Sequence[StepReport],
    void: Collection[int] = (),
) -> Course:
    """The course that follows from these records.

    A decision whose step was taken with groups has no effect: its coordinator had already been replaced. It
    stays without effect if the learner resumes before that step.

    Args:
        kept: by number of the decision.
        reports: the valid ones, oldest first.
        void: numbers of decisions whose steps were taken with groups, and are to be taken again.
    """
    taken = {report.step: report for report in reports}
    newest = max(taken, default=-1)
    entries: dict[int, Entry] = {}
    ahead = (each for each in decisions if each.step > newest and each.number not in void)
    pending = sorted(ahead, key=lambda each: each.step)
    decided = [*pending]
    for decision in sorted(decisions, key=lambda each: each.number):
        report = taken.get(decision.step)
        if report is None or report.directive != decision.directive:
            continue
        decided.append(decision)
        if decision.undoes is not None:
            entries |= _taken_back(entries.get(decision.undoes), decision, report)
            continue
        if report.refused is None:
            entries = {number: _replaced(entry, decision) for number, entry in entries.items()}
        before = taken.get(decision.step - 1)
        entries[decision.number] = _made(
            decision, report, before.in_force if before else InForce(), kept.get(decision.number)
        )
    return Course(
        entries=tuple(entries.values()),
        pending=tuple(pending),
        numbered=max((decision.number for decision in decisions), default=0),
        orders=frozenset(decision.order for decision in decided if decision.order is not None),
    )


def _made(decision: Decision, report: StepReport, was: InForce, kept: Kept | None) -> Entry:
    entry = Entry(decision, was, "Watching", restored=report.restored)
    if report.refused is not None:
        why = f"{report.refused.reason}: {report.refused.message}"
        return replace(entry, state="Refused", why=why)
    if kept is not None:
        return replace(entry, state="Kept", why=kept.why, after=kept.after, ended=kept.step)
    return entry


def _replaced(entry: Entry, by: Decision) -> Entry:
    if entry.state != "Watching":
        return entry
    return replace(entry, state="Replaced", why=by.why, after=by.before, ended=by.step - 1)


def _taken_back(entry: Entry | None, by: Decision, report: StepReport) -> dict[int, Entry]:
    if entry is None:
        return {}
    if report.refused is None:
        return {entry.number: replace(entry, state="Undone", why=by.why, after=by.before, ended=by.step - 1)}
    why = f"{by.why}; it could not be taken back: {report.refused.message}"
    return {entry.number: replace(entry, state="Kept", why=why, after=by.before, ended=by.step - 1)}
