"""A validator of JSON Schema that gives up after a number of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from headway_api.bounds import OutOfBoundsError

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class Steps:
    """Counts down the steps that are left."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._max_steps = limit

    def spend(self, steps: int) -> None:
        """Subtract some steps from those that are left.

        Raises:
            OutOfBoundsError: fewer than `steps` steps were left.
        """
        self._left -= steps
        if self._left < 0:
            raise OutOfBoundsError(f"more than {self._max_steps} steps")


def validator(steps: Steps, weight: int = 1) -> Any:
    """A validator class that spends `weight` of `steps` for each of its own steps."""
    counted = {name: _counted(keyword, steps, weight) for name, keyword in KEYWORDS.items()}
    extended: Callable[..., Any] = validators.extend
    return extended(Draft202012Validator, counted)


def _counted(keyword: Keyword, steps: Steps, weight: int) -> Keyword:
    """The keyword's function, which now spends one step, and one more for each element that it may read."""

    def judged(reader: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        steps.spend(weight * (1 + _elements(value) + _elements(instance)))
        yield from keyword(reader, value, instance, schema) or ()

    return judged


def _elements(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


KEYWORDS: Final[dict[str, Keyword]] = dict(Draft202012Validator.VALIDATORS)
