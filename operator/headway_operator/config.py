"""The operator's own configuration: one file, mounted from the chart's ConfigMap.

What a cluster's owner decides once for all jobs (images, default resources, node selection, limits) is
here; what a job's author decides is in the job's spec and is laid over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, ConfigDict, Field

from headway_api import names
from headway_api.base import Model
from headway_api.spec.types import Quantity, Resources
from headway_operator.addresses import check_pattern

ENV_FILE = "HEADWAY_OPERATOR_CONFIG"
API_SERVER = "KUBERNETES_SERVICE_HOST"
"""Set in every pod by the kubelet."""
DEFAULT_MANAGER = "headway.dev/operator"
DEFAULT_FILE = "/etc/headway-operator/config.yaml"
PodRole = Literal["coordinator", "broker", "learner", "rollout"]

CostLabel = Annotated[
    str, Field(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
]
"""Key of a label, or its part behind the `/`."""


class Images(Model):
    """Image of each role's pods."""

    coordinator: str
    broker: str
    learner: str
    rollout: str


class JobRoles(Model):
    """The roles that the accounts of a job are bound to. The chart makes them; the operator may make none."""

    kind: Literal["ClusterRole", "Role"] = "ClusterRole"
    """Role: one of each in every namespace that is watched."""
    prefix: str = "headway"
    """What their names begin with."""


class Caps(Model):
    """Upper limits on what one job may ask for; a spec above them is not accepted."""

    rollout_replicas: Annotated[int, Field(ge=1)] = 64
    learner_nodes: Annotated[int, Field(ge=1)] = 16
    sandboxes: Annotated[int, Field(ge=1)] = 1024
    """Most sandboxes of one job at once; the broker is held to it by the spec it is given."""


class Policy(Model):
    """What a job may name. Empty lists: anything but what no job may."""

    agent_urls: tuple[Annotated[str, AfterValidator(check_pattern)], ...] = ()
    """Addresses of agents and of candidates' endpoints, as `addresses.check_pattern` has them. One without
    `*.` also opens an address that no job may name otherwise."""
    secret_names: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.*-]+$", max_length=253)], ...] = ()
    """Names of Secrets; `*` stands for any characters."""
    service_accounts: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.*-]+$", max_length=253)], ...] = ()
    """Names of accounts (spec.serviceAccountName); `*` stands for any characters."""
    api_server: str = ""
    """Address of the API server in the cluster, which no job may name: as the pod's environment says."""


def _resources(cpu: str, memory: str, *, cpu_limit: str | None = None) -> Resources:
    return Resources(
        requests={"cpu": cpu, "memory": memory}, limits={"cpu": cpu_limit or cpu, "memory": memory}
    )


DEFAULT_RESOURCES: dict[str, Resources] = {
    names.COORDINATOR: _resources("1", "4Gi", cpu_limit="4"),
    names.BROKER: _resources("100m", "256Mi", cpu_limit="1"),
    names.LEARNER: _resources("8", "64Gi", cpu_limit="16"),
    names.ROLLOUT: _resources("8", "64Gi", cpu_limit="16"),
    names.SANDBOX: _resources("250m", "512Mi"),
}
"""For a job that names none, where the platform's configuration names none either."""


class OperatorConfig(Model):
    """Everything the operator is told from outside."""

    model_config = ConfigDict(frozen=True)

    images: Images
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    """Added to every pod of every job; the Secrets must exist in the job's namespace."""
    accelerator: str = "nvidia.com/gpu"
    """Resource name counted for learner and rollout pods whose resources do not name it; empty: none."""
    cost_labels: Annotated[tuple[CostLabel, ...], Field(max_length=16)] = names.COST_LABELS
    """Labels of a job by which costs are allocated: they go on its pods and into the exports of its bill.
    One without `/` is meant under any prefix and none."""
    resources: dict[str, Resources] = Field(default_factory=dict)
    """By role, in place of `DEFAULT_RESOURCES`."""
    role_templates: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By role (sandbox too): a fragment of a PodTemplateSpec, laid over what the operator makes and
    under the job's own podTemplate. Trusted: unlike a job's it may mount host paths."""
    cache_size_limit: Quantity = "100Gi"
    """Of the emptyDir that models and adapters are downloaded to."""
    shm_size_limit: Quantity = "8Gi"
    """Of /dev/shm in learner and rollout pods."""
    metrics_from: tuple[dict[str, Any], ...] = (
        {"namespaceSelector": {"matchLabels": {f"{names.GROUP}/metrics": "enabled"}}},
    )
    """NetworkPolicyPeers that may scrape coordinator, broker and rollout servers: by default, namespaces that
    carry the label headway.dev/metrics=enabled."""
    manager: str = DEFAULT_MANAGER
    """Which jobs are this operator's: those whose spec.managedBy is this; one that names nobody is the
    default's. So another version can run beside the first, on jobs of its own."""
    job_roles: JobRoles = JobRoles()
    watch_namespaces: tuple[str, ...] = ()
    """Empty: all namespaces."""
    resync_seconds: Annotated[float, Field(gt=0)] = 300
    """Every job is held against its plan at least this often, by what the watches have told of its objects.
    In twelve times as long each object is applied once more, whatever they told."""
    workers: Annotated[int, Field(ge=1, le=64)] = 4
    """Jobs reconciled at the same time."""
    stalled_after_seconds: Annotated[float, Field(gt=0)] = 3600
    """A job whose roles all run, and of which nothing goes forward for so long, is said to be stalled."""
    lease_name: str = "headway-operator"
    lease_namespace: str | None = None
    """Absent: lead without asking, for a single process."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Of /metrics, /healthz and /readyz."""
    liveness_seconds: Annotated[float, Field(gt=0)] = 660
    """The leader is unhealthy when no watch delivered anything, bookmarks included, for so long: two
    watch windows."""
    caps: Caps = Caps()
    policy: Policy = Policy()

    def resources_of(self, role: str) -> Resources:
        """Default resources of a role's main container."""
        return self.resources.get(role, DEFAULT_RESOURCES[role])


def load(environ: Mapping[str, str]) -> OperatorConfig:
    """Read the file that HEADWAY_OPERATOR_CONFIG names.

    Raises:
        OSError: the file cannot be read.
        pydantic.ValidationError: it does not hold what the model asks for.
    """
    text = Path(environ.get(ENV_FILE, DEFAULT_FILE)).read_text()
    found = OperatorConfig.model_validate(_without_null(yaml.safe_load(text)))
    at = found.policy.api_server or environ.get(API_SERVER, "")
    return found.model_copy(update={"policy": found.policy.model_copy(update={"api_server": at})})


def _without_null(settings: Any) -> Any:
    """A setting that is null is one that is not given: so Helm has it, where a default is taken away.

    In a template of a role a null takes something away, and stays.
    """
    if not isinstance(settings, dict):
        return settings
    given = {key: value for key, value in settings.items() if value is not None}
    return {
        key: {name: item for name, item in value.items() if item is not None}
        if isinstance(value, dict)
        else value
        for key, value in given.items()
    }
