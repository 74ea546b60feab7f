"""The operator's own configuration: one file, mounted from the chart's ConfigMap.

A cluster's owner decides here once for all jobs: images, default resources, node selection, limits.
A job's author decides in the job's spec, which overrides these settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, ConfigDict, Field

from headway_api import names
from headway_api.base import Model
from headway_api.field_types import Quantity, Resources
from headway_operator.addresses import check_pattern

ENV_FILE = "HEADWAY_OPERATOR_CONFIG"
API_SERVER = "KUBERNETES_SERVICE_HOST"
"""Variable that the kubelet sets in every pod."""
DEFAULT_MANAGER = "headway.dev/operator"
DEFAULT_FILE = "/etc/headway-operator/config.yaml"
PodRole = Literal["coordinator", "broker", "learner", "rollout"]

CostLabel = Annotated[
    str, Field(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
]
"""Key of a label, or the part of a key after the `/`."""


class Images(Model):
    """Image of each role's pods."""

    coordinator: str
    broker: str
    learner: str
    rollout: str


class JobRoles(Model):
    """The RBAC roles that a job's accounts are bound to. The chart creates them; the operator may not."""

    kind: Literal["ClusterRole", "Role"] = "ClusterRole"
    """With `Role`, every watched namespace has a copy of each role."""
    prefix: str = "headway"
    """Prefix of the roles' names."""


class Caps(Model):
    """Upper limits on what one job may ask for. The operator refuses a spec above them."""

    rollout_replicas: Annotated[int, Field(ge=1)] = 64
    learner_nodes: Annotated[int, Field(ge=1)] = 16
    sandboxes: Annotated[int, Field(ge=1)] = 1024
    """Maximum sandboxes that one job has at once. The broker receives the limit in its spec and keeps to
    it."""


class Policy(Model):
    """Addresses, Secrets and accounts that a job may name. An empty list allows all that no rule forbids."""

    agent_urls: tuple[Annotated[str, AfterValidator(check_pattern)], ...] = ()
    """Patterns for the addresses of agents and candidates' endpoints (`addresses.check_pattern`). A pattern
    without `*.` also allows an address that no job may name otherwise."""
    secret_names: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.*-]+$", max_length=253)], ...] = ()
    """Names of Secrets; `*` matches any characters."""
    service_accounts: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.*-]+$", max_length=253)], ...] = ()
    """Names of accounts (spec.serviceAccountName); `*` matches any characters."""
    api_server: str = ""
    """Address of the API server in the cluster, from the pod's environment. No job may name it."""


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
"""Resources by role, if neither the job nor the platform's configuration names any."""


class OperatorConfig(Model):
    """All settings that the operator receives from outside."""

    model_config = ConfigDict(frozen=True)

    images: Images
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    """Pull secrets added to every pod of every job. They must exist in the job's namespace."""
    accelerator: str = "nvidia.com/gpu"
    """Resource that learner and rollout pods request if their resources do not name it. If it is empty, they
    request none."""
    cost_labels: Annotated[tuple[CostLabel, ...], Field(max_length=16)] = names.COST_LABELS
    """Labels of a job that allocate costs. Its pods carry them, and the exports of its bill contain them.
    A name without `/` matches with any prefix and with none."""
    resources: dict[str, Resources] = Field(default_factory=dict)
    """Resources by role, which replace those in `DEFAULT_RESOURCES`."""
    role_templates: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By role, sandbox included: a fragment of a PodTemplateSpec. It overrides the operator's template, and
    the job's own podTemplate overrides it. Unlike a podTemplate of a job, it may mount host paths."""
    cache_size_limit: Quantity = "100Gi"
    """Size limit of the emptyDir for downloaded models and adapters."""
    shm_size_limit: Quantity = "8Gi"
    """Size limit of /dev/shm in learner and rollout pods."""
    metrics_from: tuple[dict[str, Any], ...] = (
        {"namespaceSelector": {"matchLabels": {f"{names.GROUP}/metrics": "enabled"}}},
    )
    """NetworkPolicyPeers that may scrape coordinator, broker and rollout servers. By default these are the
    namespaces with the label headway.dev/metrics=enabled."""
    manager: str = DEFAULT_MANAGER
    """The operator manages the jobs whose spec.managedBy is this. A job that names no manager belongs to the
    default one. So a second version can run beside the first, on jobs of its own."""
    job_roles: JobRoles = JobRoles()
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs the operator manages; all namespaces if this is empty."""
    resync_seconds: Annotated[float, Field(gt=0)] = 300
    """The operator compares every job with its plan at least this often, based on what the watches reported.
    Within twelve times this long, it applies each object again even if no watch reported a change."""
    workers: Annotated[int, Field(ge=1, le=64)] = 4
    """Maximum number of jobs that are reconciled at the same time."""
    stalled_after_seconds: Annotated[float, Field(gt=0)] = 3600
    """A job counts as stalled if all its roles run and it makes no progress for this long."""
    lease_name: str = "headway-operator"
    lease_namespace: str | None = None
    """Namespace of the Lease. None: a single process leads without a Lease."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /metrics, /healthz and /readyz."""
    liveness_seconds: Annotated[float, Field(gt=0)] = 660
    """The leader is unhealthy if no watch delivered anything, bookmarks included, for this long. Two
    watches in a row take less."""
    caps: Caps = Caps()
    policy: Policy = Policy()

    def resources_of(self, role: str) -> Resources:
        """Default resources of a role's main container."""
        return self.resources.get(role, DEFAULT_RESOURCES[role])


def load(environ: Mapping[str, str]) -> OperatorConfig:
    """Read the file that HEADWAY_OPERATOR_CONFIG names.

    Raises:
        OSError: the file cannot be read.
        pydantic.ValidationError: its content does not match the model.
    """
    text = Path(environ.get(ENV_FILE, DEFAULT_FILE)).read_text()
    found = OperatorConfig.model_validate(_without_null(yaml.safe_load(text)))
    at = found.policy.api_server or environ.get(API_SERVER, "")
    return found.model_copy(update={"policy": found.policy.model_copy(update={"api_server": at})})


def _without_null(settings: Any) -> Any:
    """Drop settings that are null: in Helm, null removes a default.

    A null in a role's template stays, since it removes a field there.
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
