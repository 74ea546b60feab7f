"""Resolves the candidates of an RLEvalJob to models and weights. Pure.

The operator chooses the weights once, before it creates anything, and keeps the choice in the status. So an
evaluation measures the same weights even if the training job publishes others, is deleted or created again.

If a candidate's training job or weights do not exist yet, the evaluation waits for them. It waits until it is
spec.pendingDeadlineSeconds old, not counting suspended time. It then continues with the other candidates, and
fails if there are none. It does not wait if the training job ended without the weights, or never validates.

Candidates with the same base, revision and dtype share a set of rollout servers, and so their context length.
The tokens of a set also have the same prices. So full weights from a training job share no set with a plain
model at the same address. Sets are numbered in the order of the candidates. The operator gives up a set that
cannot start, and says so in the status of its candidates. The coordinator then measures the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from headway_api.conditions import ConditionType, Reason, find, is_finished
from headway_api.document import Json
from headway_api.mistake_words import message
from headway_api.remedies import largest_rank
from headway_api.spec.candidate import BASE_SUFFIX, Candidate, CandidateCheckpoint
from headway_api.spec.evaluation import RLEvalJob, RLEvalJobSpec
from headway_api.spec.model import ModelSpec
from headway_api.spec.trust import CollapseSpec
from headway_api.status import ResolvedCandidate, RLTrainingJobStatus, Weights
from headway_operator.plan.context import Context
from headway_operator.plan.health import Issue, set_failure
from headway_operator.plan.observed import Observed
from headway_operator.plan.reading import training_status

MISSING = (Reason.CANDIDATE_MISSING, Reason.CHECKPOINT_MISSING)
"""Reasons of CandidatesResolved when it is False."""
MAX_CHARACTERS: Final = 1024
"""Maximum characters of a text in the status."""


@dataclass(frozen=True)
class Missing:
    """A candidate that has no weights yet."""

    reason: Reason
    message: str
    """The field, what is missing, and how to fix it."""
    final: bool = False
    """The weights will never exist, as far as the status shows."""


Outcome = ResolvedCandidate | Missing


def sources(raw: Json) -> tuple[str, ...]:
    """Names of the training jobs that a stored evaluation measures; empty once its candidates are chosen."""
    if raw.get("status", {}).get("candidates"):
        return ()
    jobs = [item["checkpoint"]["job"] for item in raw["spec"].get("candidates", []) if "checkpoint" in item]
    return tuple(dict.fromkeys(jobs))


def resolve(spec: RLEvalJobSpec, jobs: Mapping[str, Json]) -> dict[str, Outcome]:
    """Name of each candidate, including those that `withBase` adds -> its model and weights, in order.

    `jobs` are the existing training jobs, by name. Server sets are not numbered yet.
    """
    found: dict[str, Outcome] = {}
    for candidate in spec.candidates:
        if candidate.checkpoint is None:
            found[candidate.name] = _plain(candidate)
            continue
        found[candidate.name] = _trained(candidate.name, candidate.checkpoint, jobs)
        if candidate.checkpoint.with_base:
            name = candidate.name + BASE_SUFFIX
            found[name] = _untrained(name, candidate.name, candidate.checkpoint.job, jobs)
    return found


def numbered(found: list[ResolvedCandidate]) -> tuple[ResolvedCandidate, ...]:
    """The candidates with the numbers of the server sets that sample for them."""
    sets: dict[tuple[str | None, ...], int] = {}
    return tuple(
        candidate
        if candidate.base is None
        else candidate.model_copy(update={"server_set": sets.setdefault(_served(candidate), len(sets))})
        for candidate in found
    )


def conflicts(spec: RLEvalJobSpec, found: tuple[ResolvedCandidate, ...]) -> list[str]:
    """Messages about candidates that would share servers but cannot: a server has one context length."""
    first: dict[int, ResolvedCandidate] = {}
    messages = []
    for candidate in found:
        if candidate.server_set is None:
            continue
        other = first.setdefault(candidate.server_set, candidate)
        if other.context_length != candidate.context_length:
            messages.append(_conflict(spec, other, candidate))
    return messages


def lacking(outcomes: Mapping[str, Outcome]) -> Issue | None:
    """An issue that names everything that candidates lack; None if they lack nothing."""
    missing = [item for item in outcomes.values() if isinstance(item, Missing)]
    if not missing:
        return None
    return Issue(missing[0].reason, "; ".join(dict.fromkeys(item.message for item in missing)))


def waits_until(job: RLEvalJob, outcomes: Mapping[str, Outcome], now: datetime) -> datetime | None:
    """When a job stops waiting for missing weights; None if there is nothing to wait for."""
    if not any(isinstance(item, Missing) and not item.final for item in outcomes.values()):
        return None
    end = (job.metadata.creation_timestamp or now) + timedelta(seconds=job.spec.pending_deadline_seconds)
    return end + _suspended(job, now)


def unresolved(context: Context) -> dict[str, str]:
    """Candidates that the job continues without: name -> why.

    The result depends only on the spec and on the chosen candidates. So the job's processes always receive
    the same result.
    """
    chosen = {candidate.name for candidate in context.candidates}
    reasons: dict[str, str] = {}
    for candidate in context.evaluation.spec.candidates:
        if (wanted := candidate.checkpoint) is None:
            continue
        text = (
            f"spec.candidates[{candidate.name}].checkpoint: RLTrainingJob {wanted.job} had no such weights "
            "when this job began (condition CandidatesResolved); measure them in a new RLEvalJob once "
            "they exist"
        )
        names = [candidate.name, candidate.name + BASE_SUFFIX][: 1 + wanted.with_base]
        reasons |= {name: text for name in names if name not in chosen}
    return reasons


def kept(context: Context) -> Context:
    """The job with the candidates that its status lists."""
    return replace(context, candidates=tuple(context.evaluation.status.candidates))


def without_lost_sets(context: Context, observed: Observed) -> Context:
    """The job, with the candidates of server sets that cannot start marked as lost. Only these fail."""
    lost = {
        number: issue
        for number in wanted_sets(context)
        if (issue := set_failure(context, observed, number)) is not None
    }
    return replace(context, candidates=tuple(_lost(each, lost) for each in context.candidates))


def _lost(candidate: ResolvedCandidate, lost: Mapping[int, Issue]) -> ResolvedCandidate:
    issue = None if candidate.server_set is None else lost.get(candidate.server_set)
    if issue is None:
        return candidate
    words = {"lost_reason": str(issue.reason), "lost_message": issue.message[:MAX_CHARACTERS]}
    return candidate.model_copy(update=words)


def as_chosen(context: Context) -> tuple[ResolvedCandidate, ...]:
    """The candidates as the job's processes receive them, the same for the job's lifetime."""
    return tuple(
        each.model_copy(update={"lost_reason": None, "lost_message": None}) for each in context.candidates
    )


def wanted_sets(context: Context) -> tuple[int, ...]:
    """Server sets that are needed now: the coordinator's list, at most spec.parallelism of them."""
    job = context.evaluation
    chosen = context.candidates or job.status.candidates
    known = {candidate.server_set for candidate in chosen if candidate.lost_reason is None}
    listed = job.status.progress.server_sets if job.status.progress else []
    return tuple(number for number in dict.fromkeys(listed) if number in known)[: job.spec.parallelism]


