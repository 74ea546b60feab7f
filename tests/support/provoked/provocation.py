"""What is done to a cluster so that a fault shows, and what a job is made of that has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from headway_api.document import Json
from headway_api.names import EVAL_KIND, TRAINING_KIND

ODD: Final = "s3://headway/odd"
"""Folder of what is uploaded for faults."""
ODD_MODULE: Final = "odd"
"""Name of the module of `odd.py`, and of the ConfigMap that holds it."""
HOST_IMAGE: Final = "@coordinator"
"""Stands for an image that is there, and that no environment is in."""
STORE: Final = "http://objects.headway-demo.svc:7070"


class Applied(Protocol):
    """A job that was applied, and what may be done to it."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    def get(self) -> Json:
        """The job as it is."""

    def patch(self, change: Json) -> Json:
        """Merge a change into the job."""

    def put(self, uri: str, content: bytes) -> None:
        """Write an object to the store."""


def nothing_more(job: Applied) -> None:
    """The job as applied is enough."""


@dataclass(frozen=True)
class Provocation:
    """A job that is valid except for `changes`, and what is around it."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Merged over the valid spec; None removes."""
    kind: str = TRAINING_KIND
    name: str = ""
    """The job's name where it matters; otherwise the fault's."""
    beside: Sequence[Json] = ()
    """Objects that are made in its namespace before; they are in the way of every other job there."""
    edit: Mapping[str, Any] | None = None
    """Merged over the spec once the job is there: the edit is what is refused."""
    then: Callable[[Applied], None] = nothing_more
    """Done once the job is there."""
    trains: bool = False
    """Whether learner and servers come up for it."""

    @property
    def alone(self) -> bool:
        """Whether the job needs a namespace of its own."""
        return bool(self.beside)


def evaluation(changes: Mapping[str, Any], **more: Any) -> Provocation:
    """Of an RLEvalJob."""
    return Provocation(changes, kind=EVAL_KIND, **more)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Json:
    """`base` with `changes` laid over it, mapping by mapping; None removes."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result


LITTLE: Final[Json] = {
    "requests": {"cpu": "20m", "memory": "256Mi"},
    "limits": {"cpu": "2", "memory": "4Gi"},
}
"""Of learner and servers. They ask for little, so that all jobs that are provoked together fit a node."""
SMALL: Final[Json] = {
    "algorithm": {"batchSize": 2, "groupSize": 4},
    "schedule": {"maxSteps": 1},
    "evaluation": {"everySteps": 1, "atStart": False, "maxRows": 2},
    "environment": {"sandbox": {"warmPool": {"min": 0, "max": 8}}},
    "learner": {"resources": LITTLE},
    "rollout": {"maxConcurrency": 8, "resources": LITTLE},
    "preflight": {"episodes": 0},
    "tracking": None,
}
"""What keeps a job cheap."""
EVALUATED: Final[Json] = {
    "candidates": None,
    "evaluation": {"maxRows": 2},
    "environment": {"sandbox": {"warmPool": {"min": 0, "max": 4}}},
    "rollout": {"maxConcurrency": 4, "resources": LITTLE},
    "gate": None,
    "tracking": None,
}
"""The same of an evaluation; `changes` name its candidates."""
