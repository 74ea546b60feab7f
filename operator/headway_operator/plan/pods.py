"""Builds the pod template of each role. All roles share it except for what `Process` says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headway_api import names
from headway_api.document import Json
from headway_api.field_types import Resources
from headway_api.keys import HELD_BY
from headway_api.pod_template import merge
from headway_operator.plan import template
from headway_operator.plan.context import Context
from headway_operator.plan.settings import pull_secrets

STAY: Final = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}


GRACE_SECONDS = 30
"""Seconds from SIGTERM to SIGKILL. A role ends at once on SIGTERM: its successor needs only durable data."""


@dataclass(frozen=True)
class Process:
    """What differs between roles."""

    role: str
    module: str
    image: str
    ports: dict[str, int] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    env_from_pod: dict[str, str] = field(default_factory=dict)
    """Variable -> path of a field of the pod."""
    files_from_secret: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Folder -> name and key of a Secret, which may be created later. Its file in the folder is TOKEN_KEY."""
    files_from_config_map: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Folder -> name and key of a ConfigMap, which may be created later and may change."""
    labels: dict[str, str] = field(default_factory=dict)
    """Further labels of the pod."""
    holds_keys_of: str | None = None
    """The role whose keys the pod mounts, if that differs from `role`."""
    probes: Json = field(default_factory=dict)
    api_token: bool = False
    """The process uses the Kubernetes API, so its pod gets a token."""
    store: bool = False
    """The process uses the artifact store, so it gets the credentials that spec.output names for its role."""
    shm: bool = False
    """The role's processes share memory, so /dev/shm is a volume of its own."""
    resources: Resources | None = None
    """Resources from the job's spec."""
    accelerators: int = 0
    pod_template: Json | None = None
    """The podTemplate fragment from the job's spec."""
    costly_to_move: bool = False
    """An autoscaler should not evict the pod to save a node: work since the last step would be lost."""
    restart_policy: str = "Always"
    grace_seconds: int = GRACE_SECONDS
    """Seconds from SIGTERM to SIGKILL.

    The kernel does not deliver SIGTERM to process 1 of a container until it has a handler. So a process 1
    that is still starting would use its whole grace period. A process with a long one is never process 1.
    """


def pod_template(context: Context, process: Process) -> Json:
    """The whole PodTemplateSpec of a role."""
    labels = (context.cost_labels or {}) | context.labels(process.role) | process.labels
    metadata: Json = {"labels": labels}
    if process.costly_to_move:
        metadata["annotations"] = STAY
    made = {"metadata": metadata, "spec": _pod_spec(context, process)}
    layered = merge(made, context.platform.role_templates.get(process.role, {}))
    layered = merge(layered, process.pod_template or {})
    return template.harden(layered, labels, context.service_account(process.role))


def _pod_spec(context: Context, process: Process) -> Json:
    volumes, mounts = _volumes(context, process)
    spec: Json = {
        "restartPolicy": process.restart_policy,
        "automountServiceAccountToken": process.api_token,
        "terminationGracePeriodSeconds": process.grace_seconds,
        "shareProcessNamespace": process.grace_seconds > GRACE_SECONDS,
        "containers": [
            {
                "name": process.role,
                "image": process.image,
                "imagePullPolicy": context.platform.image_pull_policy,
                "command": ["python", "-m", process.module],
                # Pods are deleted when the job ends. A condition keeps the last lines of their logs.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "env": _env(process),
                "ports": [{"name": name, "containerPort": port} for name, port in process.ports.items()],
                "resources": resources(context, process),
                "volumeMounts": mounts,
                **process.probes,
            }
        ],
        "volumes": volumes,
    }
    if process.store and (secret := context.spec.output.secret_of(process.role)):
        spec["containers"][0]["envFrom"] = [{"secretRef": {"name": secret.name}}]
    if secrets := pull_secrets(context):
        spec["imagePullSecrets"] = secrets
    return spec


