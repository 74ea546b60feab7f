"""Checks the results of an objective's functions before the learner uses them.

A user's own function may return anything. A loss of the wrong shape would broadcast, and silently train
something else. A NaN advantage would look as if the learning rate were wrong.
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
    """A function returned an unusable result; the message says what is wrong with it."""


@contextmanager
def blamed(field: str, own: Mapping[str, str], catch: type[Exception] = Exception) -> Iterator[None]:
    """Convert an error of the function that `field` names into a JobError about that function.

    Args:
        own: names of the user's own functions, by field. Other exceptions of a built-in function are raised
            unchanged.
        catch: exceptions that count as a fault of the user's own function, besides InvalidResultError.
    Raises:
        JobError: `PluginFaulty` for a user's own function. `ObjectiveUnfit` for an InvalidResultError of a
            built-in function.
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
    """Raise InvalidResultError if the count of values, `found`, is not `wanted`."""
    if found != wanted:
        raise InvalidResultError(f"returned {found} values for {wanted} {what}")


def fits(values: float | NDArray[np.float64]) -> bool:
    """Whether all values are finite, also in float32, in which losses are computed."""
    return bool((np.abs(values) <= np.finfo(np.float32).max).all())


def fit_weights(found: Any, rows: int) -> list[float]:
    """Check that `found` has a number within float32's range for each training row of an optimizer step.

    Raises:
        InvalidResultError: it has not.
    """
    require(len(found), rows, "training rows of an optimizer step")
    taken = [float(value) for value in found]
    for value in taken:
        if not fits(value):
            raise InvalidResultError(f"returned {value} as the weight of a training row's tokens")
    return taken


def fit_tokens(found: Any, like_T: Tensor) -> Tensor:
    """Check that `found` has one number for each token of a micro-batch.

    Raises:
        InvalidResultError: it has another shape, so it might be broadcast.
    """
    if not isinstance(found, Tensor) or found.shape != like_T.shape:
        shape = f"the shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InvalidResultError(f"returned {shape} for {len(like_T)} tokens")
    return found
