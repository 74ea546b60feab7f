"""Layers of a pod template, merged alike wherever a pod is made: for the operator's roles, for sandboxes.

As `kubectl` merges pods: maps by key, containers, volumes, variables, ports, mounts and so on by their name,
tolerations and sources of variables appended, any other list replaced. A later layer wins; a null removes.
"""

from __future__ import annotations

import copy
from typing import Any, Final

Json = dict[str, Any]

KEYED: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
"""List -> the field that tells its entries apart."""
APPENDED: Final = frozenset({"tolerations", "envFrom"})
WHOLE: Final = frozenset({"env", "volumes", "resourceClaims"})
"""Lists whose entries are replaced and not merged: value and valueFrom exclude one another."""
SIDECAR_RESOURCES: Final[Json] = {
    "requests": {"cpu": "50m", "memory": "128Mi"},
    "limits": {"cpu": "500m", "memory": "512Mi"},
}
"""Of a container that a template adds without a word on resources."""


def merge(base: Json, layer: Json) -> Json:
    """`layer` over `base`; neither is changed. A wrong shape is passed on: the API server refuses it."""
    merged = copy.deepcopy(base)
    for key, value in layer.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(below, dict):
            merged[key] = merge(below, value)
        elif isinstance(value, list) and isinstance(below, list) and key in APPENDED:
            merged[key] = [*below, *copy.deepcopy(value)]
        elif key in KEYED and _told_apart(below, KEYED[key]) and _told_apart(value, KEYED[key]):
            merged[key] = _merge_list(below or [], value, KEYED[key], whole=key in WHOLE)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def bounded(container: Json) -> Json:
    """The container, with `SIDECAR_RESOURCES` where it names none: no pod is without requests and limits."""
    return {**container, "resources": container.get("resources") or copy.deepcopy(SIDECAR_RESOURCES)}


def _told_apart(entries: Any, name: str) -> bool:
    """Whether each entry of the list, or of none, has the field that names it."""
    if entries is None:
        return True
    return isinstance(entries, list) and all(isinstance(entry, dict) and name in entry for entry in entries)


def _merge_list(base: list[Json], layer: list[Json], name: str, *, whole: bool) -> list[Json]:
    entries = {entry[name]: entry for entry in base}
    for entry in layer:
        known = entries.get(entry[name])
        entries[entry[name]] = copy.deepcopy(entry) if known is None or whole else merge(known, entry)
    return list(entries.values())
