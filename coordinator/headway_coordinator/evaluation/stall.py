"""Finds out why an evaluation makes no progress: names the part that it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headway_api.sandbox_api import PoolState
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.evaluation.run import Evaluation
from headway_coordinator.recurring import causes_message
from headway_coordinator.stall import AFTER_SECONDS, STORE_SECONDS, Blocker


def blocker(
    evaluation: Evaluation, fleets: Mapping[str, Fleet], pool: PoolState | str, episode_seconds: float
) -> Blocker:
    """The part that the evaluation most likely waits for, with that part's own message.

    Args:
        evaluation: the job.
        fleets: candidate that has servers now -> its fleet.
        pool: the broker's answer, or why there is none.
        episode_seconds: the most seconds that an episode may take.
    """
    if evaluation.store_busy > STORE_SECONDS:
        return Blocker("artifact store: a write has been under way for over a minute", AFTER_SECONDS)
    for name, fleet in fleets.items():
        if (problem := fleet.router.problem()) is not None:
            return Blocker(f"rollout servers of candidate {name}: {problem}", AFTER_SECONDS)
    if isinstance(pool, str):
        return Blocker(f"sandbox broker: {pool}", AFTER_SECONDS)
    if pool.problem is not None:
        return Blocker(f"sandboxes: {pool.problem.reason}: {pool.problem.message}", AFTER_SECONDS)
    if standing := evaluation.faults.standing:
        return Blocker(causes_message(standing), AFTER_SECONDS + (episode_seconds if pool.leased else 0.0))
    running = sum(evaluation.state.in_flight.values())
    waiting = (each for each in evaluation.state.live() if each.stage == "Pending" and each.message)
    if not running and (first := next(waiting, None)) is not None:
        return Blocker(f"candidate {first.name} waits: {first.message}", AFTER_SECONDS)
    words = f"{running} episodes are running and none has ended; {pool.leased} sandboxes are leased"
    return Blocker(words, AFTER_SECONDS + (episode_seconds if pool.leased else 0.0))


def idle(evaluation: Evaluation) -> Callable[[], float | None]:
    """A function that returns the seconds without progress; None if the job is over."""

    def seconds() -> float | None:
        state = evaluation.state
        return None if state.finished else time.monotonic() - state.moved_at

    return seconds
