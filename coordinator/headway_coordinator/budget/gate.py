"""Lets a group begin only if its worst case fits the budget; the other groups wait.

    a group begins    once all that it may cost is reserved: every attempt, and its share of training
    an episode ends   the part of its reservation that it has not used is free again
    a question        to a judge or an endpoint is reserved just before it is sent, because nobody knows the
                      number of questions earlier
    a group ends      once the ledger has it; its training stays reserved until a step has trained it
    exhausted         nothing runs, and nothing that waits fits. Or more is spent and reserved than there is:
                      time has passed, a price was corrected, or the budget was lowered. If the namespace may
                      grant more, the job first waits for the grant or its refusal
    drained           if `onExhausted` is Drain, and nothing runs or fits: the waiting groups are abandoned

The reservations of a process that ends need no record, because its running episodes are not billed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, Protocol

from headway_api import logs
from headway_api.grants import Grant
from headway_api.records import Abandoned, GroupRecord
from headway_api.spec.lifecycle import BudgetSpec
from headway_coordinator.budget import worst
from headway_coordinator.budget.account import (
    Account,
    GrantRequest,
    Limit,
    NoPrices,
    Prices,
    Shortfall,
    granted,
    limits_of,
)
from headway_coordinator.budget.group_reservation import GroupReservation
from headway_coordinator.budget.spending import Used
from headway_coordinator.budget.worst import Amounts, Bill, Limits, Slot
from headway_coordinator.cancel_token import CancelToken, StoppedError

SPENT: Final = Abandoned(
    reason="BudgetExhausted", message="the group's worst-case cost does not fit spec.budget"
)
UNGROUPED: Final = "ungrouped/"
TIME: Final = "time"
"""The name under which the account reserves the coming cost of accelerator time."""
_log = logging.getLogger(__name__)


class Planned(Protocol):
    """The part of a group's plan that a budget needs."""

    @property
    def group_id(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def stop(self) -> CancelToken: ...


@dataclass(eq=False)
class _Wait:
    """A group, or a question, that does not fit yet."""

    amounts: Amounts
    admit: Callable[[], None]
    """Reserves the amounts."""
    turn: asyncio.Future[None]


class Budget:
    """The budget of one job. All of its state changes on the event loop only."""

    def __init__(
        self,
        spec: BudgetSpec | None,
        prices: Prices,
        moved: Callable[[], None] = lambda: None,
        *,
        opened: bool = True,
    ) -> None:
        """Begin with the spec's budget.

        Args:
            moved: called when the budget becomes exhausted, when it no longer is, and when it asks for more.
            opened: whether groups may begin before `open` is called.
        """
        self.spec = spec
        self.grant: Grant | None = None
        """The namespace's grant for the job. None if the namespace does not bound the job."""
        self.closed = False
        """Whether nothing begins any more, so that what is spent and reserved is final."""
        self._last: list[Shortfall] = []
        """The limits that were too small when the budget was closed."""
        self._refused: Mapping[str, Decimal] = {}
        """Granted limits -> the smallest need that was refused since a grant last grew."""
        self._opened = opened
        self._grant_requests: dict[str, GrantRequest] = {}
        self.account = Account(prices, limits_of(spec))
        self.busy: Callable[[], bool] = lambda: False
        """Whether budget may become free although no group runs, because the learner may take a step."""
        self.drain: Callable[[], None] | None = None
        """Ends the job with its finished groups, refusing waiting requests; None if the job cannot drain."""
        self.exhausted_at: datetime | None = None
        self._moved = moved
        self._queue: list[_Wait] = []
        self._groups: set[GroupReservation] = set()
        self._ungrouped = 0
        self._asking: set[str] = set()
        """Questions in flight that belong to no group."""

    @property
    def bounded(self) -> bool:
        """Whether there is any limit."""
        return bool(self.account.limits)

    @property
    def grant_requests(self) -> Mapping[str, GrantRequest]:
        """Name of each granted limit that is too small -> the job's request."""
        return self._grant_requests

    @property
    def awaits_grant(self) -> bool:
        """Whether the job needs a larger grant, and the namespace has not refused it."""
        return any(
            (request := self._grant_requests.get(limit.name)) is not None
            and request.needed is not None
            and not Shortfall(limit, request.needed).lasts
            for limit in self.account.limits
        )

    @property
    def waiting(self) -> int:
        """Groups and questions that do not fit yet."""
        return len(self._queue)

    def shortfalls(self) -> list[Shortfall]:
        """The exhausted limits, each with the smallest sufficient value. Empty if the job goes on."""
        if self.closed:
            return self._last
        if self.exhausted_at is None:
            return []
        over = self.account.shortfalls({})
        return over or (self.account.shortfalls(self._follows()) if self._queue else [])

    def least(self, limits: Limits, bill: Bill, size: int, sampled: int) -> list[Shortfall]:
        """The limits that are too small for one group alone, whatever was spent."""
        one = worst.of_attempts(limits, bill, sampled, limits.retries + 1)
        alone = worst.total([worst.of_judging(limits, bill), *[one] * size])
        own = (limit for limit in self.account.limits if not limit.granted)
        needed = ((limit, self.account.worth(limit, alone)) for limit in own)
        return [Shortfall(limit, maximum) for limit, maximum in needed if maximum > limit.maximum]

    def set(self, spec: BudgetSpec | None) -> None:
        """Apply the spec's budget, which may have changed."""
        if spec != self.spec:
            self.spec = spec
            logs.event(_log, "budget-changed", budget=None if spec is None else spec.as_object())
            self._bound()

    def set_grant(self, grant: Grant | None) -> None:
        """Apply the namespace's grant, which may have changed.

        Raises:
            ValueError: this version cannot read it.
        """
        if grant != self.grant:
            self._refused = _refusals(self._refused, granted(self.grant), granted(grant))
            self.grant = grant
            logs.event(_log, "budget-granted", grant=None if grant is None else grant.as_object())
            self._bound()

    def _bound(self) -> None:
        shared = (replace(each, refused=self._refused.get(each.name)) for each in granted(self.grant))
        self.account.limits = (*limits_of(self.spec), *shared)
        self.look()

    def open(self) -> None:
        """Let groups begin.

        Call this once it is known whether the namespace bounds the job, and once the status no longer has a
        predecessor's `closed`.
        """
        if not self._opened and not self.closed:
            self._opened = True
            self.look()

    def close(self) -> None:
        """Let nothing begin any more, because the process ends.

        Call it before waiting work is cancelled. The status then keeps showing whether the budget is
        exhausted now, and what it lacks.
        """
        if not self.closed:
            self._last = self.shortfalls()
            self.closed, self._opened = True, False

    def reserve_time(self, amounts: Amounts) -> None:
        """Reserve accelerator time that is not in the ledger yet, up to when the job's pods could end."""
        self.account.reserve(TIME, amounts)
        self.look()

    def awaits_step(self, group: GroupRecord) -> None:
        """Reserve the training of a finished group, which waits for a step."""
        self.account.reserve(_train(group.group_id), worst.to_train(group))

    def settled(self, group_id: str) -> None:
        """Free the reservation of a finished group's training: a step has done it, or no step will."""
        self.account.reserve(_train(group_id), {})
        self.look()

    @asynccontextmanager
    async def group(
        self, plan: Planned, bill: Bill, limits: Limits, sampled: int
    ) -> AsyncIterator[GroupReservation]:
        """Hold a group's worst case during the block, which begins once it fits or `plan` is stopped.

        Args:
            sampled: most tokens that an attempt samples.
        """
        group = GroupReservation(self, bill, limits, sampled, plan.group_id, plan.stop, plan.size)
        group.left = dict.fromkeys(range(plan.size), limits.retries + 1)
        group.judging = worst.of_judging(limits, bill)
        amounts = group.reservation()
        self._groups.add(group)
        try:
            try:
                async with plan.stop.guard():
                    await self._take(amounts, lambda: self._begin(group))
            except StoppedError:  # the group is sealed without an episode
                group.left, group.judging = {}, Counter()
                self._begin(group)
            yield group
        finally:
            self._groups.discard(group)
            self.account.reserve(group.key, {})
            self.look()

    def refuse(self) -> None:
        """End the groups that wait, and those with waiting questions, because nothing more may begin."""
        for group in [*self._groups]:
            if not group.admitted or group.blocked:
                group.stop.now(SPENT)

    @asynccontextmanager
    async def reserved(self, maximum: Amounts) -> AsyncIterator[Used]:
        """Hold `maximum` for a question that belongs to no group during the block, which begins once it fits.

        The part that the block reports as used stays reserved until `ungrouped_billed`.
        """
        self._ungrouped += 1
        whose, used = f"{UNGROUPED}{self._ungrouped}", Counter[Slot]()

        def admit() -> None:
            self._asking.add(whose)
            self.account.reserve(whose, maximum)

        try:
            await self._take(maximum, admit)
            yield used.update
        finally:  # the question may be cancelled just after it was let in
            self._asking.discard(whose)
            self.account.reserve(whose, used)
            self.look()

    def ungrouped_billed(self) -> None:
        """Free the reservations of questions that belong to no group, because the ledger has them now."""
        for number in range(1, self._ungrouped + 1):
            self.account.reserve(f"{UNGROUPED}{number}", {})
        self.look()

    def _begin(self, group: GroupReservation) -> None:
        group.admitted = True
        self.account.reserve(group.key, group.reservation())

    async def ask(self, group: GroupReservation, maximum: Amounts) -> None:
        """Return once a question of a running group fits, with its worst case reserved."""
        fits = False

        def admit() -> None:
            nonlocal fits
            fits = True
            group.blocked -= 1
            group.asked.update(maximum)
            self.account.reserve(group.key, group.reservation())

        group.blocked += 1
        try:
            await self._take(maximum, admit)
        except asyncio.CancelledError:
            if not fits:  # otherwise the group's end frees it
                group.blocked -= 1
            raise

    def changed(self, group: GroupReservation) -> None:
        """Apply a change in the reservation of a group."""
        if group in self._groups:
            self.account.reserve(group.key, group.reservation())
            self.look()

    async def _take(self, amounts: Amounts, admit: Callable[[], None]) -> None:
        wait = _Wait(amounts, admit, asyncio.get_running_loop().create_future())
        self._queue.append(wait)
        self.look()
        try:
            await wait.turn
        finally:
            if wait in self._queue:
                self._queue.remove(wait)
                self.look()

    def look(self) -> None:
        """Let in what fits by now, in the order of requests.

        Then check whether the job can go on, and what to ask the namespace for.
        """
        if not self._opened:
            return
        refused: set[frozenset[tuple[Slot, int]]] = set()
        for wait in [*self._queue]:
            alike = frozenset(wait.amounts.items())  # most amounts are equal: groups of one purpose
            if alike in refused:
                continue
            if self.account.shortfalls(wait.amounts):
                refused.add(alike)
                continue
            self._queue.remove(wait)
            if not wait.turn.done():
                wait.admit()
                wait.turn.set_result(None)
        self._judge()

    def _judge(self) -> None:
        runs = bool(self._asking) or any(group.runs for group in self._groups) or self.busy()
        stuck = bool(self._queue) and not runs and self._falls_short_permanently(self._follows())
        over = self._falls_short_permanently({})
        drains = self.spec is not None and self.spec.on_exhausted == "Drain"
        if stuck and drains and not over and self.drain is not None:
            self.drain()
            stuck = False
        self._ask()
        exhausted = stuck or over
        if exhausted == (self.exhausted_at is not None):
            return
        self.exhausted_at = datetime.now(UTC).replace(microsecond=0) if exhausted else None
        lacking = {each.limit.name: str(each.needed) for each in self.shortfalls()}
        logs.event(_log, "budget-exhausted" if exhausted else "budget-left", needed=lacking)
        self._moved()

    def _falls_short_permanently(self, amounts: Amounts) -> bool:
        return any(each.lasts for each in self.account.shortfalls(amounts))

    def _ask(self) -> None:
        """Update the requests to the namespace."""
        requests: dict[str, GrantRequest] = {}
        if any(limit.granted for limit in self.account.limits):
            waiting = sorted(self._could_begin(), key=self._of_grants)
            for standing in self.account.standings():
                request = self.account.grant_request(standing, waiting) if standing.limit.granted else None
                requests |= {} if request is None else {standing.limit.name: request}
        # A changed wish alone is not a reason to write the status at once: it grows a little every time.
        urgent = _needs(requests) != _needs(self._grant_requests)
        self._grant_requests = requests
        if urgent:
            self._moved()

    def _follows(self) -> Amounts:
        """The waiting amounts that begin next: the smallest of those that need only a larger grant.

        Needs that were refused come last. If no amounts need only a grant, the first in the queue begin next.
        """
        return min(self._could_begin(), key=self._of_grants, default=self._queue[0].amounts)

    def _of_grants(self, amounts: Amounts) -> tuple[bool, list[Decimal]]:
        """The key that sorts waiting amounts by the order in which the namespace is asked for them."""
        worth = [self.account.worth(limit, amounts) for limit in self.account.limits if limit.granted]
        return self._falls_short_permanently(amounts), worth

    def _could_begin(self) -> list[Amounts]:
        """Waiting amounts that fit every limit of the spec, in order."""
        fits: dict[frozenset[tuple[Slot, int]], bool] = {}  # most amounts are equal
        found = []
        for wait in self._queue:
            alike = frozenset(wait.amounts.items())
            if alike not in fits:
                fits[alike] = all(each.limit.granted for each in self.account.shortfalls(wait.amounts))
            found += [wait.amounts] if fits[alike] else []
        return found


def _refusals(
    before: Mapping[str, Decimal], was: Sequence[Limit], now: Sequence[Limit]
) -> dict[str, Decimal]:
    """Granted limits -> the smallest need that is known to be refused.

    The operator reports one need at a time. A grant that grew may be enough for needs that were refused
    before.
    """
    had = {limit.name: limit.maximum for limit in was}
    grew = any(limit.maximum > had.get(limit.name, limit.maximum) for limit in now)
    known = {} if grew else {limit.name: before[limit.name] for limit in now if limit.name in before}
    reported = {limit.name: limit.refused for limit in now if limit.refused is not None}
    return known | {name: min(much, known.get(name, much)) for name, much in reported.items()}


def _needs(requests: Mapping[str, GrantRequest]) -> dict[str, Decimal | None]:
    return {name: request.needed for name, request in requests.items()}


def unbounded() -> Budget:
    """The budget of a job without limits."""
    return Budget(None, NoPrices())


def _train(group_id: str) -> str:
    return f"{group_id}/train"
