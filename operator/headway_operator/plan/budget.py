"""Decides whether the budget of a job is exhausted, and whether it has been raised since. Pure.

Once nothing runs and the budget has no room for more work, the coordinator writes that to `status.budget`. It
also writes the lowest limits with which the job could continue. The job then has no pods until its spec has
those limits or more, and the RLBudget of its namespace has granted them.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from headway_api.grants import NAMESPACE
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.lifecycle import limits_of
from headway_api.spec.training import RLTrainingJob
from headway_api.status import Budget, BudgetLimit
from headway_operator.plan import grants

Job = RLTrainingJob | RLEvalJob


def exhausted_budget(job: Job) -> Budget | None:
    """The exhausted budget because of which a job has no pods; None if there is none."""
    found, spec = job.status.budget, job.spec.budget
    fails = spec is not None and spec.on_exhausted == "Fail"
    if found is None or found.exhausted_time is None or fails:
        return None
    return found if lacking(found, job) else None


def lacking(found: Budget, job: Job) -> list[BudgetLimit]:
    """The limits that are still lower than the job needs to continue."""
    return [limit for limit in found.limits if _is_low(limit, _now(job, limit.name))]


def words(job: Job, found: Budget) -> str:
    """The message about a job that its budget has stopped. It says how to make the job continue."""
    exhausted = "; ".join(_lacks(limit, _now(job, limit.name)) for limit in lacking(found, job))
    return f"the budget is exhausted: {exhausted}"


def _lacks(limit: BudgetLimit, now: Decimal | None) -> str:
    if limit.name.startswith(NAMESPACE):
        name = limit.name.removeprefix(NAMESPACE)
        return (
            f"the namespace's RLBudget lets the job use {now} of spec.{name}, and continuing needs "
            f"{limit.needed}; raise spec.{name} of the RLBudget, and the job continues"
        )
    return (
        f"spec.budget.{limit.name} is {now}, and continuing needs {limit.needed}; raise it to that or "
        "more, or remove it, and the job continues"
    )


def _now(job: Job, name: str) -> Decimal | None:
    """The current value of a limit, by its name in status; None: the limit no longer exists."""
    if name.startswith(NAMESPACE):
        return grants.granted(job.status.grant, name.removeprefix(NAMESPACE))
    return limits_of(job.spec.budget).get(name)


def _is_low(limit: BudgetLimit, now: Decimal | None) -> bool:
    if limit.needed is None or now is None:
        return False
    try:
        return now < Decimal(limit.needed)
    except InvalidOperation:  # written by a coordinator of another version
        return False
