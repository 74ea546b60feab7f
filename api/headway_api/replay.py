"""What `headway replay` asks of the learner, and the result, as files of one scratch folder.

request.json    what to train again, and from which run; the command writes it
plan.json       where to begin, and which steps to train
replay.log      the learner's output
termination     why it failed, like a pod's termination message
result.json     the result, written last
store/          what the learner would have written into the run's own folder
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from headway_api.config import JobConfig
from headway_api.record import Record
from headway_api.records import Metrics
from headway_api.spec.lifecycle import OutputSpec
from headway_api.spec.training import RLTrainingJobSpec

REQUEST: Final = "request.json"
PLAN: Final = "plan.json"
LOG: Final = "replay.log"
TERMINATION: Final = "termination"
RESULT: Final = "result.json"
STORE: Final = "store"
CACHE: Final = "cache"
"""Scratch folder of the learner's ranks."""


class ReplayRequest(BaseModel):
    """A step to train again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: JobConfig
    """Configuration of the run."""
    run: OutputSpec
    """Where the run's folder is now, and how to reach its store. The folder may have been moved."""
    step: int = Field(ge=1)
    changed: RLTrainingJobSpec | None = None
    """Spec to train the step with, instead of the settings in force at the time. Only its algorithm
    differs."""
    key: str | None = None
    """File with the key that signs the run's checkpoints. Without it no checkpoint can be used."""
    from_start: bool = False
    """Whether to begin with the untrained model even if a checkpoint is kept."""
    models: str
    """Folder where downloaded models are kept."""

    def write(self, folder: Path) -> None:
        """Write the request to `folder` for the learner."""
        (folder / REQUEST).write_text(self.model_dump_json(by_alias=True, exclude_none=True))

    @classmethod
    def read(cls, folder: Path) -> ReplayRequest:
        """Read what `write` wrote there."""
        return cls.model_validate_json((folder / REQUEST).read_bytes())


class TensorDifference(Record):
    """How the tensors of two versions differ."""

    differing: int = Field(ge=0)
    """Number of tensors that differ."""
    total: int = Field(ge=0)
    """Number of tensors."""
    max_abs: float = Field(ge=0)
    """Largest absolute difference of an element, over the tensors that both versions have in one shape."""
    max_at: str | None = None
    """Name of the tensor with this largest difference."""
    first: str | None = None
    """First tensor that differs, by name."""


class ReplayResult(Record):
    """Result of a replay."""

    step: int
    start: int | None
    """Step of the checkpoint that the replay began with; None: it began with the untrained model."""
    trained: list[int]
    """Steps that were trained again, the last one being `step`."""
    processes: int
    changed: bool
    """Whether the step was trained with another algorithm, so that other weights are expected."""
    digest: str
    """SHA-256 of the new weights' `file`."""
    recorded_digest: str | None
    """SHA-256 of `file` in the weights that the run published; None if the step's report lacks it."""
    file: str
    """Name of the weights file that both digests are of."""
    same: bool | None
    """Whether the weights are the same; None if that is unknown."""
    first_difference: int | None = None
    """The first step before `step` whose weights differ from those that the run published. Step 0 counts if
    the replay begins with the untrained model."""
    difference: TensorDifference | None = None
    """How the weights differ, if they do and the run's weights are kept."""
    recorded: Metrics
    """The step's metrics in the run."""
    replayed: Metrics
    """The step's metrics in the replay."""
    weights: str
    """Folder of the new weights."""
