"""Which containers of a cluster take what they like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway_demo.kube import Kube

HELD = [(kind, quantity) for kind in ("requests", "limits") for quantity in ("cpu", "memory")]
"""What every container says. A share of a core as well: the cluster's two are everybody's."""

OF_KIND = frozenset({"kube-system", "local-path-storage"})
"""Namespaces that kind fills by itself."""


def pods_to_hold(kube: Kube) -> list[dict[str, Any]]:
    """Every pod of every namespace, but those that are ending and those that kind itself runs."""
    nodes = kube.get("nodes")["items"]
    on_kind = any(node["spec"].get("providerID", "").startswith("kind:") for node in nodes)
    foreign = OF_KIND if on_kind else frozenset()
    return [
        pod
        for pod in kube.get("pods", "--all-namespaces")["items"]
        if "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["namespace"] not in foreign
    ]


def unheld(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """`namespace/pod/container: limits.memory` for each thing that a container does not say."""
    return [
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{container['name']}: {kind}.{quantity}"
        for pod in pods
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        for kind, quantity in HELD
        if quantity not in container.get("resources", {}).get(kind, {})
    ]
