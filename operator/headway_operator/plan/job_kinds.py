"""Lists every kind of job that the operator runs."""

from __future__ import annotations

from typing import Final

from headway_api.document import Json
from headway_operator.plan.evaluation import Evaluation
from headway_operator.plan.job_kind import JobKind
from headway_operator.plan.training import Training

JOB_KINDS: Final[dict[str, JobKind]] = {
    kind.model.model_fields["kind"].default: kind for kind in (Training(), Evaluation())
}


def job_kind_of(raw: Json) -> JobKind:
    """The kind of a stored job."""
    return JOB_KINDS[raw["kind"]]
