"""What may be deleted. Pure; never what a restart resumes from."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def due(step: int, every: int) -> bool:
    """Whether `step` makes a checkpoint without being asked to."""
    return step % every == 0


def expired_checkpoints(
    steps: Collection[int],
    durable: int,
    keep_last: int,
    keep_best: int = 0,
    validated: Sequence[int] = (),
) -> list[int]:
    """Resumable states to delete: all but the newest `keep_last` up to `durable`, and the `keep_best` best.

    Args:
        steps: those that have files in the store. Beyond `durable` they are being written, or a rollback has
            left them: they are kept.
        validated: validated steps, the best first; those without a checkpoint are passed over.
    """
    whole = sorted(step for step in steps if step <= durable)
    best = [step for step in validated if step in whole][:keep_best]
    kept = {durable, *whole[-max(1, keep_last) :], *best}
    return [step for step in whole if step not in kept]


def expired_weights(
    steps: Collection[int],
    latest: int,
    max_lag: int,
    checkpoints: Collection[int],
    validated: Collection[int],
) -> list[int]:
    """Published weights to delete.

    Kept are those of step 0 and of validated steps, which people compare and serve; those of every
    checkpoint, which a learner that resumes there announces again; and as many of the newest as servers may
    still be loading or sampling with.

    Args:
        latest: the newest step taken.
        checkpoints: steps whose checkpoints are kept.
        validated: steps that were or will be validated.
    """
    oldest_kept = latest - max_lag - 1
    kept = {0, *checkpoints, *validated}
    return sorted(step for step in steps if step < oldest_kept and step not in kept)