def _env(process: Process) -> list[Json]:
    fixed = {
        names.ENV_CONFIG: names.CONFIG_FILE,
        names.ENV_CACHE: names.CACHE_DIR,
        "HOME": names.CACHE_DIR,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **process.env,
    }
    from_pod = {
        names.ENV_POD_NAME: "metadata.name",
        names.ENV_POD_IP: "status.podIP",
        **process.env_from_pod,
    }
    sources: dict[str, Json] = {name: {"fieldRef": {"fieldPath": path}} for name, path in from_pod.items()}
    return [{"name": name, "value": value} for name, value in fixed.items()] + [
        {"name": name, "valueFrom": source} for name, source in sources.items()
    ]


def _volumes(context: Context, process: Process) -> tuple[list[Json], list[Json]]:
    volumes: list[Json] = [
        {"name": "config", "configMap": {"name": names.config_map(context.stem)}},
        {
            "name": "keys",
            "projected": {
                "sources": _keys(context, process.holds_keys_of or process.role),
                "defaultMode": 0o440,
            },
        },
        {"name": "tmp", "emptyDir": {"sizeLimit": context.platform.cache_size_limit}},
        {"name": "cache", "emptyDir": {"sizeLimit": context.platform.cache_size_limit}},
    ]
    mounts: list[Json] = [
        {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
        {"name": "keys", "mountPath": names.KEYS_DIR, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "cache", "mountPath": names.CACHE_DIR},
    ]
    for folder, (secret_name, key) in process.files_from_secret.items():
        above, _, leaf = folder.rpartition("/")
        name = f"{leaf}-token" if above == names.JUDGES_DIR else f"{leaf}-secret"
        items = [{"key": key, "path": names.TOKEN_KEY}]
        may_come = {"secretName": secret_name, "items": items, "defaultMode": 0o440, "optional": True}
        volumes.append({"name": name, "secret": may_come})
        mounts.append({"name": name, "mountPath": folder, "readOnly": True})
    for folder, (map_name, key) in process.files_from_config_map.items():
        items = [{"key": key, "path": key}]
        name = folder.rpartition("-")[2]
        volumes.append({"name": name, "configMap": {"name": map_name, "items": items, "optional": True}})
        mounts.append({"name": name, "mountPath": folder, "readOnly": True})
    if process.shm:
        memory = {"medium": "Memory", "sizeLimit": context.platform.shm_size_limit}
        volumes.append({"name": "shm", "emptyDir": memory})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    return volumes, mounts


def _keys(context: Context, role: str) -> list[Json]:
    """The role's own keys, and no others.

    An earlier version of the operator gave all roles of a job one token. A job that began with it keeps it:
    its pods talk to pods from before the upgrade.
    """
    made = {
        "name": names.keys_secret(context.stem, context.uid),
        "items": [{"key": key.value, "path": key.value} for key in HELD_BY[role]],
    }
    former = {
        "name": names.token_secret(context.stem, context.uid),
        "items": [{"key": names.TOKEN_KEY, "path": names.TOKEN_KEY}],
        "optional": True,
    }
    return [{"secret": made}, {"secret": former}]


def resources(context: Context, process: Process) -> Json:
    """Requests and limits: each quantity of the job overrides the platform's default.

    If a job sets only the request or only the limit of a resource, that is also the other. Accelerators are
    added if neither job nor platform names them. A limit of 0 removes a default.
    """
    default, wish = context.platform.resources_of(process.role), process.resources or Resources()
    wished_limits = (wish.requests or {}) | (wish.limits or {})
    wished_requests = (wish.limits or {}) | (wish.requests or {})
    limits = (default.limits or {}) | wished_limits
    accelerator = context.platform.accelerator
    if accelerator and process.accelerators:
        limits.setdefault(accelerator, str(process.accelerators))
    limits = {name: quantity for name, quantity in limits.items() if quantity != "0"}
    requests = limits | (default.requests or {}) | wished_limits | wished_requests
    # Kubernetes accepts a device (a name with a slash) only if its request equals its limit.
    asked = {name: limits[name] if "/" in name else requests[name] for name in limits}
    return {"requests": asked, "limits": limits}


def http_probe(path: str, port: str, *, period: int, failures: int, timeout: int = 5) -> Json:
    """A probe over HTTP; `failures` x `period` seconds pass before it acts."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }
