"""Waits until the store has all of a job's newest weights, in a form that a server can load."""

from __future__ import annotations

import asyncio

from headway_api.records import PolicyVersion, WeightsManifest
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import read
from headway_api.weights_format import EXPORT_FILE

EXPORT_POLL_SECONDS = 1.0


async def until_whole(store: Store, newest: WeightsManifest) -> None:
    """Return once the folder of the newest weights holds all of them.

    The learner completes the folder at the end of the job. The caller sets the deadline.
    """
    while not newest.whole and not await asyncio.to_thread(_is_exported, store, newest):
        await asyncio.sleep(EXPORT_POLL_SECONDS)


def _is_exported(store: Store, weights: WeightsManifest) -> bool:
    # Other files in the folder prove nothing: a learner whose step was undone, or an export that still runs,
    # may have written them.
    try:
        return read(store, f"{weights.uri}/{EXPORT_FILE}", PolicyVersion) == weights.version
    except ObjectNotFoundError:
        return False
