"""Signals of collapse, the pause, and remedies."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.signals import SignalState
from headway_api.spec.types import Decimal
from headway_api.status.common import Count, Text, Word


class Signal(StatusModel):
    """A sign that training goes wrong."""

    name: Word
    """Which one; docs/signals.md explains each."""
    state: SignalState
    """Suspect: over its threshold, not yet for long. Raised: for long enough. Unknown: too few steps say
    anything."""
    since: Count = 0
    """Step since which it is in this state."""
    value: Word | None = None
    """The figure that is judged, with its 95 % interval where it has one."""
    threshold: Word | None = None
    """What it is held against."""
    message: Text = ""
    """What was seen, and the first thing to change."""


class Pause(StatusModel):
    """Training was stopped at a sign of collapse, and waits for a person."""

    signal: Word
    """The sign it was stopped for, the gravest one."""
    signals: Annotated[list[Word], Field(max_length=32, default_factory=list)]
    """Signs of spec.collapse.signals that were raised then, or before the pods were gone. The job does not
    stop for them again unless they are cleared and raised anew."""
    step: Count
    """The newest step that was taken."""
    time: datetime
    """When it was stopped. Names the pause: a step may come a second time."""
    message: Text = ""
    """What was seen, with the numbers, and the first thing to change."""
    resume: Text = ""
    """The command that has the job go on."""


RemedyState = Literal["Watching", "Kept", "Undone", "Replaced", "Refused"]
"""What became of a remedy; `Remediation.state` explains each."""


class RemedyFigures(StatusModel):
    """How a job did at a moment."""

    reward: Word | None = None
    """Mean training reward of the last steps, at most ten, with its 95 % interval."""
    steps: Count | None = None
    """How many steps."""
    validated_step: Count | None = None
    """Step of the newest validation. Of the figures after a remedy: of those made since."""
    external_score: Decimal | None = None
    """Its external score."""


class Remediation(StatusModel):
    """A change that was made to the running job: against a sign of collapse, or since a person ordered it."""

    number: Count
    """Which change of the job; those that the learner refused count too."""
    step: Count
    """The step it was made as: nothing was trained in it."""
    remedy: Word
    """Which remedy; docs/remedies.md explains each."""
    signal: Word | None = None
    """Sign of collapse that it is meant against. Absent where a person ordered it."""
    order: Word | None = None
    """The annotation by which a person ordered it."""
    action: Text
    """What was changed, in words of the spec."""
    state: RemedyState
    """Watching: for 25 steps. Kept: it stays. Undone: it was taken back. Replaced: another one was taken
    before its watch was over; what it changed stays. Refused: the learner could not do it."""
    restored_step: Count | None = None
    """The step whose weights the job went back to."""
    watched_until: Count | None = None
    """The last step of the watch. Absent while it is watched."""
    before: RemedyFigures | None = None
    """How the job did when it was decided."""
    after: RemedyFigures | None = None
    """How it did when the watch ended."""
    message: Text = ""
    """What was seen when it was decided; then why it was kept, taken back, replaced or refused."""


class RemedyOrder(StatusModel):
    """What became of the newest order of a person's, the annotation headway.dev/remedy."""

    order: Word
    """Its text. The same text is carried out once; NAME@2 repeats it."""
    state: Literal["Waiting", "Taken", "Refused"]
    """Waiting: the learner is in the middle of a step, or a validation holds it up. Taken: it is in
    remediations. Refused: it does not apply, or the learner could not do it."""
    step: Count | None = None
    """The step it was made as, or after which it was refused."""
    message: Text | None = None
    """Why it was refused."""
