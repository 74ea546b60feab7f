"""Chooses the weights for `spec.model.warmStart.job`. Pure.

The operator chooses the weights once, before it creates anything, and keeps the choice in the status. So the
starting weights stay the same if the other job is deleted or created again, or this job restarts. The job's
own processes receive the URI.

The operator sees jobs that are applied together in any order. So a job waits for a named job that does not
exist yet, and a refusal because of another job is never final.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from headway_api.conditions import is_finished
from headway_api.document import Json
from headway_api.spec.model import WarmStart
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import RLTrainingJobStatus, StartingWeights, Weights
from headway_operator.plan.context import Context
from headway_operator.plan.reading import training_status

FIELD: Final = "spec.model.warmStart.job"
INSTEAD: Final = "name another job, or give the uri of weights"
SOONER: Final = "to start sooner, give the uri of weights instead"


def source(raw: Json) -> str | None:
    """Name of the job that a stored job wants to start from; None once the weights are chosen."""
    name: str | None = raw["spec"].get("model", {}).get("warmStart", {}).get("job")
    return None if raw.get("status", {}).get("warmStart") else name


def refusals(context: Context, other: Json | None, now: datetime) -> list[str]:
    """Why the job cannot start from the job it names; `other` is that job's current state."""
    name = _wanted(context)
    if name is None:
        return []
    if name == context.name:
        return [f"{FIELD}: a job cannot start from itself; {INSTEAD}"]
    if other is None:
        return _not_come(context, name, now)
    status = training_status(other)
    if not is_finished(status.conditions):
        if source(other) == context.name:
            itself = f"{name} waits for {context.name}, so neither starts"
            return [f"{FIELD}: {itself}; have one of the two {INSTEAD}"]
    elif _exported(status) is None:
        return [f"{FIELD}: {name} ended without weights; {INSTEAD}"]
    model, theirs = context.training.spec.model, other["spec"].get("model", {})
    if "base" not in theirs:
        return [f"{FIELD}: spec.model of {name} cannot be read; {INSTEAD}"]
    if (model.base, model.revision) != (theirs["base"], theirs.get("revision")):
        return [
            f"{FIELD}: {name} trained {_named(theirs['base'], theirs.get('revision'))}, not "
            f"{_named(model.base, model.revision)}; set spec.model.base and revision to its own, or {INSTEAD}"
        ]
    return []


def waits_for(context: Context, other: Json | None) -> str | None:
    """The message about the job while the job it names, `other`, does not exist or has not ended."""
    name = _wanted(context)
    if name is None:
        return None
    if other is None:
        return (
            f"{FIELD}: there is no RLTrainingJob {name} in this namespace yet. This job starts when {name} "
            f"has ended; {SOONER}"
        )
    if is_finished(training_status(other).conditions):
        return None
    return f"{FIELD}: this job starts when {name} has ended; {SOONER}"


def settled(context: Context, other: Json | None) -> Context:
    """The job with its starting weights: those in the status, else the best or the last of `other`."""
    name, chosen = _wanted(context), context.training.status.warm_start
    if name is not None and other is not None:
        weights = _exported(training_status(other))
        chosen = StartingWeights(job=name, step=weights.step, uri=weights.uri) if weights else None
    return replace(context, warm_start=chosen)


def resolved_spec(spec: RLTrainingJobSpec, weights: StartingWeights | None) -> RLTrainingJobSpec:
    """The spec for the job's processes, which names the URI of the weights instead of a job."""
    if weights is None:
        return spec
    model = spec.model.model_copy(update={"warm_start": WarmStart(uri=weights.uri)})
    return spec.model_copy(update={"model": model})


def _not_come(context: Context, name: str, now: datetime) -> list[str]:
    """Refuse this job if the job it names does not exist after `pendingDeadlineSeconds`.

    A refused job has not failed and uses no resources. It starts when the named job exists and has ended.
    """
    patience, created = context.spec.pending_deadline_seconds, context.job.metadata.creation_timestamp
    if created is None or now - created <= timedelta(seconds=patience):
        return []
    return [
        f"{FIELD}: there is no RLTrainingJob {name} in this namespace, and this job has waited longer than "
        f"spec.pendingDeadlineSeconds ({patience}); create {name}, {INSTEAD}"
    ]


def _wanted(context: Context) -> str | None:
    wanted = context.training.spec.model.warm_start
    settled = context.training.status.warm_start is not None
    return None if wanted is None or settled else wanted.job


def _exported(status: RLTrainingJobStatus) -> Weights | None:
    return None if status.checkpoints is None else status.checkpoints.best or status.checkpoints.adapter


def _named(base: str, revision: str | None) -> str:
    return f"{base} at {revision}" if revision else base
