"""Pod templates: what the operator makes, what the platform adds, what the job adds, what must hold.

Layers are merged as `kubectl` merges pods: maps by key, containers, volumes, variables, ports and mounts by
their name, tolerations appended, any other list replaced. A later layer wins, and the last layer is ours:
labels, service account and the restricted security context cannot be changed by any of the others.
"""

from __future__ import annotations

import copy
from typing import Final

from headway_operator.plan.context import Json

KEYED: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
}
APPENDED: Final = frozenset({"tolerations", "envFrom"})
WHOLE: Final = frozenset({"env", "volumes"})
"""Lists whose entries are replaced and not merged: value and valueFrom exclude one another."""

USER: Final = 65532

POD_SECURITY: Final[Json] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def merge(base: Json, layer: Json) -> Json:
    """`layer` over `base`; neither is changed. A null removes what it stands for."""
    merged = copy.deepcopy(base)
    for key, value in layer.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        elif isinstance(value, list) and key in APPENDED:
            merged[key] = [*merged.get(key, []), *copy.deepcopy(value)]
        elif isinstance(value, list) and key in KEYED:
            merged[key] = _merge_list(merged.get(key, []), value, KEYED[key], whole=key in WHOLE)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_list(base: list[Json], layer: list[Json], name: str, *, whole: bool) -> list[Json]:
    entries = {entry.get(name): entry for entry in base}
    for entry in layer:
        known = entries.get(entry.get(name))
        entries[entry.get(name)] = copy.deepcopy(entry) if known is None or whole else merge(known, entry)
    return list(entries.values())


def harden(template: Json, labels: dict[str, str], service_account: str, default_resources: Json) -> Json:
    """The last layer: what holds whatever the others say.

    A container without resources (a side-car of the user's) gets `default_resources`, so that every pod
    has requests and limits.
    """
    held = merge(
        template,
        {
            "metadata": {"labels": labels},
            "spec": {
                "serviceAccountName": service_account,
                "enableServiceLinks": False,
                "securityContext": POD_SECURITY,
            },
        },
    )
    for kind in ("containers", "initContainers"):
        for container in held["spec"].get(kind, []):
            given = {"runAsUser", "runAsGroup", "privileged", "procMount", "seccompProfile", "seLinuxOptions"}
            context = {k: v for k, v in (container.get("securityContext") or {}).items() if k not in given}
            container["securityContext"] = context | copy.deepcopy(CONTAINER_SECURITY)
            container.setdefault("resources", copy.deepcopy(default_resources))
    return held
