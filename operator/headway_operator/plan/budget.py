"""Whether the budget of a job is exhausted, and whether it has been raised since. Pure.

The coordinator says in `status.budget` that nothing runs and nothing more fits, with the least limits that
would do. The job is then to have no pods, until its spec says those limits or more, and the RLBudget of its
namespace has granted them.
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


def standing(job: Job) -> Budget | None:
    """The exhausted budget that keeps a job from having pods."""
    found, spec = job.status.budget, job.spec.budget
    fails = spec is not None and spec.on_exhausted == "Fail"
    if found is None or found.exhausted_time is None or fails:
        return None
    return found if lacking(found, job) else None


def lacking(found: Budget, job: Job) -> list[BudgetLimit]:
    """The limits that are still lower than what the job needs to go on."""
    return [limit for limit in found.limits if _is_low(limit, _now(job, limit.name))]


def words(job: Job, found: Budget) -> str:
    """What is said of a job that stands still by its budget: what to write."""
    told = "; ".join(_lacks(limit, _now(job, limit.name)) for limit in lacking(found, job))
    return f"the budget is exhausted: {told}"


def _lacks(limit: BudgetLimit, now: Decimal | None) -> str:
    if limit.name.startswith(NAMESPACE):
        name = limit.name.removeprefix(NAMESPACE)
        return (
            f"the namespace's RLBudget lets the job use {now} of spec.{name}, and what follows needs "
            f"{limit.needed}; raise spec.{name} of the RLBudget, and the job goes on"
        )
    return (
        f"spec.budget.{limit.name} is {now}, and what follows needs {limit.needed}; raise it to that at "
        "least, or remove it, and the job goes on"
    )


def _now(job: Job, name: str) -> Decimal | None:
    """A limit by the name that status has for it, as it is now; None: there is none any more."""
    if name.startswith(NAMESPACE):
        return grants.granted(job.status.grant, name.removeprefix(NAMESPACE))
    return limits_of(job.spec.budget).get(name)


def _is_low(limit: BudgetLimit, now: Decimal | None) -> bool:
    if limit.needed is None or now is None:
        return False
    try:
        return now < Decimal(limit.needed)
    except InvalidOperation:  # not what a coordinator of this version writes
        return False
