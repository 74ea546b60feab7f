"""Decides what to change before the next step. Pure: equal records give equal decisions.

    a signal is raised      the job takes the first remedy that its spec allows and that can apply now
    the remedy is watched   for 25 steps nothing else is changed
    the watch ends          the numbers decide whether the remedy is kept or taken back; if its signal is
                            still raised, the next remedy follows

After a collapse, no setting repairs the weights. So going back to an earlier step is the first remedy, if
there is a better step. Going back with the same settings may lead to the same collapse. So once that was
tried, every other remedy goes back too, and changes one setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway_analysis.remedies.catalogue import (
    Circumstances,
    RemedyNotApplicableError,
    changed,
    ordered,
    reverted,
)
from headway_analysis.remedies.context import RemedyContext
from headway_analysis.remedies.course import Entry
from headway_analysis.remedies.judgement import judge, over, returned
from headway_analysis.remedies.measured import measured, steps_back
from headway_analysis.remedies.orders import UNDO, InvalidOrderError, read
from headway_analysis.signals.watch import Verdict
from headway_api.decisions import Decision, Kept, RefusedOrder
from headway_api.in_force import Directive, InForce
from headway_api.remedies import WATCH, applied
from headway_api.spec.trust import RemedyName

MAX_BACK: Final = 16
"""The most steps that a directive names as steps to go back to."""


def decide(context: RemedyContext) -> Decision | Kept | None:
    """The next change without a person's order; None if nothing is to change. `Kept` needs no step, so the
    caller must ask again at once."""
    if context.course.pending:
        return None
    watched = context.course.watched
    if watched is None:
        return _next(context)
    again = watched.remedy == "RollBack" and returned(watched, context)
    if not again and not over(watched, context):
        return None
    if watched.remedy == "RollBack" and watched.decision.signal is not None:
        # The weights before the roll-back were worse, so it is never undone.
        raised = judge(watched, context).raised
        following = _next(context, because="going back alone did not last") if raised else None
        return following or _keep(watched, context)
    return _judged(watched, context)


def obey(order: str, context: RemedyContext) -> Decision | RefusedOrder:
    """The decision on a person's order. The caller asks only when a remedy could be applied."""
    try:
        name = read(order)
        _needs_a_later_step(context)
        return _undone_by_hand(order, context) if name == UNDO else _by_hand(order, name, context)
    except (InvalidOrderError, RemedyNotApplicableError) as why:
        return RefusedOrder(order=order, step=context.step, why=str(why))


def _next(context: RemedyContext, because: str = "") -> Decision | None:
    """The next remedy for the most severe raised signal that has one left; None if there is none."""
    collapse, course = context.spec.collapse, context.course
    left = context.steps - context.step
    if collapse.policy != "Remediate" or course.made >= collapse.max_remedies or left <= WATCH:
        return None
    better = steps_back(context) if context.raised else []
    for verdict in context.raised:
        for name in ordered(verdict.signal.name, collapse.remedies):
            if name not in course.tried and (found := _against(verdict, name, context, better)) is not None:
                return found.model_copy(update={"why": f"{found.why}; {because}"}) if because else found
    return None


def _against(
    verdict: Verdict, name: RemedyName, context: RemedyContext, better: Sequence[int]
) -> Decision | None:
    signal, reading = verdict.signal.name, verdict.standing.reading
    goes_back = name == "RollBack" or _tried_to_go_back(context)
    try:
        found = _decision(name, context, better, goes_back=goes_back, least_batches=WATCH)
    except RemedyNotApplicableError:
        return None
    observed = signal.value if reading is None else f"{signal.value}: {reading.observed}"
    return found.model_copy(update={"signal": signal, "why": observed})


def _tried_to_go_back(context: RemedyContext) -> bool:
    """Whether the spec allows going back, and a signal has caused it before. Persons' orders do not count."""
    allowed = "RollBack" in context.spec.collapse.remedies
    own = [entry for entry in context.course.entries if entry.decision.signal is not None]
    return allowed and any(entry.remedy == "RollBack" and entry.is_in_force for entry in own)


