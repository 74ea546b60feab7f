"""Every kind of job the operator runs."""

from __future__ import annotations

from typing import Final

from headway_api.document import Json
from headway_operator.plan.evaluation import Evaluation
from headway_operator.plan.subject import Subject
from headway_operator.plan.training import Training

SUBJECTS: Final[dict[str, Subject]] = {
    subject.model.model_fields["kind"].default: subject for subject in (Training(), Evaluation())
}


def subject_of(raw: Json) -> Subject:
    """The Subject of a stored job."""
    return SUBJECTS[raw["kind"]]
