"""Finds containers of a cluster that lack requests or limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway_demo.kube import Kube

HELD = [(kind, quantity) for kind in ("requests", "limits") for quantity in ("cpu", "memory")]
"""What every container must have. CPU is included, since all pods share the two cores of the cluster."""

OF_KIND = frozenset({"kube-system", "local-path-storage"})
"""Namespaces whose pods kind itself creates."""


def pods_to_hold(kube: Kube) -> list[dict[str, Any]]:
    """Every pod of every namespace, except pods that are ending and pods that kind itself runs."""
    nodes = kube.get("nodes")["items"]
    on_kind = any(node["spec"].get("providerID", "").startswith("kind:") for node in nodes)
    foreign = OF_KIND if on_kind else frozenset()
    return [
        pod
        for pod in kube.get("pods", "--all-namespaces")["items"]
        if "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["namespace"] not in foreign
    ]


def unheld(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """`namespace/pod/container: limits.memory` for each request or limit that a container lacks."""
    return [
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{container['name']}: {kind}.{quantity}"
        for pod in pods
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        for kind, quantity in HELD
        if quantity not in container.get("resources", {}).get(kind, {})
    ]