def _decision(
    name: RemedyName, context: RemedyContext, back: Sequence[int], *, goes_back: bool, least_batches: int
) -> Decision:
    """A remedy as the next step.

    Args:
        back: steps to go back to, the best one first.
        goes_back: whether the remedy goes back to one of these steps, if one has an adapter that fits.
        least_batches: batches for which the groups that are left in the data must suffice.

    Raises:
        RemedyNotApplicableError: the remedy does not apply.
    """
    number = context.course.numbered + 1
    found = Circumstances(context.spec, context.now, back, context.groups_left, least_batches)
    in_force = changed(name, found, context.in_force, number)
    restore = _fitting(back, in_force, context) if goes_back else []
    if name == "RollBack" and not restore:
        raise RemedyNotApplicableError("no step to go back to has an adapter that fits")
    return Decision(
        number=number,
        step=context.step + 1,
        directive=Directive(remedy=name, restore=restore),
        in_force=in_force,
        why="",
        before=measured(context),
    )


def _fitting(back: Sequence[int], in_force: InForce, context: RemedyContext) -> list[int]:
    """Steps whose adapter is not wider than the adapter of `in_force`: adapters are never made narrower."""
    lora = applied(context.spec, in_force).model.effective_lora
    widest = 0 if lora is None else lora.rank
    return [step for step in back if context.rank(step) <= widest][:MAX_BACK]


def _judged(entry: Entry, context: RemedyContext) -> Decision | Kept:
    found = judge(entry, context)
    if found.stays:
        return _keep(entry, context)
    try:
        return _taken_back(entry, context, found.why)
    except RemedyNotApplicableError as never:
        kept = _keep(entry, context)
        return kept.model_copy(update={"why": f"{kept.why}; it could not be taken back: {never}"})


def _keep(entry: Entry, context: RemedyContext) -> Kept:
    return Kept(
        number=entry.number,
        step=context.step,
        why=judge(entry, context).why,
        after=measured(context, after=entry.step),
    )


def _taken_back(entry: Entry, context: RemedyContext, why: str) -> Decision:
    """A directive that restores the settings from before a remedy.

    Raises:
        RemedyNotApplicableError: the adapter would become narrower, and no earlier step can be gone back to;
            or no step is left.
    """
    _needs_a_later_step(context)
    number = context.course.numbered + 1
    in_force = reverted(context.in_force, entry.was, entry.decision.in_force, number)
    narrows = context.rank(context.step) > context.rank(entry.step - 1)
    before = _from_before(entry, context) if narrows else []
    restore = _fitting(before, in_force, context)
    if narrows and not restore:
        raise RemedyNotApplicableError("there is no step from before the wider adapter to go back to")
    return Decision(
        number=number,
        step=context.step + 1,
        directive=Directive(remedy=entry.remedy, undo=True, restore=restore),
        in_force=in_force,
        undoes=entry.number,
        why=why,
        before=measured(context, after=entry.step),
    )


def _needs_a_later_step(context: RemedyContext) -> None:
    """Refuse a change if no step would be trained with it.

    Raises:
        RemedyNotApplicableError: the next step is the last one.
    """
    if context.step + 1 >= context.steps:
        raise RemedyNotApplicableError("no step is left that would be trained with it")


def _from_before(entry: Entry, context: RemedyContext) -> list[int]:
    """Steps before a remedy whose checkpoints may still exist: validated steps first, then the latest."""
    validated = [each.step for each in context.validations if each.step < entry.step]
    return [*dict.fromkeys([*validated, *range(entry.step - 1, -1, -1)])]


def _by_hand(order: str, name: RemedyName, context: RemedyContext) -> Decision:
    steps = [each.step for each in context.validations]
    if name == "RollBack" and not steps:
        raise RemedyNotApplicableError("no complete validation shows which step to go back to")
    if name == "RollBack" and steps[0] == context.step:
        raise RemedyNotApplicableError("the newest step is the best validated one")
    others = [step for step in steps if step != context.step]
    found = _decision(name, context, others, goes_back=name == "RollBack", least_batches=1)
    return found.model_copy(update={"order": order, "why": "a person ordered it"})


def _undone_by_hand(order: str, context: RemedyContext) -> Decision:
    """Take back the newest change of a setting that is in force.

    Raises:
        RemedyNotApplicableError: no change of a setting is in force.
    """
    standing = [e for e in context.course.entries if e.is_in_force and e.decision.in_force.set_apart(e.was)]
    if not standing:
        raise RemedyNotApplicableError("no change of a setting is in force to take back")
    found = _taken_back(standing[-1], context, "a person took it back")
    return found.model_copy(update={"order": order})
