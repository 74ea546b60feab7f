"""Waits until a server holds a candidate's verified weights, or decides that none will."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from headway_api.conditions import Reason
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Failure
from headway_coordinator.faults import CandidateError

LOOK_SECONDS: Final = 0.5
REFUSED_SECONDS: Final = 60.0
"""If every server finds for this long that weights are wrong, the candidate cannot be served."""
OTHER_SERVED_SECONDS: Final = 300.0
"""If the servers have held another candidate's weights for this long, the store works, so it excuses no
failed load. The time covers a pause between two loads, and a load."""


async def proven(
    field: str,
    fleet: Fleet,
    is_wanted: Callable[[], bool],
    patience: float,
    served_since: Callable[[], float | None] = lambda: None,
) -> None:
    """Return once a server holds the candidate's verified weights, or the candidate is no longer wanted.

    If no server appears, the operator decides what to do, because it sees the pods.

    Args:
        field: the spec's field that names the candidate's model.
        fleet: the candidate's servers.
        is_wanted: returns whether the candidate still has to be measured.
        patience: for how many seconds servers may fail to load, as while the artifact store is unavailable.
        served_since: returns since when (monotonic) the servers have held another candidate, which waits for
            this one. None if they hold none.

    Raises:
        CandidateError: there are servers, and none of them can load the weights.
    """
    failed_at: float | None = None
    while is_wanted() and not fleet.router.in_rotation():
        failures = [server.failure for server in fleet.router.servers.values()]
        known = [failure for failure in failures if failure is not None]
        if not known or len(known) < len(failures):
            failed_at = None
        else:
            now = time.monotonic()
            failed_at = now if failed_at is None else failed_at
            since = served_since()
            beside = 0.0 if since is None else now - max(since, failed_at)
            if (fault := refusal(field, known, now - failed_at, beside, patience)) is not None:
                raise fault
        await asyncio.sleep(LOOK_SECONDS)


def refusal(
    field: str, failures: Sequence[Failure], seconds: float, beside: float, patience: float
) -> CandidateError | None:
    """Why a candidate's servers are given up, if they are.

    Args:
        field: the spec's field that names the candidate's model.
        failures: the failure of each server.
        seconds: how long every server has had a failure.
        beside: for how many of these seconds the servers have held another candidate.
        patience: for how many seconds servers may fail to load.
    """
    wrong = [failure for failure in failures if failure.reason is Reason.VERIFICATION_FAILED]
    if len(wrong) == len(failures) and seconds > REFUSED_SECONDS:
        text = f"the rollout servers refuse the candidate's weights: {wrong[0].message}"
        fix = "restore the base model with which they were trained, or name a model that fits them"
        return CandidateError(str(wrong[0].reason), f"{text}; {fix}", field)
    if seconds <= patience and beside <= OTHER_SERVED_SECONDS:
        return None
    text = f"no rollout server could load the candidate's weights for {seconds:.0f} s: {failures[0].message}"
    fix = "correct that, or raise spec.pendingDeadlineSeconds if it passes by itself"
    return CandidateError(str(failures[0].reason), f"{text}; {fix}", field)
