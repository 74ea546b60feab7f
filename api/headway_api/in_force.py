"""The settings that a running job trains with instead of its spec's, and the directive that changes them.

A change takes effect between two steps. The coordinator gives the learner a `Batch` without groups and with a
`Directive`. Its `in_force` applies from that step on. The learner carries out the directive, publishes its
weights as the weights of that step, and reports the step without groups. `headway_api.remedies` combines a
spec with the settings in force; docs/adr/0025 says why a remedy is a step.
"""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from headway_api.record import Record
from headway_api.spec.algorithm import Clip, Kl, Method
from headway_api.spec.trust import RemedyName

RefusalReason = Literal[
    "TakenBefore", "NotApplicable", "AdapterCannotNarrow", "NothingToRestore", "TooLittleMemory"
]
"""Why a learner refused a directive, before it changed anything.

TakenBefore: its number is not above the one in force, so it was carried out already.
NotApplicable: the spec with the change is not valid, or names a function that does not exist.
AdapterCannotNarrow: the adapter would become smaller, which changes what it computes.
NothingToRestore: no named checkpoint is complete and fits.
TooLittleMemory: the frozen copy of the base model does not fit into the memory that is left.
"""


class AdapterSize(Record):
    """Rank and scale of the LoRA adapter, within the bounds of spec.model.lora."""

    rank: int = Field(ge=1, le=256)
    alpha: int = Field(ge=1, le=1024)


class InForce(Record):
    """The settings in force. An absent field has the value of the spec.

    Every value is absolute, never a difference, so applying it twice has the same result as once.
    """

    number: int = Field(default=0, ge=0)
    """Number of the directive that led here; a later directive has a higher number. 0: there was none, and
    everything is as in the spec."""
    loss: Method | None = None
    """If set, `clip` applies as given here; an absent `clip` means the default bounds of this loss."""
    clip: Clip | None = None
    kl: Kl | None = None
    learning_rate: float | None = Field(default=None, gt=0, le=0.01)
    """Replaces spec.optimizer.learningRate; the warm-up continues towards this rate."""
    adapter: AdapterSize | None = None
    group_size: int | None = Field(default=None, ge=2, le=32)
    """The coordinator applies this, the batch size and the staleness bound; the learner takes any batch."""
    batch_size: int | None = Field(default=None, ge=1, le=4096)
    max_steps_off_policy: int | None = Field(default=None, ge=0, le=10)

    @model_validator(mode="after")
    def _numbered(self) -> Self:
        if self.number == 0 and self.changed:
            raise ValueError(f"{', '.join(sorted(self.changed))} in force by no directive: give its number")
        return self

    @property
    def changed(self) -> frozenset[str]:
        """Names of the fields that differ from the spec."""
        return frozenset(name for name in CHANGEABLE if getattr(self, name) is not None)

    def set_apart(self, other: InForce) -> frozenset[str]:
        """Names of the fields in which these settings and `other` differ."""
        return frozenset(name for name in CHANGEABLE if getattr(self, name) != getattr(other, name))


CHANGEABLE: Final = tuple(name for name in InForce.model_fields if name != "number")


class Directive(Record):
    """What the learner does instead of training: it applies `Batch.in_force`, and may go back to an earlier
    step."""

    remedy: RemedyName
    """The remedy that the directive belongs to, for people. The learner uses only the other fields."""
    undo: bool = False
    """Whether the directive undoes the remedy."""
    restore: list[int] = Field(default_factory=list)
    """Steps to go back to, in order of preference. Weights and optimizer are restored from the first step
    whose checkpoint is complete and whose adapter is not wider than the one in force. Empty: training
    continues from the present step."""


class DirectiveRefusal(Record):
    """Why a directive was refused. The step still counts, and it changed nothing."""

    reason: RefusalReason
    message: str
    """For a person: what is wrong and what to change."""
