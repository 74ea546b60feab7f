"""How episodes are sampled: the servers, the knobs of sampling, deadlines and retries."""

from typing import Annotated

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule, not_yet
from headway_api.spec.types import Argument, PodTemplate, Resources, sampled_as_asked


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
    """Divides the logits before drawing. 1 samples from the policy that is trained; keep it."""
    top_p: Annotated[
        float,
        Field(ge=0, le=1),
        Rule(
            "self == 1.0",
            "spec.rollout.sampling.topP must be 1 for training: a smaller one draws from another policy than "
            "the one that is trained, and the ratios become wrong",
            lambda value: value == 1,
        ),
    ] = 1.0
    """Share of probability that is drawn from. Training needs 1."""
    max_tokens: Annotated[int, Field(ge=1, le=131072)] = 4096
    """Most tokens of one turn. Raise it when more than one response in twenty ends here."""


class Engine(SpecModel):
    """How a rollout server runs the model."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    """Accelerators one server spreads the model over."""
    extra_args: Annotated[tuple[Argument, ...], Field(max_length=64)] = ()
    """Arguments added to vLLM's command line, after the platform's own."""


class ServersSpec(SpecModel):
    """The servers that sample, and how episodes run on them."""

    mutable = frozenset({"replicas"})

    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """Rollout servers. May be changed while the job runs, also with kubectl scale."""
    max_concurrency: Annotated[int, Field(ge=1, le=4096)] = 96
    """Most episodes in flight at once, over all servers; fewer while the servers' KV caches are full."""
    timeout_seconds: Annotated[int, Field(ge=10, le=86400)] = 600
    """Longest an episode may take, in seconds, before it is ended and counted as an InfraError; at most
    spec.environment.sandbox.deadlineSeconds."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 3
    """How often an episode that ended as an InfraError is tried again before its group goes on
    without it."""
    engine: Engine = Engine()
    """How a server runs the model."""
    resources: Resources | None = None
    """Resources of one server. Absent: the operator's default, with one GPU for each of
    engine.tensorParallelSize where the cluster has GPUs."""
    pod_template: PodTemplate | None = None
    """Fragment of a PodTemplateSpec merged over the platform's (nodeSelector, tolerations, ...): containers,
    volumes and variables by name, tolerations added."""


class RolloutSpec(ServersSpec):
    """How training episodes are sampled."""

    sampling: Sampling = Sampling()
    """How tokens are drawn in training."""
    episode_token_limit: Annotated[
        Annotated[int, Field(ge=1, le=2097152)] | None,
        not_yet(
            "spec.rollout.episodeTokenLimit is not applied by this version; use spec.model.contextLength"
        ),
    ] = None
    """Most tokens sampled in one episode, over all its turns. Not applied yet."""
