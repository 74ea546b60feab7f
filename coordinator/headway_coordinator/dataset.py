"""The seeded order in which the rows of a dataset become groups.

The order is a pure function of (seed, position): a restarted coordinator finds the same row from the position
alone. Two epochs visit the same rows in different orders.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic_core import to_jsonable_python

from headway_api.records import Purpose
from headway_api.rows import Row


@dataclass
class Data:
    """Rows of all splits."""

    train: Sequence[Row]
    validation: Sequence[Row]
    test: Sequence[Row] = ()
    tasks: dict[str, list[str]] = field(default_factory=dict)
    """By split: the task of each row, as metrics name it, if a column names tasks."""


@dataclass(frozen=True)
class Slot:
    """One group's place in the data."""

    position: int
    """Place in the seeded order, over all epochs."""
    epoch: int
    row: int
    """Index in the dataset."""

    def group_id(self, purpose: Purpose, step: int = 0, candidate: str | None = None) -> str:
        """The group's id.

        It is the same whenever and however often the group runs. Only an evaluation has a candidate.
        """
        if purpose is Purpose.EVALUATION:
            return f"e-{candidate}-{self.position:06d}"
        if purpose is Purpose.TRAIN:
            return f"t{self.epoch}-{self.position:06d}"
        if purpose is Purpose.PREFLIGHT:
            return f"p{self.epoch}-{self.position:06d}"
        return f"v{step:06d}-{self.position:06d}"


@dataclass(frozen=True)
class Order:
    """position -> (epoch, row): each epoch has every row once."""

    rows: int
    seed: int
    shuffle: bool = True

    def slot(self, position: int) -> Slot:
        """The slot at `position`."""
        epoch, offset = divmod(position, self.rows)
        row = permutation(self.rows, self.seed, epoch)[offset] if self.shuffle else offset
        return Slot(position=position, epoch=epoch, row=row)


@lru_cache(maxsize=4)
def permutation(rows: int, seed: int | str, epoch: int) -> tuple[int, ...]:
    """The order of `rows` rows in an epoch."""
    order = list(range(rows))
    random.Random(f"headway/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def position_of(group_id: str) -> int:
    """The position in a group's id, which `Slot.group_id` made."""
    return int(group_id.rpartition("-")[2])


def digest(rows: Sequence[Row]) -> str:
    """SHA-256, in hex, of the rows as the environment receives them.

    The order of columns counts, because the first may be the prompt.
    """
    found = hashlib.sha256()
    for row in rows:
        found.update(json.dumps(to_jsonable_python(row)).encode() + b"\n")
    return found.hexdigest()