def _suspended(job: RLEvalJob, now: datetime) -> timedelta:
    known = find(job.status.conditions, ConditionType.SUSPENDED)
    open_suspension = now - known.last_transition_time if known and known.status == "True" else timedelta()
    return timedelta(seconds=job.status.suspended_seconds or 0) + open_suspension


def _served(candidate: ResolvedCandidate) -> tuple[str | None, ...]:
    base = None if candidate.base is None else candidate.base.rstrip("/")
    return base, candidate.revision, candidate.dtype, candidate.trained_from


def _plain(candidate: Candidate) -> ResolvedCandidate:
    """Resolve a candidate that names no training job."""
    if candidate.endpoint is not None:
        return ResolvedCandidate(name=candidate.name, kind="Endpoint")
    if candidate.rescore is not None:
        return ResolvedCandidate(name=candidate.name, kind="Rescore", uri=candidate.rescore.uri)
    model = candidate.model
    assert model is not None
    return ResolvedCandidate(
        name=candidate.name,
        kind="Model",
        base=model.base,
        revision=model.revision,
        dtype=model.dtype,
        context_length=model.context_length,
    )


def _untrained(name: str, candidate: str, job: str, jobs: Mapping[str, Json]) -> Outcome:
    """Resolve the candidate that `withBase` adds: the base of a training job's model."""
    model = _model(candidate, job, jobs)
    if isinstance(model, Missing):
        return model
    return ResolvedCandidate(
        name=name,
        kind="Model",
        base=model.base,
        revision=model.revision,
        dtype=model.dtype,
        context_length=model.context_length,
    )


