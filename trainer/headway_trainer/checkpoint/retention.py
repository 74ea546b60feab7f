"""What may be deleted. Pure; never what a restart resumes from."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def due(step: int, every: int) -> bool:
    """Whether `step` makes a checkpoint without being asked to."""
    return step % every == 0


def expired_checkpoints(
    found: Collection[int],
    whole: Collection[int],
    durable: int,
    keep_last: int,
    keep_best: int = 0,
    validated: Sequence[int] = (),
    validating: Collection[int] = (),
) -> list[int]:
    """Steps whose files are to be deleted: all up to `durable` but those of the newest `keep_last`
    checkpoints, of the `keep_best` best, and of those that may yet be found to be among the best.

    Args:
        found: steps that have files in the store. Beyond `durable` they are being written, or a rollback has
            left them: they are kept.
        whole: those of them whose checkpoints could be resumed from. Others up to `durable` are left-overs:
            they count for nothing, and go.
        validated: validated steps, the best first; those without a whole checkpoint are passed over.
        validating: steps whose validations are not complete. They count where `keep_best` is above 0.
    """
    usable = sorted(step for step in whole if step <= durable)
    best = [step for step in validated if step in usable][:keep_best]
    unranked = [step for step in validating if keep_best and step in usable]
    kept = {durable, *usable[-max(1, keep_last) :], *best, *unranked}
    return sorted(step for step in found if step <= durable and step not in kept)


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
