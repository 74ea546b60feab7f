"""What a running job trains with in place of what its spec says, and the order that changes it.

A change takes effect between two steps: the coordinator hands the learner, in the place of a batch, a `Batch`
without groups and with a `Directive`. Its `in_force` is what holds from that step on. The learner does it,
publishes its weights as that step's, and reports the step without groups. `headway_api.remedies` says what a
spec and what is in force come to together; docs/adr/0025 says why a remedy is a step.
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
"""Why a learner did not do what a directive asks for, before it changed anything.

TakenBefore: its number is not above that of what is in force: it was taken already.
NotApplicable: the spec with what is to be in force is not valid, or names a function that there is not.
AdapterCannotNarrow: the adapter is to become smaller, which changes what it computes.
NothingToRestore: no checkpoint that was named is whole and fits.
TooLittleMemory: the frozen copy of the base model does not fit beside what is there.
"""


class AdapterSize(Record):
    """Rank and scale of the LoRA adapter, within the bounds of spec.model.lora."""

    rank: int = Field(ge=1, le=256)
    alpha: int = Field(ge=1, le=1024)


class InForce(Record):
    """What is trained with in place of what the spec says. What is absent is as the spec has it.

    Every value is the one that holds, never a difference: a learner that is brought here twice is where it
    was after the first time.
    """

    number: int = Field(default=0, ge=0)
    """Number of the directive that led here: of two, the later has the higher one. 0: none has been taken,
    and all is as the spec has it."""
    loss: Method | None = None
    """With it, `clip` is the one that holds, and absent stands for the bounds that go with the loss."""
    clip: Clip | None = None
    kl: Kl | None = None
    learning_rate: float | None = Field(default=None, gt=0, le=0.01)
    """In the place of spec.optimizer.learningRate: the warm-up goes on as it was, towards this one."""
    adapter: AdapterSize | None = None
    group_size: int | None = Field(default=None, ge=2, le=32)
    """This, batch size and lag are the coordinator's to act upon; the learner takes any batch."""
    batch_size: int | None = Field(default=None, ge=1, le=4096)
    max_steps_off_policy: int | None = Field(default=None, ge=0, le=10)

    @model_validator(mode="after")
    def _numbered(self) -> Self:
        if self.number == 0 and self.changed:
            raise ValueError(f"{', '.join(sorted(self.changed))} in force by no directive: give its number")
        return self

    @property
    def changed(self) -> frozenset[str]:
        """Names of the fields that are not as the spec has them."""
        return frozenset(name for name in CHANGEABLE if getattr(self, name) is not None)

    def set_apart(self, other: InForce) -> frozenset[str]:
        """Names of the fields in which the two differ."""
        return frozenset(name for name in CHANGEABLE if getattr(self, name) != getattr(other, name))


CHANGEABLE: Final = tuple(name for name in InForce.model_fields if name != "number")


class Directive(Record):
    """What to do instead of training: the change that `Batch.in_force` brings, and where to go on from."""

    remedy: RemedyName
    """Which remedy it is a part of, for those who read it; a learner acts upon the rest alone."""
    undo: bool = False
    """Whether it takes the remedy back."""
    restore: list[int] = Field(default_factory=list)
    """Steps, the one most wanted first: weights and optimizer become those of the first whose checkpoint is
    whole and has no wider adapter than is to be in force. Empty: training goes on from where it is."""


class DirectiveRefusal(Record):
    """Why a directive was not done. The step is taken all the same, and nothing has changed by it."""

    reason: RefusalReason
    message: str
    """For a person: what is wrong and what to change."""