def _trained(name: str, wanted: CandidateCheckpoint, jobs: Mapping[str, Json]) -> Outcome:
    """Resolve a candidate with weights that a training job published."""
    model = _model(name, wanted.job, jobs)
    if isinstance(model, Missing):
        return model
    weights = _weights(name, wanted, jobs[wanted.job])
    if isinstance(weights, Missing):
        return weights
    rank = _largest_rank(name, wanted.job, model, jobs)
    if isinstance(rank, Missing):
        return rank
    lora = model.effective_lora
    return ResolvedCandidate(
        name=name,
        kind="Adapter" if lora else "Weights",
        base=model.base if lora else weights.uri,
        trained_from=None if lora else model.base,
        revision=model.revision if lora else None,
        dtype=model.dtype,
        context_length=model.context_length,
        lora_rank=rank,
        job=wanted.job,
        step=weights.step,
        uri=weights.uri,
    )


def _model(candidate: str, job: str, jobs: Mapping[str, Json]) -> ModelSpec | Missing:
    field = f"spec.candidates[{candidate}].checkpoint.job"
    if job not in jobs:
        text = f"{field}: there is no RLTrainingJob {job} in this namespace; create it, or name another job"
        return Missing(Reason.CANDIDATE_MISSING, text)
    try:
        return ModelSpec.model_validate(jobs[job]["spec"].get("model", {}))
    except ValidationError as invalid:
        return _unreadable(field, job, "model", invalid)


def _largest_rank(
    candidate: str, job: str, model: ModelSpec, jobs: Mapping[str, Json]
) -> int | Missing | None:
    """Largest rank of the job's adapters, which a remedy may have raised; None if it has none."""
    try:
        return largest_rank(model, CollapseSpec.model_validate(jobs[job]["spec"].get("collapse", {})))
    except ValidationError as invalid:
        return _unreadable(f"spec.candidates[{candidate}].checkpoint.job", job, "collapse", invalid)


def _unreadable(field: str, job: str, block: str, invalid: ValidationError) -> Missing:
    text = f"{field}: spec.{block} of RLTrainingJob {job} cannot be read ({message(invalid.errors()[0])})"
    return Missing(Reason.CANDIDATE_MISSING, f"{text}; name another job")


def _weights(name: str, wanted: CandidateCheckpoint, job: Json) -> Weights | Missing:
    status = training_status(job)
    field, ended = f"spec.candidates[{name}].checkpoint", is_finished(status.conditions)
    newest = status.checkpoints.adapter if status.checkpoints else None
    if wanted.step is not None:
        return _of_step(field, wanted, status, newest, ended)
    if wanted.which == "latest":
        if newest is None:
            return _no_weights(f"{field}.job", wanted.job, ended)
        return newest if ended else _kept(newest, status, job["spec"])
    best = status.checkpoints.best if status.checkpoints else None
    if best is not None:
        return best
    if not _validates(job["spec"]):
        text = f"RLTrainingJob {wanted.job} runs no validations, so it has no best weights"
        return _no_checkpoint(f"{field}.which", f"{text}; write which: latest", final=True)
    text = (
        f"RLTrainingJob {wanted.job} {'ended before it had validated' if ended else 'has not validated yet'}"
    )
    return _no_checkpoint(f"{field}.which", f"{text}; wait for it, or write which: latest", final=ended)


