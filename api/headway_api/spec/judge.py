"""Who may be asked for a judgement: models that an environment's reward and score consult."""

from typing import Annotated, Any, Final

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule, not_yet
from headway_api.spec.types import Label, SecretRef, Uri, uri_scheme

MOST_JUDGES: Final = 8
NAMED: Final[dict[str, Any]] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}


def field_of(name: str, below: str = "") -> str:
    """Path of a judge's field, for messages."""
    return f"spec.judges[{name}]" + (f".{below}" if below else "")


class JudgeEndpoint(SpecModel):
    """A model behind an OpenAI-compatible endpoint."""

    url: Annotated[Uri, uri_scheme("the url of a judge's endpoint", "http", "https")]
    """Base URL of the endpoint, up to and including /v1: the job appends /chat/completions."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """Name of the model there."""


class Judge(SpecModel):
    """A model that the environment's reward and score may ask, by self.judge(NAME, messages, schema=...). The
    coordinator asks it: sandboxes reach nothing. One that fails costs a retry, and is never a reward of 0."""

    validations = (
        Rule(
            "has(self.endpoint) != has(self.model)",
            "a judge takes exactly one of endpoint and model; write an endpoint",
            lambda self: (self.endpoint is None) != (self.model is None),
        ),
    )

    name: Annotated[Label, Field(max_length=40)]
    """Name that the environment asks it by."""
    endpoint: JudgeEndpoint | None = None
    """Where it is served."""
    model: Annotated[
        Uri | None,
        not_yet(
            "a judge's model is not served by this version; serve it by a vLLM behind a Service, and write "
            "endpoint: {url: http://NAME.NAMESPACE.svc:8000/v1, model: NAME} in its place"
        ),
    ] = None
    """A model that the job itself serves. Not acted upon yet."""
    secret_ref: SecretRef | None = None
    """Secret whose key `token` is sent as the bearer token. A changed one is taken up within two minutes."""
    max_tokens: Annotated[int, Field(ge=1, le=131072)] = 1024
    """Most tokens of one answer. One that is cut off there is none."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Most questions in flight. Others wait, within the time of their episode."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Longest one question may take, every try of it included, and not the wait for its place."""
    cache: bool = True
    """Whether an equal question of this job is answered as it was before, and costs nothing."""


Judges = Annotated[tuple[Judge, ...], Field(max_length=MOST_JUDGES, json_schema_extra=NAMED)]
