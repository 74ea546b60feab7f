"""What a training job waits for at its end: the last checkpoint, and the learner."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headway_api.finishing import LEARNER_END_SECONDS
from headway_api.store import Store
from headway_coordinator import whole_weights
from headway_coordinator.learner_api import LearnerApi
from headway_coordinator.training import Training

LAST_CHECKPOINT_SECONDS = 3600.0
"""The longest wait for a checkpoint of the last step. Then the job ends without it."""


async def until_exported(training: Training, store: Store) -> None:
    """Wait for the last checkpoint, and for the folder of the newest weights."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_CHECKPOINT_SECONDS):
            await training.until_durable()
            await whole_weights.until_whole(store, training.state.reports[-1].weights)
            training.state.exported = True


async def until_informed(api: LearnerApi) -> None:
    """Wait until the learner knows that the job has ended."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LEARNER_END_SECONDS):
            while not api.has_sent_finished:
                await asyncio.sleep(0.2)
