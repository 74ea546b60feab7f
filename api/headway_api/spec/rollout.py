"""How episodes are sampled: the servers, the sampling settings, deadlines and retries."""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import Argument, PodTemplate, Resources, sampled_as_asked
from headway_api.rules import Rule, cel_literal


class Sampling(SpecModel):
    """How the next token is drawn in training episodes."""

    temperature: Annotated[
        float,
        Field(ge=0, le=2),
        Rule(
            "self > 0.0",
            "spec.rollout.sampling.temperature must be above 0: at 0 the episodes of a group are alike and "
            "there is nothing to learn from; use 1",
            lambda value: value > 0,
        ),
        sampled_as_asked("spec.rollout.sampling.temperature"),
    ] = 1.0
    """Divides the logits before sampling. Keep 1: servers then sample from the policy that is trained."""
    top_p: Annotated[
        float,
        Field(ge=0, le=1),
        Rule(
            "self == 1.0",
            "spec.rollout.sampling.topP must be 1 for training: below 1 the sampled policy is not the "
            "trained one, and the ratios are wrong",
            lambda value: value == 1,
        ),
    ] = 1.0
    """Share of the probability mass to sample from. Training needs 1."""
    max_tokens: Annotated[int, Field(ge=1, le=131072)] = 4096
    """Maximum tokens of one turn. Raise this limit when more than one turn in twenty reaches it."""


OWN_FLAGS: Final = (
    "--api-key",
    "--config",
    "--dtype",
    "--enable-lora",
    "--enable-prompt-tokens-details",
    "--enable-scale-out",
    "--headless",
    "--hf-config-path",
    "--hf-overrides",
    "--host",
    "--logits-processors",
    "--logprobs-mode",
    "--lora-dtype",
    "--lora-modules",
    "--lora-target-modules",
    "--max-cpu-loras",
    "--max-lora-rank",
    "--max-loras",
    "--max-model-len",
    "--middleware",
    "--model",
    "--no-enable-lora",
    "--no-enable-prompt-tokens-details",
    "--no-enable-scale-out",
    "--override-generation-config",
    "--port",
    "--seed",
    "--served-model-name",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--tensor-parallel-size",
    "--tokenizer",
    "--uds",
    "--weight-transfer-config",
    "--worker-cls",
    "--worker-extension-cls",
    "-tp",
)
"""Flags of vLLM that the platform derives from the rest of the spec.

A user's value for some of them would make the learner train on wrong probabilities
(`--logprobs-mode raw_logprobs`: 0.2 nats off at temperature 0.7). With others, the job would not find the
server, or the server would answer clients outside the job.
"""


def _is_free(argument: str) -> bool:
    """Whether an argument sets none of the flags in `OWN_FLAGS`. It recognizes every form that vLLM accepts:
    abbreviated (argparse), with `_`, as `--flag=value` or `--flag.key`."""
    name = argument.split("=")[0].split(".")[0].replace("_", "-")
    return not argument.startswith("-") or not any(flag.startswith(name) for flag in OWN_FLAGS)


def _are_free(arguments: Sequence[str]) -> bool:
    return all(map(_is_free, arguments))


def without_own_flags(field: str) -> Rule:
    """Arguments for vLLM must not set a flag that the platform derives from the rest of the spec."""
    return Rule(
        "self.all(argument, !argument.startsWith('-') || "
        "[argument.split('=')[0].split('.')[0].replace('_', '-')].all(name, "
        f"![{', '.join(map(cel_literal, OWN_FLAGS))}].exists(flag, flag.startsWith(name))))",
        f"{field} may not set flags that the spec decides: remove {', '.join(OWN_FLAGS)}",
        _are_free,
    )


class Engine(SpecModel):
    """How a rollout server runs the model."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    """Accelerators that one server spreads the model over."""
    extra_args: Annotated[
        tuple[Argument, ...], Field(max_length=64), without_own_flags("spec.rollout.engine.extraArgs")
    ] = ()
    """Arguments added to vLLM's command line, after the platform's own. Flags that the spec decides are
    refused, also in abbreviated form."""


class ServersSpec(SpecModel):
    """The servers that sample, and how episodes run on them."""

    mutable = frozenset({"replicas"})

    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """Rollout servers. May be changed while the job runs, also with kubectl scale."""
    max_concurrency: Annotated[int, Field(ge=1, le=4096)] = 96
    """Maximum episodes in flight at once, over all servers. Fewer run while the servers' KV caches are
    full."""
    timeout_seconds: Annotated[int, Field(ge=10, le=86400)] = 600
    """Maximum seconds that an episode may take. An episode that still makes progress is then Truncated and
    judged. An episode that waits for something that hangs is an InfraError. Must be at most
    spec.environment.sandbox.deadlineSeconds. Set 60 less, which leaves time for the judgement."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 3
    """How often an episode that ended as an InfraError is retried. After that the group continues without
    it. A training group is abandoned if fewer than two of its episodes can be scored."""
    engine: Engine = Engine()
    """How a server runs the model."""
    resources: Resources | None = None
    """Resources of one server. Absent: the operator's default and, if the cluster has GPUs,
    engine.tensorParallelSize GPUs."""
    pod_template: PodTemplate | None = None
    """Fragment of a PodTemplateSpec (nodeSelector, tolerations, ...), merged over the platform's template.
    Containers, volumes and variables merge by name; tolerations are added."""


class RolloutSpec(ServersSpec):
    """How training episodes are sampled."""

    validations = (
        Rule(
            "!has(self.episodeTokenLimit) || self.episodeTokenLimit >= self.sampling.maxTokens",
            "spec.rollout.episodeTokenLimit is less than spec.rollout.sampling.maxTokens, so no turn could "
            "use them; raise the first, or lower the second",
            lambda self: (
                self.episode_token_limit is None or self.episode_token_limit >= self.sampling.max_tokens
            ),
        ),
    )

    sampling: Sampling = Sampling()
    """How tokens are drawn in training."""
    episode_token_limit: Annotated[int, Field(ge=1, le=2097152)] | None = None
    """Maximum tokens sampled in one episode, over all its turns, in training, preflight and validation. An
    episode that reaches the limit is Truncated and judged. At least sampling.maxTokens. Absent: no limit."""
