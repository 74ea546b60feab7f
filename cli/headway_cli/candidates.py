"""Resolves the models and weights of an evaluation's candidates before the job is applied. Pure."""

from __future__ import annotations

from collections.abc import Callable

from headway_api.document import Json
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.status import ResolvedCandidate
from headway_cli.local.manifest import ManifestError
from headway_operator.plan.candidates import Missing, conflicts, numbered, resolve

Trained = Callable[[str], Json]
"""Returns the training job of a name, as an API server has it; raises ManifestError if there is none."""


def resolved(spec: RLEvalJobSpec, trained: Trained) -> tuple[ResolvedCandidate, ...]:
    """The candidates as the operator will resolve them. Weights that do not exist yet are assumed to appear.

    Raises:
        ManifestError: a candidate will have no weights, or cannot share servers with the others.
    """
    jobs: dict[str, Json] = {}
    for each in spec.candidates:
        if (wanted := each.checkpoint) is not None:
            before = jobs.get(wanted.job) or trained(wanted.job)
            jobs[wanted.job] = with_weights(before, wanted.step or 0)
    outcomes = resolve(spec, jobs)
    if missing := [each.message for each in outcomes.values() if isinstance(each, Missing)]:
        raise ManifestError("; ".join(missing))
    found = numbered([each for each in outcomes.values() if isinstance(each, ResolvedCandidate)])
    if wrong := conflicts(spec, found):
        raise ManifestError("; ".join(wrong))
    return found


def with_weights(job: Json, step: int) -> Json:
    """A copy of `job` whose status names weights of step `step` or later, and best weights.

    Args:
        job: a training job with its status.
        step: smallest step of the newest weights.
    """
    status = job.get("status") or {}
    checkpoints = status.get("checkpoints") or {}
    newest = checkpoints.get("adapter") or {
        "step": 0,
        "uri": f"{job['spec']['output']['uri']}/weights/000000",
    }
    if newest["step"] < step:
        newest = {"step": step, "uri": f"{newest['uri'].rpartition('/')[0]}/{step:06d}"}
    return {
        **job,
        "status": {**status, "checkpoints": {"best": newest, **checkpoints, "adapter": newest}},
    }
