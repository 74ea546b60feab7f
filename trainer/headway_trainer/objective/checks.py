"""Checks what the functions of an objective return, before the learner uses it.

A user's own function may return anything. A loss that broadcasts would silently train something else. An
advantage that is not a number would look like a fault of the learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway_api.exits import JobError
from headway_trainer.objective.registry import PLUGINS_FIELD


class InvalidResultError(ValueError):
    """A function returned something unusable; the message says what."""


@contextmanager
def blamed(field: str, own: Mapping[str, str], catch: type[Exception] = Exception) -> Iterator[None]:
    """Blame `field` for errors of the user's own function that it names.

    Args:
        own: the user's own functions, by field. A fault of a built-in function is raised as it is.
        catch: exceptions that count as a fault of the user's own function.
    Raises:
        JobError: `PluginFaulty`.
    """
    try:
        yield
    except (InvalidResultError, catch) as error:
        if field not in own and isinstance(error, InvalidResultError):
            raise JobError(
                "ObjectiveUnfit",
                f"{field} {error}; have the environment return rewards of a size between 1e-3 and 1e3",
                field=field,
            ) from error
        if field not in own:
            raise
        what = (
            str(error) if isinstance(error, InvalidResultError) else f"raised {type(error).__name__}: {error}"
        )
        raise JobError(
            "PluginFaulty",
            f"{field} {own[field]!r} {what}; correct the function in its module, or name another one",
            field=PLUGINS_FIELD,
        ) from error


def require(found: int, wanted: int, what: str) -> None:
    """Refuse a count of values that is not `wanted`."""
    if found != wanted:
        raise InvalidResultError(f"returned {found} values for {wanted} {what}")


def fits(values: float | NDArray[np.float64]) -> bool:
    """Whether all are numbers, also in float32, in which losses are computed."""
    return bool((np.abs(values) <= np.finfo(np.float32).max).all())


def fit_weights(found: Any, rows: int) -> list[float]:
    """One number that float32 can hold for each training row of an optimizer step.

    Raises:
        InvalidResultError: `found` is something else.
    """
    require(len(found), rows, "training rows of an optimizer step")
    taken = [float(value) for value in found]
    for value in taken:
        if not fits(value):
            raise InvalidResultError(f"returned {value} as the weight of a training row's tokens")
    return taken


def fit_tokens(found: Any, like_T: Tensor) -> Tensor:
    """One number for each token of a micro-batch.

    Raises:
        InvalidResultError: it has another shape, and might be broadcast.
    """
    if not isinstance(found, Tensor) or found.shape != like_T.shape:
        shape = f"the shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InvalidResultError(f"returned {shape} for {len(like_T)} tokens")
    return found
