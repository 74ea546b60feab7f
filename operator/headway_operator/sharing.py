"""Shares a namespace's budget among its jobs. The queue lets no two calls for a budget overlap.

The shares are written to the status of the RLBudget first. Each job's reconcile copies the job's share from
there. The write names the version that was read, so two operators that both believe they lead cannot share
the same money twice.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Final, Literal

from pydantic import ValidationError

from headway_api import logs, names
from headway_api.document import Json
from headway_api.grants import Grant, RLBudgetStatus
from headway_api.spec.budget import RLBudget
from headway_api.spec.lifecycle import limits_of
from headway_operator.cache import Cache, Ref, particulars, ref_of
from headway_operator.kube import Api, ApiError
from headway_operator.plan import grants
from headway_operator.plan.reading import manager_of

SPENT_SECONDS: Final = 30.0
"""If only the jobs' usage has changed, a budget's status is written at most once in this many seconds."""
log = logging.getLogger(__name__)


def budget_of(namespace: str) -> Ref:
    """The reference of a namespace's budget."""
    return names.BUDGET_KIND, namespace, names.BUDGET_NAME


def read(raw: Json | None, manager: str) -> RLBudget | Literal["unread"] | None:
    """A stored budget; "unread" if it is invalid; None if there is none, or another operator manages it."""
    if raw is None or manager_of(raw) != manager or raw["metadata"].get("deletionTimestamp"):
        return None
    try:
        return RLBudget.model_validate(raw)
    except ValidationError as error:  # the custom resource definition of another version accepted it
        logs.event(log, "budget-unread", logging.ERROR, **particulars(ref_of(raw)), error=str(error))
        return "unread"


class BudgetAllocator:
    """Shares the budgets of namespaces among their jobs."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        manager: str,
        latest: Callable[[Ref], Json | None],
        jobs: Callable[[str], Iterable[Json]],
    ) -> None:
        """
        Args:
            manager: the manager of these budgets.
            latest: returns an object at least as new as its last event reported.
            jobs: returns the identities of a namespace's jobs.
        """
        self._api = api
        self._cache = cache
        self._manager = manager
        self._latest = latest
        self._jobs = jobs
        self._written: dict[Ref, float] = {}
        """When each budget's status was last written, on the monotonic clock."""

    def share(self, key: Ref) -> tuple[list[Ref], float | None]:
        """Share the budget once, and write its status.

        Returns the jobs whose status does not have their grant yet, and the seconds until the next round if
        nothing happens before.

        Raises:
            ApiError: the API server refused something; 409 if the budget was changed meanwhile.
        """
        raw = self._latest(key)
        budget = read(raw, self._manager)
        if budget == "unread":
            return [], None
        found = [self._read(identity) for identity in self._jobs(key[1])]
        jobs = [job for job in found if job is not None and manager_of(job) == self._manager]
        again = None
        if raw is not None and budget is not None:
            budget, again = self._report(raw, budget, jobs)
        return [ref_of(job) for job in jobs if _lags(job, budget)], again

    def _read(self, identity: Json) -> Json | None:
        """A job. An unreadable job has an empty spec and status, so it keeps its grant."""
        try:
            return self._latest(ref_of(identity))
        except ApiError as error:
            if error.status:
                raise
            return identity | {"spec": {}, "status": {}}

    def _report(self, raw: Json, budget: RLBudget, jobs: list[Json]) -> tuple[RLBudget, float | None]:
        claims = [grants.claim(job) for job in jobs]
        shared = grants.share(limits_of(budget.spec), budget.status, claims)
        new_status = grants.status(budget, shared)
        key = ref_of(raw)
        if new_status == budget.status:
            return budget, None
        wait = self._written.get(key, -math.inf) + SPENT_SECONDS - time.monotonic()
        if wait > 0 and _but_spent(new_status) == _but_spent(budget.status):
            return budget, wait
        self._written[key] = time.monotonic()
        metadata = {key: raw["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
        document = {
            "apiVersion": names.API_VERSION,
            "kind": names.BUDGET_KIND,
            "metadata": metadata,
            "status": new_status.as_object(),
        }
        answer = self._api.apply(document, subresource="/status")
        self._cache.put(answer)
        if new_status.jobs != budget.status.jobs:
            logs.event(
                log,
                "granted",
                logging.INFO,
                namespace=raw["metadata"]["namespace"],
                jobs=len(new_status.jobs),
            )
        return budget.model_copy(update={"status": new_status}), None


def _but_spent(new_status: RLBudgetStatus) -> RLBudgetStatus:
    """A status without the jobs' usage: a change of usage alone is written less often."""
    limits = [limit.model_copy(update={"spent": ""}) for limit in new_status.limits]
    return new_status.model_copy(update={"limits": limits})


def _lags(job: Json, budget: RLBudget | None) -> bool:
    """Whether the status of a job that has not ended lacks its current grant."""
    if grants.has_ended(job) or job["metadata"].get("deletionTimestamp"):
        return False
    status = job.get("status") or {}
    grant = status.get("grant")
    if budget is None:
        return grant is not None
    try:
        before = None if grant is None else Grant.model_validate(grant)
    except ValidationError:
        return True
    begun = status.get("startTime") is not None
    return grants.of_job(budget, job["metadata"]["uid"], before, begun=begun) != before
