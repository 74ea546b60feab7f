"""Decides whether a job is paused, and whether a person has ended the pause. Pure.

If a raised signal pauses the job, the coordinator writes that to `status.pause`. The job then has no pods, as
if its spec said `suspend`, until its annotation `headway.dev/resume` names the pause. (The operator sets no
`suspend`, since only people write the spec.) The annotation takes effect once every pod is gone, since a
coordinator that paused a job keeps it paused. Then the operator writes `status.resumedPause`, which ends the
pause permanently, whatever happens to the annotation.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from headway_api import names
from headway_api.conditions import ConditionType, is_true
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob
from headway_api.status import Pause

SHOWN: Final = 64
"""Maximum characters of an annotation that a message repeats."""


def current_pause(job: RLTrainingJob | RLEvalJob) -> Pause | None:
    """The pause because of which a job has no pods; None if there is none."""
    return None if is_resumed(job) else _unended(job)


def is_resumed(job: RLTrainingJob | RLEvalJob) -> bool:
    """Whether the pause of a job ends now, although its status does not say so yet."""
    return is_named(job) and is_true(job.status.conditions, ConditionType.SUSPENDED)


def is_named(job: RLTrainingJob | RLEvalJob) -> bool:
    """Whether a person has asked to end the job's current pause."""
    found = _unended(job)
    return found is not None and _moment(_annotation(job)) == found.time


def ended(job: RLTrainingJob) -> datetime | None:
    """The time of the last pause that has ended; None if no pause has."""
    found = job.status.pause
    return found.time if found is not None and is_resumed(job) else job.status.resumed_pause


def words(job: RLTrainingJob | RLEvalJob, found: Pause) -> str:
    """The message about a paused job: why it paused, how to resume it, and why it has not resumed."""
    text = f"paused at step {found.step}: {found.signal}: {found.message}; to go on: {found.resume}"
    written = _annotation(job)
    if written is None or is_named(job):
        return text
    return f"{text}; {names.ANNOTATION_RESUME} is {written[:SHOWN]!r}, which is not the time of this pause"


def words_of_resumed(job: RLTrainingJob | RLEvalJob) -> str:
    """The message about a job whose pause ends now; empty for any other job."""
    found = _unended(job)
    if found is None or not is_resumed(job):
        return ""
    return f"the pause of {found.time:%Y-%m-%dT%H:%M:%SZ} ({found.signal} at step {found.step}) was ended"


def _unended(job: RLTrainingJob | RLEvalJob) -> Pause | None:
    if not isinstance(job, RLTrainingJob) or (found := job.status.pause) is None:
        return None
    return None if found.time == job.status.resumed_pause else found


def _annotation(job: RLTrainingJob | RLEvalJob) -> str | None:
    return job.metadata.annotations.get(names.ANNOTATION_RESUME)


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return None
