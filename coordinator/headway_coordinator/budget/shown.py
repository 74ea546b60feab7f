"""A budget in status, conditions, metrics and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

from headway_api import status as st
from headway_api.conditions import Condition, ConditionType, Reason, condition
from headway_api.exits import JobError
from headway_api.prices import shown
from headway_api.spec.lifecycle import USD
from headway_coordinator.budget.account import Limit, LimitUse, Shortfall
from headway_coordinator.budget.gate import Budget
from headway_coordinator.metrics.prometheus import Sample

EXHAUSTED: Final = "BudgetExhausted"
TOO_SMALL: Final = "BudgetTooSmall"


def amount(limit: Limit, much: Decimal) -> str:
    """An amount of a limit, rounded up."""
    rounded = limit.rounded(much)
    return str(int(rounded)) if limit.classes else shown(rounded)


def status(budget: Budget) -> st.Budget | None:
    """The budget as status shows it; None if there is none."""
    if not budget.bounded:
        return None
    needed = {each.limit.name: each.needed for each in budget.shortfalls() if not each.limit.granted}
    requests = budget.grant_requests
    needed |= {name: request.needed for name, request in requests.items() if request.needed is not None}
    wished = {name: request.wished for name, request in requests.items()}
    return st.Budget(
        limits=[
            _limit(standing, needed.get(standing.limit.name), wished.get(standing.limit.name))
            for standing in budget.account.standings()
        ],
        unpriced=[name[:128] for name in budget.account.unpriced()[:16]],
        exhausted_time=budget.exhausted_at,
        closed=budget.closed or None,
    )


def _limit(standing: LimitUse, needed: Decimal | None, wished: Decimal | None) -> st.BudgetLimit:
    limit = standing.limit
    return st.BudgetLimit(
        name=limit.name,
        limit=amount(limit, limit.maximum),
        spent=amount(limit, standing.spent),
        reserved=amount(limit, standing.reserved),
        left=amount(limit, standing.left),
        needed=None if needed is None else amount(limit, needed),
        wished=None if wished is None else amount(limit, wished),
    )


def conditions(budget: Budget) -> list[Condition]:
    """Whether little is left, and whether the budget is exhausted. Empty if there is no budget."""
    if not budget.bounded:
        return []
    found = [] if budget.spec is None else [_low(budget)]
    if budget.exhausted_at is not None:
        text = words(budget.shortfalls())
        return [*found, condition(ConditionType.BUDGET_EXHAUSTED, True, Reason.BUDGET_EXHAUSTED, text)]
    text = _waits(budget) or "the next work fits every limit"
    return [*found, condition(ConditionType.BUDGET_EXHAUSTED, False, Reason.BUDGET_LEFT, text)]


def _waits(budget: Budget) -> str:
    """What a job waits for if it needs more of its namespace's budget; empty if it needs no more."""
    limits = (limit for limit in budget.account.limits if limit.granted)
    requests = budget.grant_requests
    needs = ((limit, request.needed) for limit in limits if (request := requests.get(limit.name)) is not None)
    amounts = [f"{amount(limit, needed)} of {limit.field}" for limit, needed in needs if needed is not None]
    return f"the job waits until the operator grants it {', and '.join(amounts)}" if amounts else ""


def _low(budget: Budget) -> Condition:
    """Whether little of a limit of the spec is left.

    Granted limits are left out, because they grow with the need.
    """
    own = [standing for standing in budget.account.standings() if not standing.limit.granted]
    text = "; ".join(f"less than a fifth of {each.limit.field} is left" for each in own if each.is_low)
    if text:
        return condition(ConditionType.BUDGET_LOW, True, Reason.BUDGET_LOW, text)
    text = "a fifth of every limit or more is left"
    return condition(ConditionType.BUDGET_LOW, False, Reason.BUDGET_LEFT, text)


def words(shortfalls: Sequence[Shortfall]) -> str:
    """What to change in a job whose budget is exhausted."""
    return "; ".join(map(_words, shortfalls)) or "nothing more fits spec.budget"


def _words(shortfall: Shortfall) -> str:
    limit = shortfall.limit
    maximum, needed = amount(limit, limit.maximum), amount(limit, shortfall.needed)
    if limit.granted:
        return f"{limit.field} gives the job {maximum}, and continuing needs {needed}; raise the RLBudget"
    return (
        f"{limit.field} is {maximum}, and continuing needs {needed}; raise it to that or more, or remove it"
    )


def exhausted(budget: Budget) -> JobError:
    """The error of a job whose budget is exhausted."""
    shortfalls = budget.shortfalls()
    field = shortfalls[0].limit.field if shortfalls else "spec.budget"
    return JobError(EXHAUSTED, words(shortfalls), field=field)


def too_small(shortfalls: Sequence[Shortfall], what: str) -> JobError:
    """The error of a job whose budget can never be enough. `what` names the work that does not fit."""
    one = shortfalls[0]
    least = amount(one.limit, one.needed)
    message = f"{what} may use up to {least}, and {one.limit.field} is {amount(one.limit, one.limit.maximum)}"
    return JobError(
        TOO_SMALL,
        f"{message}; write {least} or more, or lower what an episode may use",
        field=one.limit.field,
    )


def samples(budget: Budget) -> Iterator[Sample]:
    """The budget for Prometheus."""
    for standing in budget.account.standings():
        if standing.limit.granted:  # the operator shows the RLBudget
            continue
        unit = "usd" if standing.limit.name == USD else "tokens"
        label = {} if unit == "usd" else {"class": standing.limit.name.removeprefix("tokens.")}
        yield Sample(f"budget/limit_{unit}", float(standing.limit.maximum), label)
        yield Sample(f"budget/spent_{unit}", float(standing.spent), label)
        yield Sample(f"budget/reserved_{unit}", float(standing.reserved), label)
    if budget.bounded:
        yield Sample("budget/exhausted", float(budget.exhausted_at is not None))
