"""What is trained: the base model, and which of its weights change."""

import re
from typing import Annotated, Final, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import Label, Uri, at_most, uri_scheme
from headway_api.rules import Rule


class Lora(SpecModel):
    """Train a low-rank adapter; the base model's weights stay as they are."""

    rank: Annotated[int, Field(ge=1, le=256)] = 32
    """Rank of the adapter. Double rank and alpha when a healthy run reaches a plateau."""
    alpha: Annotated[int, Field(ge=1, le=1024)] = 64
    """Scale of the adapter: its output is multiplied by alpha / rank. Usually twice the rank."""
    rs_lora: bool = False
    """true multiplies the adapter's output by alpha / sqrt(rank) instead (rsLoRA), so that a large rank
    learns as fast as a small one. Rollout servers do the same."""
    dropout: Annotated[float, Field(ge=0), at_most("spec.model.lora.dropout", 0.9)] = 0.0
    """Share of the adapter's inputs that are set to 0 while gradients are computed; at most 0.9. Sampling
    uses no dropout, nor do log-probabilities that are compared with the servers'. 0, the usual value, is no
    dropout."""
    targets: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...], Field(max_length=32)
    ] = ()
    """Names of the linear modules that get an adapter (q_proj, up_proj, ...). Absent: every linear module,
    except the feed-forward layers of a mixture of experts. Embeddings, output head and experts get no
    adapter."""


class Full(SpecModel):
    """Train every weight of the model. Takes no settings: write `full: {}`."""


def revision_of_hub(field: str) -> Rule:
    """A revision needs a hf:// address, because only the hub keeps revisions."""
    return Rule(
        "!has(self.revision) || self.base.startsWith('hf://')",
        f"{field} applies to hf:// models only; remove it, and write the folder of the wanted model in base",
        lambda self: self.revision is None or self.base.startswith("hf://"),
        "revision",
    )


_PART = "[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
HUB_PATTERN: Final = f"^hf://({_PART}/)?{_PART}$"


def name_of_hub(field: str) -> Rule:
    """A hf:// address must be a name that the hub allows."""
    return Rule(
        f"!self.startsWith('hf://') || (self.matches('{HUB_PATTERN}') && !self.contains('--') && "
        "!self.contains('..') && !self.endsWith('.git'))",
        f"{field}: a model on the hub is hf://ORGANIZATION/NAME of letters, digits, -, _ and . alone; "
        "correct the name, and put a branch, tag or commit into revision",
        lambda value: (
            value is None
            or not value.startswith("hf://")
            or (
                re.fullmatch(HUB_PATTERN, value) is not None
                and not any(wrong in value for wrong in ("--", ".."))
                and not value.endswith(".git")
            )
        ),
    )


class WarmStart(SpecModel):
    """Weights to start from instead of the base model's own: those of another job, or those at a URI."""

    validations = (
        Rule(
            "has(self.job) != has(self.uri)",
            "spec.model.warmStart takes exactly one of job and uri",
            lambda self: (self.job is None) != (self.uri is None),
        ),
    )

    job: Label | None = None
    """An RLTrainingJob in the same namespace. This job waits until that job has ended. Then it takes the
    weights that validated best, or the last weights if none were validated. status.warmStart records which
    weights these are."""
    uri: (
        Annotated[
            Uri,
            uri_scheme("spec.model.warmStart.uri", "hf", "s3"),
            name_of_hub("spec.model.warmStart.uri"),
        ]
        | None
    ) = None
    """A folder in Hugging Face layout, with a LoRA adapter or with all weights of a model. s3://BUCKET/PREFIX
    is read with the endpoint and credentials of spec.output. hf://ORGANIZATION/NAME is on the
    Hugging Face Hub."""


class ModelSpec(SpecModel):
    """The model to train."""

    validations = (
        revision_of_hub("spec.model.revision"),
        Rule(
            "!(has(self.lora) && has(self.full))",
            "spec.model takes lora or full, not both; remove one of them",
            lambda self: self.lora is None or self.full is None,
            "full",
        ),
    )

    base: Annotated[
        Uri,
        uri_scheme("spec.model.base", "hf", "s3"),
        name_of_hub("spec.model.base"),
    ]
    """Where the base model comes from. hf://ORGANIZATION/NAME is on the Hugging Face hub; a private or gated
    model needs HF_TOKEN in spec.output.secretRef. s3://BUCKET/PREFIX is a folder in Hugging Face layout, read
    with the endpoint and credentials of spec.output."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit of a hf:// model. Absent: the default branch. Pin a commit so that the run can be
    repeated."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the weights in learner and rollout servers. float32 makes sampling and training
    probabilities agree closely, at twice the memory."""
    context_length: Annotated[int, Field(ge=64, le=2097152)] | None = None
    """Maximum tokens of one episode: prompt, every turn and every tool result together. Absent: the
    model's own limit."""
    lora: Lora | None = None
    """Train a LoRA adapter. With neither lora nor full: rank 32, alpha 64."""
    full: Full | None = None
    """Train every weight instead of an adapter."""
    warm_start: WarmStart | None = None
    """Weights to start from, trained from this base model. A LoRA adapter needs lora with the same rank,
    alpha and targets, and is trained further. With full, the adapter is merged into the base model first. A
    whole model needs full. Step 0 has these weights, so validation at the start measures them."""

    @property
    def effective_lora(self) -> Lora | None:
        """The adapter that is trained; None if every weight is trained."""
        return None if self.full is not None else self.lora or Lora()
