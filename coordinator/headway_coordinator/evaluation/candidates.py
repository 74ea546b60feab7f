"""Prepares a candidate's measurement: loads its tokenizer, its context length, and the proof of its weights.

If a candidate cannot be loaded, this raises a `CandidateError`, and the other candidates continue.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from headway_api import logs
from headway_api.artifacts import TEMPLATES, RunLayout, written
from headway_api.base_model import HUB, fetch
from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.records import PolicyVersion, StepReport, WeightsManifest
from headway_api.sandbox_api import ResetReply
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.model import ModelSpec
from headway_api.status import ResolvedCandidate
from headway_api.store import ObjectNotFoundError, Store, StoreDeniedError
from headway_api.stored import read
from headway_coordinator.faults import CandidateError
from headway_coordinator.preflight import calls, checks
from headway_coordinator.trajectory import render
from headway_coordinator.trajectory.render import Renderer
from headway_coordinator.trajectory.template import own_template

WEIGHTS_FOLDER: Final = re.compile(r"^(?P<root>.+)/weights/(?P<step>[0-9]{6,})$")
UNTRAINED: Final = PolicyVersion(incarnation=0, step=0)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Readable:
    """A model with its renderer, its context length and its chat template."""

    renderer: Renderer
    context_length: int
    template: str
    """The model's chat template."""


def field_of(candidate: str, below: str) -> str:
    """The path of a candidate's field in the spec, for error messages."""
    return f"spec.candidates[{candidate}].{below}"


def model_fields(name: str, spec: RLEvalJobSpec) -> tuple[str, str]:
    """The fields of the spec that set a candidate's model and its context length.

    A trained candidate, and the base model that is measured with it, take both from the training job.
    """
    asked = spec.entry_of(name)
    if asked.model is not None:
        return field_of(name, "model.base"), field_of(name, "model.contextLength")
    job = field_of(asked.name, "checkpoint.job")
    return job, job


def readable(
    candidate: ResolvedCandidate, spec: RLEvalJobSpec, first: ResetReply, store: Store, cache: Path
) -> Readable:
    """Load and check the model of a candidate that has rollout servers. Blocking: run it in a thread.

    Raises:
        CandidateError: the model or its chat template cannot be used, or an episode does not fit the context.
    """
    with _faults_of(candidate, spec):
        found = _loaded(candidate, spec, store, cache)
        calls.readable(first.tools, found.renderer, spec.agent.effective_builtin.tool_call_parser)
        for concern in calls.concerns(first.tools, found.renderer, builtin=spec.agent.is_builtin):
            logs.event(_log, "tool-calls", level=logging.WARNING, candidate=candidate.name, message=concern)
        field = "spec.evaluation.sampling.maxTokens"
        base, length = model_fields(candidate.name, spec)
        # A trained candidate has the context length of its training job's spec.
        length = length if length != base else checks.CONTEXT_LENGTH
        checks.fits(first, found.renderer, found.context_length, spec.agent, spec.max_tokens, field, length)
    return found


def readable_models(job: EvalConfig, store: Store, cache: Path) -> dict[str, Readable]:
    """Candidate with rollout servers -> its model. Blocking: run it in a thread.

    A candidate whose model cannot be loaded is absent, and fails later, when its servers would start. If the
    store or the hub does not answer, no further model is loaded, because that would delay the job's start.
    """
    found: dict[str, Readable] = {}
    known: dict[tuple[str | None, str | None, int | None], Readable] = {}
    for candidate in job.candidates:
        if candidate.base is None:
            continue
        key = candidate.base, candidate.revision, candidate.context_length
        try:
            if key not in known:
                with _faults_of(candidate, job.spec):
                    known[key] = _loaded(candidate, job.spec, store, cache)
            found[candidate.name] = known[key]
        except CandidateError as fault:
            logs.event(
                _log, "model-unavailable", level=logging.WARNING, candidate=candidate.name, error=str(fault)
            )
        except JobError as error:
            logs.event(
                _log, "model-unavailable", level=logging.WARNING, candidate=candidate.name, error=str(error)
            )
            break
    return found


