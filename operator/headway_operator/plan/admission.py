"""Checks a job against limits that the schema does not have: sizes, and fields of its podTemplates.

The operator creates pods with rights that a job's author may lack. So a podTemplate may set only the fields
listed here. A sandbox runs code that a model wrote, and holds no credentials: it may set fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headway_api import names
from headway_api.document import Json
from headway_operator.plan import containers, reach
from headway_operator.plan.containers import ROLE_TEMPLATES
from headway_operator.plan.context import OWN_ACCOUNT, Context

POD_FIELDS: Final = frozenset(
    {
        "activeDeadlineSeconds",
        "affinity",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "imagePullSecrets",
        "initContainers",
        "nodeSelector",
        "overhead",
        "preemptionPolicy",
        "priorityClassName",
        "resourceClaims",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    }
)
VOLUME_SOURCES: Final = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "secret"}
)

ACCOUNT: Final = "may not be set here; use spec.serviceAccountName"
POD_INSTEAD: Final = {"serviceAccount": ACCOUNT, "serviceAccountName": ACCOUNT}
"""Fields that a podTemplate may not set, and where to set them instead."""
LEARNER_INSTEAD: Final = POD_INSTEAD | {
    "terminationGracePeriodSeconds": "may not be set here; use spec.learner.terminationGracePeriodSeconds"
}
"""Fields that a learner's podTemplate may not set, and where to set them instead."""

FIXED: Final = "is fixed for every sandbox; leave it out"
SANDBOX_INSTEAD: Final = {
    "activeDeadlineSeconds": "may not be set here; use spec.environment.sandbox.deadlineSeconds",
    "automountServiceAccountToken": FIXED,
    "dnsConfig": FIXED,
    "dnsPolicy": FIXED,
    "enableServiceLinks": FIXED,
    "hostIPC": FIXED,
    "hostNetwork": FIXED,
    "hostPID": FIXED,
    "restartPolicy": FIXED,
    "runtimeClassName": "may not be set here; use spec.environment.sandbox.runtimeClassName",
    "securityContext": FIXED,
    "serviceAccount": FIXED,
    "serviceAccountName": FIXED,
    "terminationGracePeriodSeconds": FIXED,
}
"""Fields of a pod that a sandbox's template may not set, and what to do instead."""
SANDBOX_VOLUMES: Final = frozenset({"configMap", "downwardAPI", "emptyDir", "image"})
"""Volumes that a sandbox may have. `ephemeral` is excluded: it creates a PersistentVolumeClaim for each
episode, which may clone another volume."""
SANDBOX_VARIABLES: Final = frozenset({"configMapKeyRef", "fieldRef", "resourceFieldRef"})
NO_CREDENTIALS: Final = "may not be used in a sandbox, which holds no credentials"
SYSTEM_PRIORITY: Final = "system-"
"""Prefix of the cluster's own priority classes."""
CONTROL_PLANE: Final = "node-role.kubernetes.io/"
"""Prefix of the taints that keep pods off the nodes of the control plane."""
PROFILES: Final = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
)
"""Prefixes of annotations that choose a container's security profile."""


def of_training(context: Context) -> list[str]:
    """Why an RLTrainingJob cannot be accepted: each message names the field and what to change."""
    caps, spec = context.platform.caps, context.training.spec
    servers = ("spec.rollout.replicas", spec.rollout.replicas, caps.rollout_replicas)
    if spec.has_validation_server:
        field = "spec.rollout.replicas plus the server of spec.evaluation.servers"
        servers = (field, spec.rollout.replicas + 1, caps.rollout_replicas)
    nodes = ("spec.learner.nodes", spec.learner.nodes, caps.learner_nodes)
    learner = _template(spec.learner.pod_template, "spec.learner.podTemplate", LEARNER_INSTEAD)
    sizes = _sizes(servers, nodes, _judges(context), _sandboxes(context))
    return [*sizes, *_account(context), *reach.refusals(context), *learner, *_templates(context)]


