"""Lists everything that listens in a cluster, to which a sandbox may try to connect."""

from __future__ import annotations

from typing import Any

from headway_demo.settings import NAMESPACE

Target = tuple[str, str, int]
"""`tcp` or `dns`, address, port."""


def targets(kube: Any, but: str) -> dict[str, Target]:
    """Everything that listens in the cluster, by a name, except the pod `but`."""
    dns = kube.get("services", "-n", "kube-system", "-l", "k8s-app=kube-dns")["items"][0]["spec"]["clusterIP"]
    api = kube.get("service", "kubernetes", "-n", "default")["spec"]["clusterIP"]
    found: dict[str, Target] = {
        "dns/udp": ("dns", dns, 53),
        "dns/tcp": ("tcp", dns, 53),
        "api/service": ("tcp", api, 443),
    }
    label = "kubernetes.io/service-name=kubernetes"
    for part in kube.get("endpointslices", "-n", "default", "-l", label)["items"]:
        for address in (address for end in part["endpoints"] for address in end["addresses"]):
            found[f"api/{address}"] = ("tcp", address, part["ports"][0]["port"])
    for node in kube.get("nodes")["items"]:
        kubelet = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        for address in (a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"):
            found[f"kubelet/{address}"] = ("tcp", address, kubelet)
    for service in kube.get("services", "-n", NAMESPACE)["items"]:
        address = service["spec"].get("clusterIP", "None")
        for port in service["spec"]["ports"] if address != "None" else ():
            found[f"service/{service['metadata']['name']}:{port['port']}"] = ("tcp", address, port["port"])
    for pod in kube.get("pods", "-n", NAMESPACE, "--field-selector=status.phase=Running")["items"]:
        if pod["metadata"]["name"] != but:
            found |= listening(pod)
    return found


def listening(pod: dict[str, Any]) -> dict[str, Target]:
    """The ports that a pod declares, by its role and name."""
    labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
    role = labels.get("app.kubernetes.io/component") or labels["app"]
    return {
        f"{role}/{name}:{port['containerPort']}": ("tcp", pod["status"]["podIP"], port["containerPort"])
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    }