def _loaded(candidate: ResolvedCandidate, spec: RLEvalJobSpec, store: Store, cache: Path) -> Readable:
    """Load a model's tokenizer and context length.

    Raises:
        JobError: the model cannot be loaded or rendered.
    """
    assert candidate.base is not None
    base, length = model_fields(candidate.name, spec)
    model = ModelSpec(base=candidate.base, revision=candidate.revision)
    folder = fetch(model, store, cache, weights=False, field=base)
    tokens = checks.context_length(folder, candidate.base, candidate.context_length, length)
    renderer, tokenizer = render.load(folder, spec.agent.effective_builtin.tool_call_parser)
    return Readable(renderer, tokens, own_template(tokenizer))


@contextmanager
def _faults_of(candidate: ResolvedCandidate, spec: RLEvalJobSpec) -> Iterator[None]:
    """Turn a permanent `JobError` about a candidate's model into a `CandidateError`."""
    try:
        yield
    except JobError as error:
        if not error.permanent:
            raise
        ending, base = error.termination, model_fields(candidate.name, spec)[0]
        # An error about the model's own files names a field of a training job's spec, which this job lacks.
        field = base if ending.field is None or ending.field.startswith("spec.model.") else ending.field
        raise CandidateError(ending.reason, ending.message, field) from error


def manifest(candidate: ResolvedCandidate, store: Store) -> WeightsManifest:
    """The weights that the servers must hold for a candidate. Blocking: run it in a thread.

    Raises:
        CandidateError: the candidate's weights are not stored, or reading them is not allowed.
    """
    if candidate.kind == "Model":
        assert candidate.base is not None
        return WeightsManifest(version=UNTRAINED, kind="base", uri=candidate.base, files=[])
    published = _published(candidate, store)
    if candidate.kind == "Adapter":
        return published
    # Full weights are served as a separate base model. The learner's log-probabilities of the canary prove
    # that a server has loaded the right one.
    files = published.files if published.whole else []
    return WeightsManifest(
        version=published.version, kind="base", uri=published.uri, files=files, canary=published.canary
    )


def check_template(candidate: ResolvedCandidate, found: Readable, store: Store) -> None:
    """Check that a trained candidate is measured with the chat template that it was trained with.

    An adapter takes the template from its base model, which may have changed since. Runs of earlier versions
    of Headway stored no template. For these, the check passes. Blocking: run it in a thread.

    Raises:
        CandidateError: `ChatTemplateDiffers`.
    """
    trained = WEIGHTS_FOLDER.fullmatch(candidate.uri or "")
    if trained is None:
        return
    layout = RunLayout.of(trained["root"])
    known = written(store.list(layout.chat_templates), layout.chat_templates, TEMPLATES)
    now = sha256(found.template.encode()).hexdigest()
    if not known or layout.chat_template(now) in known:
        return
    text = (
        f"{candidate.base} has another chat template now than job {candidate.job} was trained with; put "
        f"{known[-1]} back into it as chat_template.jinja"
    )
    if (candidate.base or "").startswith(HUB):
        text += ", or move its branch back, and pin spec.model.revision to a commit in later jobs"
    raise CandidateError("ChatTemplateDiffers", text, field_of(candidate.name, "checkpoint"))


def _published(candidate: ResolvedCandidate, store: Store) -> WeightsManifest:
    """The manifest that the learner published with the candidate's weights."""
    which, uri = field_of(candidate.name, "checkpoint"), candidate.uri or ""
    found = WEIGHTS_FOLDER.fullmatch(uri)
    if found is None:
        raise CandidateError("CheckpointMissing", f"{uri} is not a folder of published weights", which)
    step = int(found["step"])
    try:
        report = read(store, f"{found['root']}/steps/{step:06d}.json", StepReport)
        kept = bool(store.list(uri))
    except (ObjectNotFoundError, JobError):
        kept = False
    except StoreDeniedError as error:
        text = f"{error}; let the credentials of spec.output read it"
        raise CandidateError("CheckpointMissing", text, which) from error
    if not kept:
        text = (
            f"job {candidate.job} keeps no weights of step {step}: write best or a validated step in "
            f"{which}.step, or raise spec.checkpoints.keepLast of that job"
        )
        raise CandidateError("CheckpointMissing", text, which)
    return report.weights
