"""Published weights, and what a rollout server has loaded."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from headway_api.bounds import is_below
from headway_api.record import Record
from headway_api.records.versions import PolicyVersion


def _name_below(name: str) -> str:
    if not is_below(name):
        raise ValueError(
            "is not the name of a file below a folder: write it without .. and without a leading /"
        )
    return name


class FileDigest(Record):
    """One file of a weights or checkpoint directory."""

    name: Annotated[str, AfterValidator(_name_below)]
    """Path below the directory: `a/b`, and never `../a` or `/a`."""
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Canary(Record):
    """A fixed sequence and the log-probabilities that the learner computed with the published weights.

    `logprobs[i]` is the log-probability of `tokens[i + 1]` given `tokens[: i + 1]`, so `logprobs` is one
    shorter than `tokens`. A server has other weights if the mean absolute difference of its own values is
    above `tolerance`.
    """

    tokens: list[int] = Field(fail_fast=True)
    logprobs: list[float] = Field(fail_fast=True)
    tolerance: float = Field(gt=0)


class TensorDigests(Record):
    """SHA-256 of the bytes of each tensor of a version, in a file beside its weights."""

    tensors: dict[str, str]


class WeightsLink(Record):
    """One version that a delta is built on."""

    version: PolicyVersion
    uri: str
    files: list[FileDigest] = Field(fail_fast=True)


class DirectSource(Record):
    """Where the learner sends weights from its memory, as `weights_direct` describes."""

    host: str
    port: int
    header: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the header, which has a digest of each tensor."""


class WeightsManifest(Record):
    """Published weights: where they are, and how a server proves that it loaded them."""

    version: PolicyVersion
    kind: Literal["lora", "full", "delta", "direct", "base"]
    uri: str
    """Folder in the artifact store: Hugging Face layout (adapter_model.safetensors or model.safetensors), or
    a delta as `weights_format` describes it. For kind direct the folder is empty. For kind base: the model
    that the server loaded when it started."""
    files: list[FileDigest] = Field(fail_fast=True)
    direct: DirectSource | None = None
    """Set for kind direct, and for full weights that are available both ways."""
    chain: list[WeightsLink] = Field(default_factory=list, fail_fast=True)
    """The versions that a delta builds on: a full version, each delta since, and last the version that the
    delta applies to."""
    canary: Canary | None = None
    """Only kind base may have no canary: no learner knows the log-probabilities of an unchanged model."""

    @property
    def link(self) -> WeightsLink:
        """This version as a link of later versions' chains."""
        return WeightsLink(version=self.version, uri=self.uri, files=self.files)

    @property
    def whole(self) -> bool:
        """Whether its folder has all weights, ready to serve."""
        return self.kind in ("lora", "full")

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if self.canary is None and self.kind != "base":
            raise ValueError(f"weights of kind {self.kind} without a canary")
        if (self.kind == "delta") != bool(self.chain):
            raise ValueError(f"weights of kind {self.kind} with a chain of {len(self.chain)}")
        if self.kind != "full" and (self.kind == "direct") != (self.direct is not None):
            raise ValueError(f"weights of kind {self.kind} with direct: {self.direct}")
        return self


LoadFailure = Literal["VerificationFailed", "UpdateFailed"]
"""Why weights were not loaded. VerificationFailed: they are not what the manifest describes. UpdateFailed:
they cannot be fetched or loaded."""


class WeightsState(Record):
    """The weights that a rollout server holds, by its own measurement."""

    version: PolicyVersion | None
    ready: bool
    """False while loading, and permanently after a failed verification."""
    error: str | None = None
    reason: LoadFailure | None = None
    """Kind of the `error`."""
    canary_error: float | None = None
    """Mean absolute difference to the manifest's canary at the last load."""
    seconds: float | None = None
    """How long the last load took, download included."""
