"""What to do before the next step is made. Pure: equal records give equal decisions.

    a signal is raised  the first remedy that applies is taken, of those that the job may take
    it is watched       for 25 steps nothing else is changed
    then                it is kept or taken back, by the figures; if its signal is still raised, the next

A collapse leaves weights that no setting mends. So going back is the first remedy wherever there is something
to go back to. Going back with the same settings may lead to the same end: once that was tried, every
other remedy goes back too, and changes one setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway_analysis.remedies.catalogue import Circumstances, NotNow, changed, ordered, reverted
from headway_analysis.remedies.context import RemedyContext
from headway_analysis.remedies.course import Entry
from headway_analysis.remedies.judgement import judge, over, returned
from headway_analysis.remedies.measured import measured, steps_back
from headway_analysis.remedies.orders import UNDO, NotAnOrder, read
from headway_analysis.signals.watch import Verdict
from headway_api.decisions import Decision, Kept, RefusedOrder
from headway_api.in_force import Directive, InForce
from headway_api.remedies import WATCH, applied
from headway_api.spec.trust import RemedyName

MOST_BACK: Final = 16
"""Steps to go back to that a directive names."""


def decide(situation: RemedyContext) -> Decision | Kept | None:
    """The next step without a person's order, if any. A remedy that is kept has no step: ask again at
    once."""
    if situation.course.pending:
        return None
    watched = situation.course.watched
    if watched is None:
        return _next(situation)
    again = watched.remedy == "RollBack" and returned(watched, situation)
    if not again and not over(watched, situation):
        return None
    if watched.remedy == "RollBack" and watched.decision.signal is not None:
        # What it left is worse: it is never taken back.
        raised = judge(watched, situation).raised
        following = _next(situation, because="going back alone did not last") if raised else None
        return following or _keep(watched, situation)
    return _judged(watched, situation)


def obey(order: str, situation: RemedyContext) -> Decision | RefusedOrder:
    """The decision on a person's order, at a moment when a remedy could be taken."""
    try:
        name = read(order)
        _needs_a_later_step(situation)
        return _undone_by_hand(order, situation) if name == UNDO else _by_hand(order, name, situation)
    except (NotAnOrder, NotNow) as why:
        return RefusedOrder(order=order, step=situation.step, why=str(why))


def _next(situation: RemedyContext, because: str = "") -> Decision | None:
    """The next remedy for the most severe signal that has one."""
    collapse, course = situation.spec.collapse, situation.course
    left = situation.steps - situation.step
    if collapse.policy != "Remediate" or course.made >= collapse.max_remedies or left <= WATCH:
        return None
    better = steps_back(situation) if situation.raised else []
    for verdict in situation.raised:
        for name in ordered(verdict.signal.name, collapse.remedies):
            if name not in course.tried and (found := _against(verdict, name, situation, better)) is not None:
                return found.model_copy(update={"why": f"{found.why}; {because}"}) if because else found
    return None


def _against(
    verdict: Verdict, name: RemedyName, situation: RemedyContext, better: Sequence[int]
) -> Decision | None:
    signal, reading = verdict.signal.name, verdict.standing.reading
    goes_back = name == "RollBack" or _tried_to_go_back(situation)
    try:
        found = _decision(name, situation, better, goes_back=goes_back, least_batches=WATCH)
    except NotNow:
        return None
    saw = signal.value if reading is None else f"{signal.value}: {reading.saw}"
    return found.model_copy(update={"signal": signal, "why": saw})


def _tried_to_go_back(situation: RemedyContext) -> bool:
    """Whether going back is allowed, and the job has tried it by itself: an order by hand does not count."""
    allowed = "RollBack" in situation.spec.collapse.remedies
    own = [entry for entry in situation.course.entries if entry.decision.signal is not None]
    return allowed and any(entry.remedy == "RollBack" and entry.stands for entry in own)