def of_evaluation(context: Context) -> list[str]:
    """Why an RLEvalJob cannot be accepted: each message names the field and what to change."""
    spec, caps = context.evaluation.spec, context.platform.caps
    maximum = spec.rollout.replicas * spec.parallelism
    servers = ("spec.rollout.replicas x spec.parallelism", maximum, caps.rollout_replicas)
    sizes = _sizes(servers, _judges(context), _sandboxes(context))
    return [
        *sizes,
        *_account(context),
        *reach.refusals(context),
        *_templates(context),
        *_suites(context),
    ]


def _suites(context: Context) -> Iterator[str]:
    """Refusals for the sandboxes of suites. They have the fields of spec.environment.sandbox, at another
    path."""
    for suite in context.suites:
        path = f"spec.suites[{suite.name}].sandbox"
        fragment = suite.sandbox.pod_template
        for message in _template(fragment, f"{path}.podTemplate", SANDBOX_INSTEAD, sandbox=True):
            yield message.replace("spec.environment.sandbox.", f"{path}.")


def _templates(context: Context) -> list[str]:
    spec = context.spec
    return [
        *_template(spec.rollout.pod_template, "spec.rollout.podTemplate"),
        *_template(
            spec.environment.sandbox.pod_template,
            "spec.environment.sandbox.podTemplate",
            SANDBOX_INSTEAD,
            sandbox=True,
        ),
    ]


def _sandboxes(context: Context) -> tuple[str, int, int]:
    """Field, requested number and limit of sandboxes, summed over all pools: each may reach its own."""
    spec = context.spec
    pools = [spec.environment.sandbox, *(suite.sandbox for suite in context.suites)]
    maximum = sum(pool.warm_pool.max or context.max_episodes for pool in pools)
    field = "spec.environment.sandbox.warmPool.max or spec.rollout.maxConcurrency"
    if context.suites:
        field += ", with sandbox.warmPool.max or spec.rollout.maxConcurrency for each of spec.suites"
    return field, maximum, context.platform.caps.sandboxes


def _judges(context: Context) -> tuple[str, int, int]:
    """Field, requested number and limit of judges' servers: the sum over all judges."""
    maximum = sum(judge.model.replicas for judge in context.spec.judges if judge.model is not None)
    return "spec.judges[].model.replicas, together", maximum, context.platform.caps.rollout_replicas


def _sizes(*sizes: tuple[str, int, int]) -> list[str]:
    """Refusals of sizes above their limits; `sizes`: field, requested number and limit."""
    return [
        f"{field}: {value} is above this platform's limit of {limit}; lower it, or ask an administrator to "
        "raise the limit"
        for field, value, limit in sizes
        if value > limit
    ]


def _account(context: Context) -> list[str]:
    """Refuse the account of broker or sandboxes for other roles: they would get its rights and identity."""
    name = context.spec.service_account_name
    if name not in {context.child(role) for role in OWN_ACCOUNT}:
        return []
    return [f"spec.serviceAccountName: the operator creates {name} for its own roles; name another account"]


def _template(
    fragment: Json | None, field: str, instead: Mapping[str, str] = POD_INSTEAD, *, sandbox: bool = False
) -> list[str]:
    if not fragment:
        return []
    parts = ("metadata", "spec")
    found = [f"{field}.{key}: only metadata and spec may be given" for key in fragment.keys() - set(parts)]
    found += [
        f"{field}.{part}: must be an object"
        for part in parts
        if part in fragment and not isinstance(fragment[part], dict)
    ]
    found += _metadata(_mapping(fragment.get("metadata")), f"{field}.metadata")
    spec, path = _mapping(fragment.get("spec")), f"{field}.spec"
    found += _pod_fields(spec, path, instead)
    found += _volumes(spec, path, sandbox=sandbox)
    found += _placement(spec, path)
    for kind in ("containers", "initContainers"):
        for where, container in _entries(spec, path, kind):
            found += containers.refusals(container, where)
            found += _host_ports(container, where)
            found += _variables(container, where) if sandbox else []
    found += [
        f"{path}.{key}: must be a list of objects"
        for key in ("containers", "initContainers", "volumes")
        if key in spec and not _is_list(spec[key])
    ]
    return sorted(found)


