"""A hypothesis state machine of jobs that share a namespace's budget.

The coordinators' budget gates and the operator's sharing are real. Groups, deaths of coordinators and the API
server, whose readers may lag, are simulated. BILL_RUNS says how many runs are drawn.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway_api.document import Json
from headway_api.grants import Grant, RLBudgetStatus
from headway_api.prices import Quantity
from headway_api.records import Purpose
from headway_api.spec.budget import RLBudget
from headway_api.spec.lifecycle import BudgetSpec, limits_of
from headway_coordinator.budget import shown
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.worst import Bill, Limits
from headway_coordinator.dataset import Slot
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.group import Plan
from headway_operator.plan import grants

pytestmark = pytest.mark.timeout(1800)  # `make test-bill` draws thousands of runs

TOKENS = 20
"""Maximum tokens that a turn samples."""
LIMITS = Limits(context_length=100, turns=2, sandbox_seconds=0, retries=0)
WORST = 2 * TOKENS
PRICE = Decimal("0.5")
"""Price of a sampled token in US dollars. Nothing else has a price."""
MAX_JOBS = 4


class Billed:
    """The ledger of a job, which outlives its coordinator."""

    def __init__(self) -> None:
        self.sampled = 0

    def highest_price(self, key: str) -> Decimal | None:
        return PRICE if key == "sample" else Decimal(0)

    def spent(self) -> Decimal:
        return PRICE * self.sampled

    def used(self) -> Mapping[str, Quantity]:
        return Counter(sample=self.sampled)


class Group:
    """One group of a coordinator."""

    def __init__(self, budget: Budget, number: int, size: int) -> None:
        self.size = size
        self.begun = False
        self._ends = asyncio.Event()
        slot = Slot(position=number, epoch=0, row=number)
        plan = Plan(slot, Purpose.TRAIN, 0, {}, size, Sampling(1.0, 1.0, TOKENS), 1)
        self.task = asyncio.ensure_future(self._live(budget, plan))

    async def _live(self, budget: Budget, plan: Plan) -> None:
        async with budget.group(plan, Bill(plan.purpose), LIMITS, WORST):
            self.begun = True
            await self._ends.wait()

    async def end(self) -> None:
        self._ends.set()
        await self.task


@dataclass(eq=False)
class Job:
    """A job's stored object, its versions, and its coordinator's state."""

    stored: Json
    spec: BudgetSpec | None
    bill: Billed = field(default_factory=Billed)
    budget: Budget | None = None
    groups: list[Group] = field(default_factory=list)
    seen: int = 0
    """Index of the version that the operator has seen."""
    versions: list[Json] = field(default_factory=list)

    def store(self, **status: Any) -> None:
        self.stored["status"] |= status
        self.versions.append(copy.deepcopy(self.stored))

    @property
    def ended(self) -> bool:
        return grants.has_ended(self.stored)

    @property
    def begun(self) -> bool:
        return "startTime" in self.stored["status"]

    @property
    def running(self) -> list[Group]:
        return [group for group in self.groups if group.begun]


class SharedBudget(RuleBasedStateMachine):
    """A namespace with jobs and a budget."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.jobs: list[Job] = []
        self.gone: list[Job] = []
        self.numbers = itertools.count()
        self.budgets: list[RLBudget] = []
        self.forgotten = 0
        """Usage of the jobs that had ended when the budget was deleted and made again."""
        self.over: list[Job] = []
        """The jobs whose usage `forgotten` has."""

    @initialize(groups=st.sampled_from([1, 2, 3, 5]), money=st.booleans(), tokens=st.booleans())
    def make(self, groups: int, money: bool, tokens: bool) -> None:
        maximum = groups * WORST * 2
        spec: Json = {"usd": str(PRICE * maximum)} if money or not tokens else {}
        spec |= {"tokens": {"sample": maximum}} if tokens else {}
        body = {"metadata": {"name": "default", "uid": "b", "generation": 1}, "spec": spec}
        self.limit = maximum
        self.budgets = [RLBudget.model_validate(body)]

    def teardown(self) -> None:
        try:
            if self.budgets:
                self._quiesce()
        finally:
            for job in self.jobs:
                self._stop(job)
            self._settle()
            self.loop.close()

    def _settle(self) -> None:
        async def turns() -> None:
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def _alive(self) -> list[Job]:
        return [job for job in self.jobs if job.budget is not None]

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(own=st.sampled_from([None, None, None, 1]))
    def create(self, own: int | None) -> None:
        number = next(self.numbers)
        metadata = {"uid": f"u{number}", "name": f"j{number}", "creationTimestamp": f"{number:04}"}
        stored = {"kind": "RLTrainingJob", "metadata": metadata, "spec": {}, "status": {}}
        spec = None if own is None else BudgetSpec.model_validate({"tokens": {"sample": own * WORST * 2}})
        job = Job(stored, spec)
        job.store()
        self.jobs.append(job)
        self._copy(job, self.budgets[-1])

    @precondition(lambda self: any(not job.ended for job in self.jobs))
    @rule(
        data=st.data(), sizes=st.lists(st.sampled_from([1, 1, 2]), min_size=1, max_size=3), asks=st.booleans()
    )
    def begin(self, data: st.DataObject, sizes: list[int], asks: bool) -> None:
        """Groups of a job try to begin. A coordinator is made if none runs."""
        job = data.draw(st.sampled_from([job for job in self.jobs if not job.ended]))
        if job.budget is None:
            job.store(startTime="2026-01-01T00:00:00Z")
            # The operator makes a coordinator only if the job's status has a grant.
            job.budget, job.groups = Budget(job.spec, job.bill, opened=False), []
            if asks:
                self._write(job)
        budget = job.budget

        async def begun(size: int) -> Group:
            return Group(budget, next(self.numbers), size)

        for size in sizes[: 4 - len(job.groups)]:
            job.groups.append(self.loop.run_until_complete(begun(size)))
            self._settle()
        if asks:
            self._ask(job)

    def _ask(self, job: Job) -> None:
        """The job reports its need, and receives a new grant.

        The operator knows the newest version of this job, and possibly old versions of others.
        """
        self._write(job)
        job.seen = len(job.versions) - 1
        self._share()
        self._copy(job, self.budgets[-1])
        self._write(job)

    @precondition(lambda self: any(job.running for job in self._alive()))
    @rule(data=st.data(), part=st.sampled_from([0.0, 0.5, 1.0, 1.0]))
    def end(self, data: st.DataObject, part: float) -> None:
        job = data.draw(st.sampled_from([job for job in self._alive() if job.running]))
        self._end(job, data.draw(st.sampled_from(job.running)), part)

    def _end(self, job: Job, group: Group, part: float) -> None:
        job.bill.sampled += int(part * group.size * WORST)  # the ledger has the usage before the group ends
        self.loop.run_until_complete(group.end())
        job.groups.remove(group)
        self._settle()

    @precondition(lambda self: self._alive())
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        self._write(data.draw(st.sampled_from(self._alive())))

    def _write(self, job: Job) -> None:
        """The coordinator writes its part of the status, and reads the grant."""
        assert job.budget is not None
        status = shown.status(job.budget)
        job.store(budget=None if status is None else status.as_object())
        grant = job.stored["status"].get("grant")
        job.budget.set_grant(None if grant is None else Grant.model_validate(grant))
        job.budget.open()
        self._settle()

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """The operator shares the budget by the versions that it has seen, which may be old."""
        for job in self.jobs:
            job.seen = data.draw(st.sampled_from([job.seen, len(job.versions) - 1]))
        self._share()

    def _share(self) -> None:
        budget = self.budgets[-1]
        claims = [grants.claim(job.versions[job.seen]) for job in self.jobs]
        shared = grants.share(limits_of(budget.spec), budget.status, claims)
        status = grants.status(budget, shared)
        self.budgets.append(budget.model_copy(update={"status": status}))
        living = {job.uid for job in status.jobs}
        known = [job for job in [*self.jobs, *self.gone] if job not in self.over]
        over = [job for job in known if job.stored["metadata"]["uid"] not in living and self._is_over(job)]
        for limit in status.limits:
            used = sum(job.bill.sampled for job in over)
            assert Decimal(limit.ended) >= (used * PRICE if limit.name == "usd" else used)
            assert Decimal(limit.left) >= 0

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), lag=st.integers(0, 2))
    def copy(self, data: st.DataObject, lag: int) -> None:
        """A job's reconcile copies its grant from a budget that may be old."""
        job = data.draw(st.sampled_from(self.jobs))
        if not job.ended:
            self._copy(job, self.budgets[max(0, len(self.budgets) - 1 - lag)])

    def _copy(self, job: Job, budget: RLBudget) -> None:
        grant = job.stored["status"].get("grant")
        before = None if grant is None else Grant.model_validate(grant)
        found = grants.of_job(budget, job.stored["metadata"]["uid"], before, begun=job.begun)
        job.store(grant=found.as_object())

    @precondition(lambda self: self._alive())
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """A coordinator is killed, and its running groups end without a bill."""
        self._stop(data.draw(st.sampled_from(self._alive())))

    def _stop(self, job: Job) -> None:
        for group in job.groups:
            group.task.cancel()
        job.budget, job.groups = None, []
        self._settle()

    @precondition(lambda self: any(not job.ended for job in self.jobs))
    @rule(data=st.data(), orderly=st.booleans(), works=st.booleans())
    def finish(self, data: st.DataObject, orderly: bool, works: bool) -> None:
        job = data.draw(st.sampled_from([job for job in self.jobs if not job.ended]))
        for group in job.running if works else ():
            self._end(job, group, 1.0)
        if orderly and job.budget is not None:
            job.budget.close()
            self._write(job)
        self._stop(job)
        job.store(conditions=[{"type": "Failed", "status": "True"}])
        job.seen = len(job.versions) - 1
        self._share()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        self._stop(job)
        self.jobs.remove(job)
        self.gone.append(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), suspended=st.booleans())
    def suspend(self, data: st.DataObject, suspended: bool) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        if suspended:
            self._stop(job)
        job.stored["spec"]["suspend"] = suspended
        job.store()

    @precondition(lambda self: any(job.begun for job in self.jobs))
    @rule()
    def make_again(self) -> None:
        """Somebody deletes the budget and applies it again, so jobs that have ended no longer count."""
        self.forgotten = sum(job.bill.sampled for job in [*self.jobs, *self.gone] if self._is_over(job))
        self.over = [job for job in [*self.jobs, *self.gone] if self._is_over(job)]
        self.budgets = [self.budgets[-1].model_copy(update={"status": RLBudgetStatus()})]
        for job in self.jobs:
            job.seen = len(job.versions) - 1
        self._share()

    def _is_over(self, job: Job) -> bool:
        return job in self.gone or job.ended

    @rule()
    def raise_limit(self) -> None:
        self.limit += WORST
        budget = self.budgets[-1]
        spec: Json = {} if budget.spec.usd is None else {"usd": str(PRICE * self.limit)}
        spec |= {} if budget.spec.tokens is None else {"tokens": {"sample": self.limit}}
        made = type(budget.spec).model_validate(spec)
        self.budgets.append(budget.model_copy(update={"spec": made}))

    @invariant()
    def together_they_never_use_more(self) -> None:
        used = sum(job.bill.sampled for job in [*self.jobs, *self.gone])
        assert used - self.forgotten <= (self.limit if self.budgets else 0)

    @invariant()
    def grants_add_up_to_no_more(self) -> None:
        granted = sum(self._granted(job) for job in self.jobs if not job.ended)
        over = sum(job.bill.sampled for job in [*self.jobs, *self.gone] if job in self.gone or job.ended)
        assert granted + over - self.forgotten <= (self.limit if self.budgets else 0)

    def _granted(self, job: Job) -> int:
        grant = Grant.model_validate(job.stored["status"].get("grant") or {})
        tokens, money = grants.granted(grant, "tokens.sample"), grants.granted(grant, "usd")
        found = [tokens, None if money is None else money / PRICE]
        return min((int(each) for each in found if each is not None), default=0)

    def _quiesce(self) -> None:
        """Everybody reads the newest state, and running groups end.

        After that, no group may wait without a reason.
        """
        quiet = 0
        while quiet < 3:
            quiet += 1
            for job in self._alive():
                self._write(job)
            for job in self.jobs:
                job.seen = len(job.versions) - 1
            self._share()
            for job in self.jobs:
                if not job.ended:
                    self._copy(job, self.budgets[-1])
            for job in self._alive():
                self._write(job)
                for group in job.running:
                    self._end(job, group, 0.5)
                    quiet = 0
        left = {limit.name: Decimal(limit.left) for limit in self.budgets[-1].status.limits}
        for job in self._alive():
            assert job.budget is not None
            waiting = [group for group in job.groups if not group.begun]
            if not waiting:
                continue
            shortfalls = job.budget.shortfalls()
            suspended = job.stored["spec"].get("suspend")
            assert job.budget.exhausted_at is not None or suspended, "it waits and nobody is told"
            for shortfall in shortfalls if not suspended else ():
                if shortfall.limit.granted and shortfall.lasts:
                    name = shortfall.limit.name.removeprefix("namespace.")
                    assert shortfall.needed - shortfall.limit.maximum > left[name], (
                        "it was refused what is there"
                    )


SharedBudget.TestCase.settings = settings(
    max_examples=int(os.environ.get("BILL_RUNS", "150")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSharedBudget = pytest.mark.timeout(900)(SharedBudget.TestCase)
