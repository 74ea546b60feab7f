"""Small pods for tests, all with the one image that every local cluster has."""

from __future__ import annotations

from typing import Any

IMAGE = "localhost/headway/testbox:1"


def pod(
    name: str,
    namespace: str,
    *command: str,
    labels: dict[str, str] | None = None,
    ports: dict[str, int] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod of one container that runs `command`, or sleeps."""
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command) or ["sleep", "3600"],
        "ports": [{"name": key, "containerPort": value} for key, value in (ports or {}).items()],
    }
    container.update(spec.pop("container", {}))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {
            "containers": [container],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }


def web_server(port: int) -> tuple[str, ...]:
    """A command that answers every request for / on `port` with "hello"."""
    return ("sh", "-c", f"echo hello > /tmp/index.html; exec httpd -f -p {port} -h /tmp")


def service(
    name: str, namespace: str, selector: dict[str, str], port: int, *, headless: bool = False
) -> dict[str, Any]:
    spec: dict[str, Any] = {"selector": selector, "ports": [{"port": port}]}
    if headless:
        spec["clusterIP"] = "None"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
