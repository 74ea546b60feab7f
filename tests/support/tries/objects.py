"""Objects that a stranger creates in a cluster, to run a program of this folder in its own pod."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headway_api.document import Json

HERE = Path(__file__).parent
RESTRICTED: Json = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def module(namespace: str, name: str, replaced: Mapping[str, str] | None = None) -> Json:
    """Return a ConfigMap that holds a program, with parts of its text replaced."""
    source = (HERE / f"{name}.py").read_text()
    for old, new in (replaced or {}).items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    metadata = {"name": f"tried-{name}", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {f"{name}.py": source}}


def mounted(name: str) -> tuple[Json, Json]:
    """Return the volume and mount of such a program, beside the example's environment."""
    file = f"{name}.py"
    mount = {"name": name, "mountPath": f"/environment/{file}", "subPath": file}
    return {"name": name, "configMap": {"name": f"tried-{name}"}}, mount


def served(namespace: str, name: str, image: str, port: int) -> list[Json]:
    """Return a Pod that runs a program, and a Service of the same name for it."""
    volume, mount = mounted(name)
    where = {"name": f"tried-{name}", "namespace": namespace}
    container = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", f"/environment/{name}.py"],
        "ports": [{"containerPort": port}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 2},
        "resources": {
            "requests": {"cpu": "20m", "memory": "32Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "securityContext": RESTRICTED,
        "volumeMounts": [mount],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**where, "labels": {"app": where["name"]}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [volume],
        },
    }
    spec = {"selector": {"app": where["name"]}, "ports": [{"port": port}]}
    return [pod, {"apiVersion": "v1", "kind": "Service", "metadata": where, "spec": spec}]
