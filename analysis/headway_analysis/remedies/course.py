"""What was changed in a job so far, computed from decisions, records of kept remedies, and step reports."""

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
    """The settings in force before the remedy."""
    state: RemedyState
    restored: int | None = None
    """The step whose weights the remedy restored; None if it restored none."""
    why: str = ""
    """The reason for the state; empty while the remedy is watched."""
    after: Measured | None = None
    """How well the job did when the watch ended; None before."""
    ended: int | None = None
    """The last step of the watch; None before its end."""

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
    """The remedies whose step was taken, by number of the decision."""
    pending: tuple[Decision, ...] = ()
    """Decisions whose steps are still to be taken, in the order of the steps."""
    numbered: int = 0
    """The highest number of a decision; 0 if there is none."""
    orders: frozenset[str] = frozenset()
    """Persons' orders that became decisions, including pending ones and those that the learner refused."""

    @property
    def watched(self) -> Entry | None:
        """The remedy whose watch is not over."""
        return next((entry for entry in self.entries if entry.state == "Watching"), None)

    @property
    def tried(self) -> frozenset[RemedyName]:
        """Remedies that a signal caused, including refused ones. Signals cause no remedy a second time."""
        return frozenset(entry.remedy for entry in self.entries if entry.decision.signal is not None)

    @property
    def made(self) -> int:
        """The number of changes that a signal caused, including those that were undone."""
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

    A decision has no effect if its step trained groups instead: the coordinator that decided had already been
    replaced. The decision stays without effect if the learner resumes before that step.

    Args:
        decisions: all decisions of the job, in any order.
        kept: number of a decision -> the record that its remedy is kept.
        reports: the valid step reports, oldest first.
        void: numbers of decisions whose steps trained groups instead, and are to be taken again.
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
