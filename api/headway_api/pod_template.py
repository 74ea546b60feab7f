"""Merges layers of a pod template, in the same way for the operator's roles and for sandboxes.

It merges pods as `kubectl` does. Maps are merged by key; containers, volumes, variables, ports, mounts and so
on by their name. Tolerations and sources of variables are appended, and any other list is replaced. A later
layer wins, and a null removes the field.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from headway_api.document import Json

KEYED: Final[dict[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "imagePullSecrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "hostAliases": ("ip",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
}
"""List -> the fields that identify its entries."""
DEFAULTS_OF_KEYS: Final = {"protocol": "TCP"}
"""Defaults of identifying fields that an entry may omit."""
APPENDED: Final = frozenset({"tolerations", "envFrom"})
WHOLE: Final = frozenset({"env", "volumes", "resourceClaims"})
"""Lists whose entries are replaced and not merged: value and valueFrom exclude one another."""
SIDECAR_RESOURCES: Final[Json] = {
    "requests": {"cpu": "50m", "memory": "128Mi"},
    "limits": {"cpu": "500m", "memory": "512Mi"},
}
"""Resources of a container that a template adds without resources."""


def merge(base: Json, layer: Json) -> Json:
    """A new object: `layer` merged over `base`. Values of a wrong type are copied, and the API server refuses
    them."""
    merged = copy.deepcopy(base)
    for key, value in layer.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(below, dict):
            merged[key] = merge(below, value)
        elif isinstance(value, list) and isinstance(below, list) and key in APPENDED:
            merged[key] = [*below, *copy.deepcopy(value)]
        elif key in KEYED and _are_distinct(key, below) and _are_distinct(key, value):
            merged[key] = _merge_list(key, below or [], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def bounded(container: Json) -> Json:
    """The container, with `SIDECAR_RESOURCES` if it names no resources, so that every pod has requests and
    limits."""
    return {**container, "resources": container.get("resources") or copy.deepcopy(SIDECAR_RESOURCES)}


def _identity(key: str, entry: Json) -> tuple[Any, ...]:
    """The values that identify an entry of the list `key`."""
    return tuple(entry.get(field, DEFAULTS_OF_KEYS.get(field)) for field in KEYED[key])


def _are_distinct(key: str, entries: Any) -> bool:
    """Whether text or numbers identify each entry of the list uniquely. True for None."""
    if entries is None:
        return True
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return False
    found = [_identity(key, entry) for entry in entries]
    return all(isinstance(part, str | int) for one in found for part in one) and len(set(found)) == len(found)


def _merge_list(key: str, base: list[Json], layer: list[Json]) -> list[Json]:
    entries = {_identity(key, entry): entry for entry in base}
    for entry in layer:
        identity = _identity(key, entry)
        known = entries.get(identity)
        entries[identity] = copy.deepcopy(entry) if known is None or key in WHOLE else merge(known, entry)
    return list(entries.values())
