"""The environment of an episode: the user's tools, state and reward, and the sandbox that holds them."""

import re
from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import FreeForm, PodTemplate, Resources, Subdomain
from headway_api.rules import Rule

ENTRYPOINT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"


class WarmPool(SpecModel):
    """Sandboxes that are kept started and empty, so that an episode need not wait for a pod."""

    validations = (
        Rule(
            "!has(self.max) || self.min <= self.max",
            "spec.environment.sandbox.warmPool: min must not be above max",
            lambda self: self.max is None or self.min <= self.max,
            "min",
        ),
    )

    min: Annotated[int, Field(ge=0, le=4096)] = 4
    """Idle sandboxes that are kept ready while the job runs. 0: each sandbox starts when an episode asks for
    it."""
    max: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum sandboxes of the job at one time, idle and in use together. Absent: as many as episodes may be
    in flight."""


class Sandbox(SpecModel):
    """The pod that an episode runs in: restricted, without network or credentials, deleted afterwards."""

    provider: Literal["pods"] = "pods"
    """What provides the sandboxes. pods: Headway's own pool of pods."""
    runtime_class_name: Subdomain | None = None
    """RuntimeClass of the pods, for stronger isolation of untrusted code (gvisor, kata). Absent: the
    cluster's default runtime."""
    resources: Resources | None = None
    """Resources of one sandbox. Leave requests out: they then equal limits, and no episode is slowed by its
    neighbours. Absent: the operator's default."""
    runs_code: bool = False
    """Whether tools run code for the model. true: a second container, `runner`, runs the code as another
    user, without access to the server that judges. The environment calls this container through
    `headway_sandbox.runner`. Both containers have the same limits. A `sandboxed` agent always has this
    container."""
    reuse: Literal["Never"] = "Never"
    """Whether a sandbox serves another episode after its first. Never: nothing leaks from one episode
    into the next."""
    warm_pool: WarmPool = WarmPool()
    """Sandboxes kept ready."""
    deadline_seconds: Annotated[int, Field(ge=10, le=86400)] = 900
    """Maximum seconds that a sandbox may be in use, whatever the rest of the job does. An episode that still
    runs ends as an InfraError and is retried. Must be at least spec.rollout.timeoutSeconds."""
    pod_template: PodTemplate | None = None
    """Fragment of a PodTemplateSpec (nodeSelector, tolerations, ...), merged over the platform's template.
    Containers, volumes and variables merge by name; tolerations are added. It cannot weaken the sandbox's
    isolation."""


class EnvironmentSpec(SpecModel):
    """Tools, state, reward and external score: an image, and the class in it."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    """Container image that holds the environment."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When nodes pull the image. Absent: as in Kubernetes, Always for :latest, otherwise IfNotPresent."""
    entrypoint: Annotated[
        str,
        Field(max_length=256),
        Rule(
            f"self.matches(r'{ENTRYPOINT_PATTERN}')",
            "spec.environment.entrypoint must be module:Class, such as refunds_env:RefundEnvironment",
            lambda value: re.fullmatch(ENTRYPOINT_PATTERN, value) is not None,
        ),
    ]
    """The environment's class, as module:Class."""
    config: FreeForm | None = None
    """Settings passed to the class unchanged. The class checks them before the first episode."""
    sandbox: Sandbox = Sandbox()
    """The pod that each episode runs in."""


class TrainingEnvironmentSpec(EnvironmentSpec):
    """The environment of a training job, and the contract that the preflight compares its tools with."""

    contract: FreeForm | None = None
    """Inputs and outputs of the tools in production: an OpenAPI document, or an object with a list `tools` in
    MCP's form. The preflight compares the environment's tools with it, except for the keywords pattern,
    patternProperties and uniqueItems. Absent: no comparison."""


class RewardSpec(SpecModel):
    """Which rewards are valid."""

    validations = (
        Rule(
            "self.range[0] < self.range[1]",
            "spec.reward.range: the first number must be below the second",
            lambda self: self.range[0] < self.range[1],
            "range",
        ),
    )

    range: Annotated[
        tuple[Annotated[float, Field(ge=-1e6, le=1e6)], ...], Field(min_length=2, max_length=2)
    ] = (0.0, 1.0)
    """Lowest and highest reward of an episode. A reward outside this range, or not finite, is an InfraError:
    the episode is retried, and never trained on."""
