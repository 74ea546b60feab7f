"""What `headway replay` asks of the learner, and what comes of it: files of one scratch folder.

request.json    what is to be trained again, and from which run; the command writes it
plan.json     from where, and by which steps
replay.log      what the learner writes
termination     why nothing came of it, as of a pod
result.json   what came of it, written last
store/          what the learner would have written into the run's own folder
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from headway_api.config import JobConfig
from headway_api.record import Record
from headway_api.records import Figures
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
    """A step that is to be trained again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: JobConfig
    """Of the run."""
    run: OutputSpec
    """Where the run's own folder is, which may have been moved, and how its store is reached."""
    step: int = Field(ge=1)
    changed: RLTrainingJobSpec | None = None
    """What the step itself is to be trained by, in the place of what was in force. Only its algorithm
    differs."""
    key: str | None = None
    """File with the key that signs the run's checkpoints; without one no checkpoint can be used."""
    from_start: bool = False
    """Whether to begin with the model itself, though a checkpoint is kept."""
    models: str
    """Folder where downloaded models are kept."""

    def write(self, folder: Path) -> None:
        """Leave it in `folder` for the learner."""
        (folder / REQUEST).write_text(self.model_dump_json(by_alias=True, exclude_none=True))

    @classmethod
    def read(cls, folder: Path) -> ReplayRequest:
        """What `write` left there."""
        return cls.model_validate_json((folder / REQUEST).read_bytes())


class TensorDifference(Record):
    """In what the tensors of two versions differ."""

    differing: int = Field(ge=0)
    """How many do."""
    total: int = Field(ge=0)
    """How many there are."""
    max_abs: float = Field(ge=0)
    """Largest difference of an element, over the tensors that both have in one shape."""
    max_at: str | None = None
    """Tensor that has it."""
    first: str | None = None
    """First tensor that differs, by name."""


class ReplayResult(Record):
    """What came of it."""

    step: int
    start: int | None
    """Step of the checkpoint that it began with; None: the model itself."""
    trained: list[int]
    """Steps that were trained again, the last one being `step`."""
    processes: int
    changed: bool
    """Whether the step was trained by another algorithm, so that other weights are to be expected."""
    digest: str
    """SHA-256 of the new weights' `file`."""
    recorded_digest: str | None
    """The same of the weights that the run published; None where its report does not say it."""
    file: str
    """Which file of published weights the digests are of."""
    same: bool | None
    """Whether the weights are the same; None where that cannot be told."""
    first_difference: int | None = None
    """The first step before `step`, step 0 included where it begins with the model itself, whose weights were
    not those that the run published."""
    difference: TensorDifference | None = None
    """Where the weights differ and the run's are kept: in what."""
    recorded: Figures
    """The step's figures, as the run has them."""
    replayed: Figures
    """The same of the step as it was trained again."""
    weights: str
    """Folder of the new weights."""