def _metadata(metadata: Json, path: str) -> Iterator[str]:
    for key, value in metadata.items():
        if key not in ("labels", "annotations"):
            yield f"{path}.{key}: only labels and annotations may be given"
        elif not isinstance(value, dict | None):
            yield f"{path}.{key}: must be an object"
        else:
            yield from _keys(value or {}, f"{path}.{key}")


def _keys(metadata: Json, path: str) -> Iterator[str]:
    """Refusals for the keys of labels or annotations."""
    for key in metadata:
        if key.partition("/")[0] == names.GROUP and "/" in key:
            yield (
                f"{path}: {key} may not be set in a job: keys that begin with {names.GROUP}/ belong to "
                "the operator"
            )
        elif key.startswith(PROFILES):
            yield f"{path}: {key} may not be set in a job; {ROLE_TEMPLATES}"


def _placement(spec: Json, path: str) -> Iterator[str]:
    """Refuse priorities that displace the cluster's own pods, and tolerations for their nodes."""
    if str(spec.get("priorityClassName", "")).startswith(SYSTEM_PRIORITY):
        yield f"{path}.priorityClassName: {SYSTEM_PRIORITY} classes belong to the cluster; name another one"
    for where, toleration in _entries(spec, path, "tolerations"):
        key = toleration.get("key")
        if not key:
            yield f"{where}: tolerates every taint; write the key of the taint to tolerate"
        elif str(key).startswith(CONTROL_PLANE):
            yield f"{where}.key: {key} may not be tolerated in a job; {ROLE_TEMPLATES}"


def _pod_fields(spec: Json, path: str, instead: Mapping[str, str]) -> Iterator[str]:
    for key in spec:
        if key in instead:
            yield f"{path}.{key} {instead[key]}"
        elif key not in POD_FIELDS:
            yield f"{path}.{key} may not be set in a job; {ROLE_TEMPLATES}"


def _volumes(spec: Json, path: str, *, sandbox: bool) -> Iterator[str]:
    for where, volume in _entries(spec, path, "volumes"):
        for source in volume.keys() - {"name"}:
            if source not in VOLUME_SOURCES:
                yield f"{where}.{source} may not be used in a job; {ROLE_TEMPLATES}"
            elif sandbox and source not in SANDBOX_VOLUMES:
                allowed = ", ".join(sorted(SANDBOX_VOLUMES))
                yield f"{where}.{source} {NO_CREDENTIALS} and nothing of other pods; use one of {allowed}"


def _host_ports(container: Json, path: str) -> Iterator[str]:
    """Refuse ports on the node. NetworkPolicies need not cover them, so anybody could reach them."""
    for where, port in _entries(container, path, "ports"):
        for key in ("hostPort", "hostIP"):
            if key in port:
                yield f"{where}.{key} may not be used in a job; {ROLE_TEMPLATES}"


def _variables(container: Json, path: str) -> Iterator[str]:
    for where, variable in _entries(container, path, "env"):
        for source in _mapping(variable.get("valueFrom")).keys() - SANDBOX_VARIABLES:
            yield f"{where}.valueFrom.{source} {NO_CREDENTIALS}; give a value, or take it from a configMap"
    for where, source_of in _entries(container, path, "envFrom"):
        for source in source_of.keys() - {"configMapRef", "prefix"}:
            yield f"{where}.{source} {NO_CREDENTIALS}; use configMapRef"


def _entries(parent: Json, path: str, key: str) -> Iterator[tuple[str, Json]]:
    """Objects of a list, each with its path."""
    value = parent.get(key)
    for index, entry in enumerate(value if isinstance(value, list) else []):
        yield f"{path}.{key}[{index}]", _mapping(entry)


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