def _decision(
    name: RemedyName, situation: RemedyContext, back: Sequence[int], *, goes_back: bool, least_batches: int
) -> Decision:
    """A remedy as the next step.

    Args:
        back: steps to go back to, the one most wanted first.
        goes_back: whether the remedy goes back to one of them, if it can.

    Raises:
        NotNow: it does not apply.
    """
    number = situation.course.numbered + 1
    found = Circumstances(situation.spec, situation.now, back, situation.groups_left, least_batches)
    in_force = changed(name, found, situation.in_force, number)
    restore = _fitting(back, in_force, situation) if goes_back else []
    if name == "RollBack" and not restore:
        raise NotNow("no step to go back to has an adapter that fits")
    return Decision(
        number=number,
        step=situation.step + 1,
        directive=Directive(remedy=name, restore=restore),
        in_force=in_force,
        why="",
        before=measured(situation),
    )


def _fitting(back: Sequence[int], in_force: InForce, situation: RemedyContext) -> list[int]:
    """Steps whose adapter is no wider than the one to be in force: an adapter is never made narrower."""
    lora = applied(situation.spec, in_force).model.effective_lora
    widest = 0 if lora is None else lora.rank
    return [step for step in back if situation.rank(step) <= widest][:MOST_BACK]


def _judged(entry: Entry, situation: RemedyContext) -> Decision | Kept:
    found = judge(entry, situation)
    if found.stays:
        return _keep(entry, situation)
    try:
        return _taken_back(entry, situation, found.why)
    except NotNow as never:
        kept = _keep(entry, situation)
        return kept.model_copy(update={"why": f"{kept.why}; it could not be taken back: {never}"})


def _keep(entry: Entry, situation: RemedyContext) -> Kept:
    return Kept(
        number=entry.number,
        step=situation.step,
        why=judge(entry, situation).why,
        after=measured(situation, after=entry.step),
    )


def _taken_back(entry: Entry, situation: RemedyContext, why: str) -> Decision:
    """A directive that brings back what was in force before a remedy.

    Raises:
        NotNow: it narrows an adapter, and there is no step from before to go back to; or no step is left.
    """
    _needs_a_later_step(situation)
    number = situation.course.numbered + 1
    in_force = reverted(situation.in_force, entry.was, entry.decision.in_force, number)
    narrows = situation.rank(situation.step) > situation.rank(entry.step - 1)
    before = _from_before(entry, situation) if narrows else []
    restore = _fitting(before, in_force, situation)
    if narrows and not restore:
        raise NotNow("no step from before the adapter was made wider can be gone back to")
    return Decision(
        number=number,
        step=situation.step + 1,
        directive=Directive(remedy=entry.remedy, undo=True, restore=restore),
        in_force=in_force,
        undoes=entry.number,
        why=why,
        before=measured(situation, after=entry.step),
    )


def _needs_a_later_step(situation: RemedyContext) -> None:
    """Refuse a change that nothing would be trained under.

    Raises:
        NotNow: the next step is the last one.
    """
    if situation.step + 1 >= situation.steps:
        raise NotNow("no step is left that would be trained with it")


def _from_before(entry: Entry, situation: RemedyContext) -> list[int]:
    """Steps from before a remedy whose checkpoints may be kept: validated ones, and the last ones."""
    validated = [each.step for each in situation.validations if each.step < entry.step]
    return [*dict.fromkeys([*validated, *range(entry.step - 1, -1, -1)])]


def _by_hand(order: str, name: RemedyName, situation: RemedyContext) -> Decision:
    steps = [each.step for each in situation.validations]
    if name == "RollBack" and not steps:
        raise NotNow("no validation is complete that would tell where to go back to")
    if name == "RollBack" and steps[0] == situation.step:
        raise NotNow("the newest step is the best validated one")
    others = [step for step in steps if step != situation.step]
    found = _decision(name, situation, others, goes_back=name == "RollBack", least_batches=1)
    return found.model_copy(update={"order": order, "why": "a person ordered it"})


def _undone_by_hand(order: str, situation: RemedyContext) -> Decision:
    """Take back the newest change of a setting that is in force.

    Raises:
        NotNow: there is none.
    """
    standing = [e for e in situation.course.entries if e.stands and e.decision.in_force.set_apart(e.was)]
    if not standing:
        raise NotNow("no change of a setting is in force that could be taken back")
    found = _taken_back(standing[-1], situation, "a person took it back")
    return found.model_copy(update={"order": order})
