"""What may be deleted. Pure; never what `latest.json` points to."""

from __future__ import annotations

from collections.abc import Callable, Collection


def expired_checkpoints(steps: Collection[int], latest: int, keep_last: int) -> list[int]:
    """Resumable states to delete: all but the newest `keep_last` up to `latest`.

    States beyond `latest` are kept: they are being written, or a rollback has left them.
    """
    kept = sorted(step for step in steps if step <= latest)[-max(1, keep_last) :]
    return sorted(step for step in steps if step < latest and step not in kept)


def expired_weights(
    steps: Collection[int],
    latest: int,
    keep_last: int,
    evaluated_every: int,
    max_lag: int,
    evaluated: Callable[[int], bool],
) -> list[int]:
    """Published weights to delete.

    Kept are those of step 0 and of evaluated steps, which people compare and serve, and the newest:
    as many as there are checkpoints, and as servers may still be loading or sampling with. Steps are
    evaluated every so many; `evaluated` tells of one whether it was when that number was another.
    """
    newest = max(keep_last, max_lag + 2)
    oldest_kept = latest - newest + 1
    return sorted(
        step
        for step in steps
        if 0 < step < oldest_kept
        and not (evaluated_every and step % evaluated_every == 0)
        and not evaluated(step)
    )
