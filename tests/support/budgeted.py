"""Groups that pass through a budget's gate, with prices and a ledger that the test chooses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from headway_api.records import Purpose
from headway_api.spec.lifecycle import BudgetSpec
from headway_coordinator.budget.account import NoPrices
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.worst import Bill, Limits
from headway_coordinator.dataset import Slot
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.group import Plan

LIMITS = Limits(context_length=100, turns=2, sandbox_seconds=10, retries=1)
TRAIN = Bill(Purpose.TRAIN)
SAMPLED = 40
"""Maximum tokens that an attempt samples: two turns of 20."""


class Free(NoPrices):
    """Prices nothing. The ledger says that the tokens `used` were used."""

    def __init__(self, **used: int) -> None:
        self.tokens = Counter(used)

    def used(self) -> Mapping[str, int]:
        return self.tokens


def budget(prices: Free | None = None, **spec: Any) -> Budget:
    return Budget(BudgetSpec.model_validate(spec), prices or Free())


def plan(number: int, size: int = 2, purpose: Purpose = Purpose.TRAIN) -> Plan:
    slot = Slot(position=number, epoch=0, row=number)
    return Plan(slot, purpose, 0, {}, size, Sampling(1.0, 1.0, 20), 1)


class Running:
    """A group that asks the gate to begin, and then runs until `end` is called."""

    def __init__(self, found: Budget, planned: Plan) -> None:
        self.plan = planned
        self.held: Any = None
        self._ends = asyncio.Event()
        self.task = asyncio.create_task(self._live(found))

    async def _live(self, found: Budget) -> None:
        async with found.group(self.plan, Bill(self.plan.purpose), LIMITS, SAMPLED) as self.held:
            await self._ends.wait()

    async def end(self) -> None:
        self._ends.set()
        await self.task

    @property
    def begun(self) -> bool:
        return self.held is not None


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
