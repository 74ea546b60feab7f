"""Definition of a provocation, which causes one fault on a cluster, and blocks of a valid job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from headway_api.document import Json
from headway_api.names import EVAL_KIND, TRAINING_KIND

ODD: Final = "s3://headway/odd"
"""Folder of the files that are uploaded for faults."""
ODD_MODULE: Final = "odd"
"""Name of the module in `odd.py`, and of the ConfigMap with its source."""
HOST_IMAGE: Final = "@coordinator"
"""Stands for an existing image that contains no environment."""
STORE: Final = "http://objects.headway-demo.svc:7070"


class Applied(Protocol):
    """A job that was applied, with the operations that a provocation may use."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    def get(self) -> Json:
        """The job as the API server has it now."""

    def patch(self, change: Json) -> Json:
        """Merge a change into the job."""

    def put(self, uri: str, content: bytes) -> None:
        """Write an object to the store."""


def nothing_more(job: Applied) -> None:
    """Do nothing: the job as applied shows the fault."""


@dataclass(frozen=True)
class Provocation:
    """A job that is valid except for `changes`, and the objects around it."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Merged over the valid spec; None removes a field."""
    kind: str = TRAINING_KIND
    name: str = ""
    """The job's name, if the fault depends on it; by default the fault's name."""
    beside: Sequence[Json] = ()
    """Objects that are created in the namespace before the job. They would disturb other jobs there."""
    edit: Mapping[str, Any] | None = None
    """Merged over the spec once the job exists. The API server refuses this edit."""
    then: Callable[[Applied], None] = nothing_more
    """Called once the job exists."""
    trains: bool = False
    """Whether the job's learner and servers start."""

    @property
    def alone(self) -> bool:
        """Whether the job needs a namespace of its own."""
        return bool(self.beside)


def evaluation(changes: Mapping[str, Any], **more: Any) -> Provocation:
    """A provocation with an RLEvalJob."""
    return Provocation(changes, kind=EVAL_KIND, **more)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Json:
    """`base` with `changes` merged over it recursively; None removes a key."""
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
"""Resources of learner and servers. They request little, so that jobs of one round fit a node."""
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
"""Blocks that make a training job small."""
EVALUATED: Final[Json] = {
    "candidates": None,
    "evaluation": {"maxRows": 2},
    "environment": {"sandbox": {"warmPool": {"min": 0, "max": 4}}},
    "rollout": {"maxConcurrency": 4, "resources": LITTLE},
    "gate": None,
    "tracking": None,
}
"""Blocks that make an evaluation small. A provocation's `changes` name its candidates."""
