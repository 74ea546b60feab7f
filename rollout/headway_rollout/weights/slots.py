"""The weight slots of one engine: names under which the engine holds weights, independently of each other.

The policy that a job trains has the slot `policy`. Weights that are validated during training, and each
candidate of an evaluation, have a slot of their own. The first manifest for a slot creates it. A released
slot ends once no request uses its weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headway_api.exits import JobError
from headway_api.records import WeightsManifest, WeightsState
from headway_rollout.weights.updater import NOTHING, WeightUpdater

MAX_SLOTS: Final = 64
"""Maximum slots of one engine, including those that hold the base model."""
LOOK_SECONDS = 2.0
"""Seconds between two checks whether requests still use the weights of a released slot."""

Failed = asyncio.Future[JobError]


class SlotRefusedError(Exception):
    """The engine cannot have such a slot, has no room for another slot, or must keep the slot."""


class Slots:
    """An updater for each slot of one engine."""

    def __init__(
        self, updater: Callable[[str, Failed], WeightUpdater], adapters: int, reserved: str | None
    ) -> None:
        """Create the slots of an engine.

        Args:
            updater: creates the updater of a slot.
            adapters: maximum slots that hold an adapter at the same time.
            reserved: slot that exists from the start. It always counts as one of the `adapters`.
        """
        self.failed: Failed = asyncio.get_running_loop().create_future()
        """Done when the engine can no longer be trusted."""
        self._updater = updater
        self._adapters = adapters
        self._reserved = frozenset() if reserved is None else frozenset({reserved})
        self._updaters = {slot: updater(slot, self.failed) for slot in self._reserved}
        self._with_adapter: set[str] = set()
        """Slots that received an adapter and have not ended."""
        self._draining: dict[str, asyncio.Task[None]] = {}

    def state(self, slot: str) -> WeightsState:
        """The weights that a slot holds."""
        updater = self._updaters.get(slot)
        return NOTHING if updater is None else updater.state

    async def take(self, slot: str, manifest: WeightsManifest) -> WeightsState:
        """Load the weights of `manifest` into a slot, and return the slot's state.

        Raises:
            SlotRefusedError: the engine has no room for another slot, or cannot have this one.
        """
        taken = self._with_adapter | self._reserved | {slot}
        if manifest.kind == "lora" and len(taken) > self._adapters:
            others = ", ".join(sorted(taken - {slot}))
            raise SlotRefusedError(
                f"this server has room for {self._adapters} adapters, which are in use for {others}; release "
                "one"
            )
        if slot not in self._updaters and len(self._updaters) >= MAX_SLOTS:
            raise SlotRefusedError(f"this server holds {MAX_SLOTS} slots, the most; release one")
        if manifest.kind == "lora":
            self._with_adapter.add(slot)
        if slot not in self._updaters:
            self._updaters[slot] = self._updater(slot, self.failed)
        return await self._updaters[slot].take(manifest)

    def release(self, slot: str) -> None:
        """Release a slot once no request uses its weights. A slot that does not exist is already released.

        Raises:
            SlotRefusedError: the slot is the reserved one.
        """
        if slot in self._reserved:
            raise SlotRefusedError(f"the slot {slot} is reserved and cannot be released; release another")
        updater = self._updaters.get(slot)
        if updater is None:
            return
        updater.release()
        if slot not in self._draining:
            self._draining[slot] = asyncio.create_task(self._drain(slot, updater))

    async def _drain(self, slot: str, updater: WeightUpdater) -> None:
        try:
            while updater.leaving and not self.failed.done():
                if await updater.let_go() and updater.leaving:
                    del self._updaters[slot]
                    self._with_adapter.discard(slot)
                    return
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            del self._draining[slot]

    def hung(self, why: str) -> None:
        """Record that the engine hangs; `why` is a sentence about it."""
        if not self.failed.done():
            self.failed.set_result(JobError("EngineHung", why, permanent=False))
