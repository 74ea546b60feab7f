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
"""Scratch of the learner's ranks."""


class ReplayRequest(BaseModel):
    """A step to train again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: JobConfig
    """Configuration of the run."""
    run: OutputSpec
    """Where the run's own folder is, which may have been moved, and how to reach its store."""
    step: int = Field(ge=1)
    changed: RLTrainingJobSpec | None = None
    """What to train the step with, instead of what was in force. Only its algorithm differs."""
    key: str | None = None
    """File with the key that signs the run's checkpoints. Without it no checkpoint can be used."""
    from_start: bool = False
    """Whether to begin with the model itself even if a checkpoint is kept."""
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
    """Largest difference of an element, over the tensors that both have in one shape."""
    max_at: str | None = None
    """Tensor that has it."""
    first: str | None = None
    """First tensor that differs, by name."""


class ReplayResult(Record):
    """Result of a replay."""

    step: int
    start: int | None
    """Step of the checkpoint that it began with; None: it began with the model itself."""
    trained: list[int]
    """Steps that were trained again, the last one being `step`."""
    processes: int
    changed: bool
    """Whether the step was trained with another algorithm, so that other weights are expected."""
    digest: str
    """SHA-256 of the new weights' `file`."""
    recorded_digest: str | None
    """SHA-256 of `file` in the weights that the run published; None if its report lacks it."""
    file: str
    """File of published weights that the digests are for."""
    same: bool | None
    """Whether the weights are the same; None if that is unknown."""
    first_difference: int | None = None
    """The first step before `step` whose weights differ from those that the run published. Step 0 counts if
    the replay begins with the model itself."""
    difference: TensorDifference | None = None
    """How the weights differ, if they do and the run's weights are kept."""
    recorded: Metrics
    """The step's metrics in the run."""
    replayed: Metrics
    """The step's metrics in the replay."""
    weights: str
    """Folder of the new weights."""
