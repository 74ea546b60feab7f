"""A model that an evaluation measures: where it comes from."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import Label, SecretRef, Uri, uri_scheme
from headway_api.rules import Rule
from headway_api.spec.model import name_of_hub, revision_of_hub

BASE_SUFFIX = "-base"
"""Suffix of the name of a base model that `withBase` adds as a candidate."""


class CandidateModel(SpecModel):
    """An unchanged model."""

    validations = (revision_of_hub("the revision of a candidate's model"),)

    base: Annotated[
        Uri, uri_scheme("the model of a candidate", "hf", "s3"), name_of_hub("the model of a candidate")
    ]
    """Where the model comes from: hf://ORGANIZATION/NAME or s3://BUCKET/PREFIX."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit of a hf:// model."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the weights."""
    context_length: Annotated[int, Field(ge=64, le=2097152)] | None = None
    """Maximum tokens of one episode: prompt, every turn and every tool result together. Absent: the
    model's own limit."""


class CandidateCheckpoint(SpecModel):
    """Weights that a training job in the same namespace published. The job may still be running."""

    validations = (
        Rule(
            "!(has(self.which) && has(self.step))",
            "a candidate's checkpoint takes which or step, not both; remove one of them",
            lambda self: self.which is None or self.step is None,
            "step",
        ),
        Rule(
            "!has(self.uri) || has(self.step)",
            "a candidate's checkpoint takes uri only with step: it is the address of that step's weights; "
            "write the step, or remove uri",
            lambda self: self.uri is None or self.step is not None,
            "uri",
        ),
    )

    job: Label
    """Name of the RLTrainingJob."""
    which: Literal["best", "latest"] | None = None
    """best: the weights that validated best so far. latest: the newest published weights. While the training
    job runs, latest means the newest validated weights. Until a trained step is validated, latest means the
    newest checkpoint's weights with LoRA, and the newest weights with full. Absent, without step: best."""
    step: Annotated[int, Field(ge=0, le=1000000)] | None = None
    """The weights of this step. The training job must still keep these weights. It keeps the weights of step
    0, of validated steps and of kept checkpoints (its spec.checkpoints)."""
    uri: Annotated[Uri, uri_scheme("the uri of a candidate's checkpoint", "s3")] | None = None
    """The address of the weights, as the training job's status.checkpoints shows it. The candidate fails if
    the job has this step at another address, because it was deleted and created again. Absent: the address is
    not checked."""
    with_base: bool = False
    """true also measures the untrained base model, as a candidate named after this one with `-base` added."""


class CandidateEndpoint(SpecModel):
    """A model behind an OpenAI-compatible endpoint. Its tokens are counted separately from the job's own."""

    url: Annotated[Uri, uri_scheme("the url of a candidate's endpoint", "http", "https")]
    """Base URL of the endpoint, up to and including /v1: the job appends /chat/completions."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """Name of the model at the endpoint."""
    secret_ref: SecretRef | None = None
    """Secret whose key `token` is sent as the bearer token."""
    max_concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Maximum requests in flight."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1000000)] | None = None
    """Maximum requests for completions that may start in a minute; requests for the list of models are not
    counted. Absent: only maxConcurrency limits them."""


class CandidateRescore(SpecModel):
    """Episodes of an earlier run, scored again by this job's environment. No token is sampled.

    A fresh sandbox executes the recorded tool calls again; then the environment judges.
    """

    validations = (
        Rule(
            "[has(self.candidate), has(self.step), has(self.epoch)].filter(given, given).size() == 1",
            "a candidate's rescore takes exactly one of candidate (of an RLEvalJob), step (a validation of "
            "an RLTrainingJob) and epoch (of its training)",
            lambda self: [self.candidate, self.step, self.epoch].count(None) == 2,
        ),
    )

    uri: Annotated[Uri, uri_scheme("the uri of a candidate's rescore", "s3")]
    """Folder of the run: status.artifacts.uri of the job that sampled the episodes."""
    candidate: Label | None = None
    """Candidate of the RLEvalJob whose episodes are scored again. For an RLTrainingJob, write step-N: the
    test split's episodes with the weights of step N."""
    step: Annotated[int, Field(ge=0, le=1000000)] | None = None
    """Step of the RLTrainingJob whose validation is scored again."""
    epoch: Annotated[int, Field(ge=0, le=1000000)] | None = None
    """Epoch of the RLTrainingJob whose training episodes are scored again, counted from 0. Rows that training
    did not reach in this epoch count as lost."""


class Candidate(SpecModel):
    """One model to measure."""

    validations = (
        Rule(
            "[has(self.model), has(self.checkpoint), has(self.endpoint), has(self.rescore)]"
            ".filter(given, given).size() == 1",
            "a candidate takes exactly one of model, checkpoint, endpoint and rescore",
            lambda self: [self.model, self.checkpoint, self.endpoint, self.rescore].count(None) == 3,
        ),
    )

    name: Annotated[Label, Field(max_length=40)]
    """Name of the candidate in the results."""
    model: CandidateModel | None = None
    """An unchanged model."""
    checkpoint: CandidateCheckpoint | None = None
    """Weights of a training job."""
    endpoint: CandidateEndpoint | None = None
    """A model served elsewhere."""
    rescore: CandidateRescore | None = None
    """Stored episodes of an earlier run, scored again."""
