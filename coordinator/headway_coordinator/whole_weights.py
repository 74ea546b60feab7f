"""Waits until a job's newest weights lie whole in the store, as a server can load them."""

from __future__ import annotations

import asyncio

from headway_api.records import PolicyVersion, WeightsManifest
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import read
from headway_api.weights_format import EXPORT_FILE

EXPORT_POLL_SECONDS = 1.0


async def until_whole(store: Store, newest: WeightsManifest) -> None:
    """Return once the folder of the newest weights holds all of them.

    The learner completes it at the end. The caller sets the deadline.
    """
    while not newest.whole and not await asyncio.to_thread(_is_exported, store, newest):
        await asyncio.sleep(EXPORT_POLL_SECONDS)


def _is_exported(store: Store, weights: WeightsManifest) -> bool:
    # Another file there may come from a learner whose step was undone, or be the first of many.
    try:
        return read(store, f"{weights.uri}/{EXPORT_FILE}", PolicyVersion) == weights.version
    except ObjectNotFoundError:
        return False
