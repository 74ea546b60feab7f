"""Judges: models that an environment's reward and score ask for a grade."""

from typing import Annotated, Final, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import Argument, Label, Resources, SecretRef, Uri, uri_scheme
from headway_api.rules import Keyed, Rule
from headway_api.spec.model import name_of_hub, revision_of_hub
from headway_api.spec.rollout import without_own_flags

MAX_JUDGES: Final = 8


def field_of(name: str, below: str = "") -> str:
    """Path of a judge's field, for messages."""
    return f"spec.judges[{name}]" + (f".{below}" if below else "")


class JudgeEndpoint(SpecModel):
    """A model behind an OpenAI-compatible endpoint."""

    url: Annotated[Uri, uri_scheme("the url of a judge's endpoint", "http", "https")]
    """Base URL of the endpoint, up to and including /v1: the job appends /chat/completions."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """Name of the model at the endpoint."""


class JudgeModel(SpecModel):
    """A model that the job serves on servers of its own. Their pods are made like rollout servers: the same
    image, account, credentials and spec.rollout.podTemplate."""

    validations = (revision_of_hub("the revision of a judge's model"),)

    base: Annotated[Uri, uri_scheme("the model of a judge", "hf", "s3"), name_of_hub("the model of a judge")]
    """Where the model comes from: hf://ORGANIZATION/NAME or s3://BUCKET/PREFIX. It needs a chat template."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit of a hf:// model."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the weights."""
    context_length: Annotated[int, Field(ge=64, le=2097152)] | None = None
    """Maximum tokens of one question and its answer. Absent: the model's own limit."""
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Servers of this model."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    """Accelerators that one server spreads the model over."""
    extra_args: Annotated[
        tuple[Argument, ...], Field(max_length=16), without_own_flags("extraArgs of a judge's model")
    ] = ()
    """Arguments added to vLLM's command line, after the platform's own, as in
    spec.rollout.engine.extraArgs."""
    resources: Resources | None = None
    """Resources of one server. Absent: the operator's default for rollout servers and, if the cluster has
    GPUs, tensorParallelSize GPUs."""


class Judge(SpecModel):
    """A model that the environment's reward and score may ask, by self.judge(NAME, messages, schema=...). The
    coordinator asks the judge, because sandboxes reach nothing. A judge's failure costs a retry, and never
    becomes a reward of 0."""

    validations = (
        Rule(
            "has(self.endpoint) != has(self.model)",
            "a judge takes exactly one of endpoint and model; write one, or remove one of them",
            lambda self: (self.endpoint is None) != (self.model is None),
        ),
        Rule(
            "!has(self.secretRef) || has(self.endpoint)",
            "secretRef of a judge is the key of an endpoint; the job makes the key of a judge's model; "
            "remove secretRef",
            lambda self: self.secret_ref is None or self.endpoint is not None,
            "secretRef",
        ),
    )

    name: Annotated[Label, Field(max_length=40)]
    """Name by which the environment asks the judge."""
    endpoint: JudgeEndpoint | None = None
    """Endpoint that serves the judge's model."""
    model: JudgeModel | None = None
    """Model that the job serves while it has pods."""
    secret_ref: SecretRef | None = None
    """Secret whose key `token` is sent to endpoint as the bearer token. A change takes effect within two
    minutes."""
    max_tokens: Annotated[int, Field(ge=1, le=131072)] = 1024
    """Maximum tokens of one answer. An answer that is cut off does not count."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Maximum questions in flight, over all servers. Further questions wait, within the time limit of their
    episode."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Maximum seconds that one question may take, over all tries. The wait for a place among the questions in
    flight does not count."""
    cache: bool = True
    """Whether the job reuses the answer to an equal earlier question, at no cost."""

    @property
    def identity(self) -> dict[str, str | None]:
        """Identity of the model that answers: where it comes from, or its endpoint. The key of a stored
        answer includes it, so judges with different models never share answers."""
        if self.model is not None:
            return {"base": self.model.base, "revision": self.model.revision, "dtype": self.model.dtype}
        assert self.endpoint is not None
        return {"url": self.endpoint.url, "model": self.endpoint.model}

    @property
    def priced_as(self) -> str:
        """The model's name in a price book: `model.base`, or `endpoint.model`."""
        if self.model is not None:
            return self.model.base
        assert self.endpoint is not None
        return self.endpoint.model


Judges = Annotated[tuple[Judge, ...], Field(max_length=MAX_JUDGES), Keyed("name")]
