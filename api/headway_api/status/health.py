"""Signals, the pause, and remedies."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.field_types import Count, Decimal, Word
from headway_api.signals import SignalState
from headway_api.status.common import Text


class Signal(StatusModel):
    """A signal that training goes wrong."""

    name: Word
    """Name of the signal; docs/signals.md explains each."""
    state: SignalState
    """Suspect: the value is beyond its threshold, but not for long enough. Raised: it has been beyond its
    threshold for long enough. Unknown: too few steps have the value."""
    since: Count = 0
    """First step of this state."""
    value: Word | None = None
    """The value that is judged, with its 95 % interval if it has one."""
    threshold: Word | None = None
    """What the value is compared with."""
    message: Text = ""
    """What was observed, and the first thing to change."""


class Pause(StatusModel):
    """The job stopped training at a signal, and waits for a person."""

    signal: Word
    """The most severe signal at which it stopped."""
    signals: Annotated[list[Word], Field(max_length=32, default_factory=list)]
    """Signals of spec.collapse.signals that were raised at this time, or before the pods had ended. The job
    stops for the same signal again only after the signal was cleared and raised again."""
    step: Count
    """The newest step that was completed."""
    time: datetime
    """When training stopped. It identifies the pause, because a step can occur twice."""
    message: Text = ""
    """What was observed, with the numbers, and the first thing to change."""
    resume: Text = ""
    """The command that resumes the job."""


RemedyState = Literal["Watching", "Kept", "Undone", "Replaced", "Refused"]
"""Result of a remedy; `Remediation.state` explains each."""


class RemedyMeasurements(StatusModel):
    """What was measured of a job at one moment."""

    reward: Word | None = None
    """Mean training reward of the last steps, at most ten, with its 95 % interval."""
    steps: Count | None = None
    """Number of steps in this mean."""
    validated_step: Count | None = None
    """Step of the newest validation. In `after`, only validations since the remedy count."""
    external_score: Decimal | None = None
    """External score of this validation."""


class Remediation(StatusModel):
    """A change to the running job, made because of a signal or a person's order."""

    number: Count
    """Ordinal number of this change in the job. Refused changes have one too."""
    step: Count
    """The step that made the change. Nothing was trained in it."""
    remedy: Word
    """Name of the remedy; docs/remedies.md explains each."""
    signal: Word | None = None
    """Signal that caused the remedy. Absent if a person ordered it."""
    order: Word | None = None
    """Text of the annotation with which a person ordered it."""
    action: Text
    """What was changed, in the terms of the spec."""
    state: RemedyState
    """Watching: the job is watched for 25 steps. Kept: the change stays. Undone: the change was undone.
    Replaced: another remedy was applied before the watch ended; the change stays. Refused: the learner could
    not make it."""
    restored_step: Count | None = None
    """The step to whose weights the job went back."""
    watched_until: Count | None = None
    """The last step of the watch. Absent while the watch runs."""
    before: RemedyMeasurements | None = None
    """What was measured when the remedy was decided."""
    after: RemedyMeasurements | None = None
    """What was measured when the watch ended."""
    message: Text = ""
    """What was observed when the remedy was decided; then why it was kept, undone, replaced or refused."""


class RemedyOrder(StatusModel):
    """State of a person's newest order, the annotation headway.dev/remedy."""

    order: Word
    """Text of the annotation. The same text is carried out once; NAME@2 repeats it."""
    state: Literal["Waiting", "Taken", "Refused"]
    """Waiting: the learner is in the middle of a step, or a validation delays the change. Taken: the change
    is in remediations. Refused: the change does not apply, or the learner could not make it."""
    step: Count | None = None
    """The step that made the change, or after which it was refused."""
    message: Text | None = None
    """Why it was refused."""
