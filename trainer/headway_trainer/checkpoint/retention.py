"""Chooses the checkpoints and weights to delete, never the checkpoint that a restart resumes from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def due(step: int, every: int) -> bool:
    """Whether a checkpoint is due at `step`, if there is one every `every` steps."""
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
    """Steps up to `durable` whose files are to be deleted.

    The function keeps the newest `keep_last` checkpoints, the `keep_best` best, and those that may yet be
    among the best.

    Args:
        found: steps that have files in the store. Files beyond `durable` are being written, or were left by a
            rollback: they are kept.
        whole: steps in `found` whose checkpoints can be resumed from. Files of other steps up to `durable`
            are left-overs: they do not count, and are deleted.
        validated: validated steps, the best first; steps without a complete checkpoint are skipped.
        validating: steps whose validations are not complete. They count if `keep_best` is above 0.
    """
    usable = sorted(step for step in whole if step <= durable)
    best = [step for step in validated if step in usable][:keep_best]
    unranked = [step for step in validating if keep_best and step in usable]
    kept = {durable, *usable[-max(1, keep_last) :], *best, *unranked}
    return sorted(step for step in found if step <= durable and step not in kept)


def expired_weights(
    steps: Collection[int],
    latest: int,
    max_staleness: int,
    checkpoints: Collection[int],
    validated: Collection[int],
) -> list[int]:
    """Steps whose published weights are to be deleted.

    The function keeps the weights of step 0 and of validated steps, which people compare and serve. It keeps
    the weights of every checkpoint, because a learner that resumes there announces them again. It also keeps
    the newest weights that servers may still load or sample with.

    Args:
        latest: the newest step taken.
        checkpoints: steps whose checkpoints are kept.
        validated: steps that were or will be validated.
    """
    oldest_kept = latest - max_staleness - 1
    kept = {0, *checkpoints, *validated}
    return sorted(step for step in steps if step < oldest_kept and step not in kept)