def _kept(newest: Weights, status: RLTrainingJobStatus, spec: Json) -> Weights:
    """The newest weights of a running job that will still exist when servers load them.

    The weights of a validated step are kept permanently. Before the first validated step, the weights of the
    newest checkpoint are used. They are kept for spec.checkpoints.keepLast more checkpoints. Full weights of
    a checkpoint are not used, since its folder may lack some of them.
    """
    folder, checkpoints = newest.uri.rpartition("/")[0], status.checkpoints
    best = checkpoints.best.step if checkpoints and checkpoints.best else 0
    step = max(best, status.validation.step if status.validation else 0)
    if step == 0 and "full" not in spec.get("model", {}):
        step = checkpoints.latest.step if checkpoints and checkpoints.latest else 0
    return Weights(step=step, uri=f"{folder}/{step:06d}") if 0 < step < newest.step else newest


def _of_step(
    field: str, wanted: CandidateCheckpoint, status: RLTrainingJobStatus, newest: Weights | None, ended: bool
) -> Weights | Missing:
    """The weights of a step. The operator reads no artifact store, so they may no longer exist."""
    assert wanted.step is not None
    folder = _weights_folder(status, newest)
    uri = None if folder is None else f"{folder}/{wanted.step:06d}"
    if uri is not None and wanted.uri is not None and wanted.uri.rstrip("/") != uri:
        return _other_weights(field, wanted, uri)
    if newest is None or uri is None:
        return _no_weights(f"{field}.job", wanted.job, ended)
    if wanted.step > newest.step:
        so_far = f"RLTrainingJob {wanted.job} has weights up to step {newest.step}"
        text = (
            f"{so_far}; write a step up to that" if ended else f"{so_far} so far; wait for step {wanted.step}"
        )
        return _no_checkpoint(f"{field}.step", text, final=ended)
    return Weights(step=wanted.step, uri=uri)


def _weights_folder(status: RLTrainingJobStatus, newest: Weights | None) -> str | None:
    """The folder to which a training job publishes; None until its status names it."""
    if newest is not None:
        return newest.uri.rpartition("/")[0]
    root = status.artifacts.uri if status.artifacts else None
    return None if root is None else f"{root}/weights"


def _other_weights(field: str, wanted: CandidateCheckpoint, uri: str) -> Missing:
    """The job was created again and publishes elsewhere, so the wanted weights will never appear."""
    text = (
        f"step {wanted.step} of RLTrainingJob {wanted.job} is at {uri}, but {wanted.uri} belongs to another "
        f"run or step; write {uri} to measure it, or name another candidate"
    )
    return _no_checkpoint(f"{field}.uri", text, final=True)


def _validates(spec: Json) -> bool:
    evaluation = spec.get("evaluation", {})
    rows = spec.get("data", {}).get("validation")
    return bool(rows and (evaluation.get("everySteps", 10) or evaluation.get("atStart", True)))


def _no_weights(field: str, job: str, ended: bool) -> Missing:
    text = f"RLTrainingJob {job} {'ended without weights' if ended else 'has published no weights yet'}"
    return _no_checkpoint(
        field, f"{text}; {'name another job' if ended else 'wait for its first'}", final=ended
    )


def _no_checkpoint(field: str, text: str, *, final: bool) -> Missing:
    return Missing(Reason.CHECKPOINT_MISSING, f"{field}: {text}", final)


def _conflict(spec: RLEvalJobSpec, one: ResolvedCandidate, other: ResolvedCandidate) -> str:
    plain = {candidate.name for candidate in spec.candidates if candidate.model is not None}
    # Name the plain model: only its contextLength can be changed.
    if other.name not in plain and one.name in plain:
        one, other = other, one
    what = f"{other.name} has {_length(other)}, but {one.name}, on the same servers, has {_length(one)}"
    if other.name in plain and one.context_length is not None:
        return f"spec.candidates[{other.name}].model.contextLength: {what}; write {one.context_length}"
    if one.name in plain and other.name in plain:
        return f"spec.candidates[{one.name}].model.contextLength: {what}; write {other.context_length}"
    if other.name in plain:
        return f"spec.candidates[{other.name}].model.contextLength: {what}; leave it out"
    field = f"spec.candidates[{other.name.removesuffix(BASE_SUFFIX)}].checkpoint.job"
    return f"{field}: {what}; measure them in RLEvalJobs of their own"


def _length(candidate: ResolvedCandidate) -> str:
    length = candidate.context_length
    return "the model's own context length" if length is None else f"a context length of {length}"
