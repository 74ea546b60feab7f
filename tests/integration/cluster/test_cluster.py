"""The local cluster behaves as Kubernetes does. Each test checks one behaviour."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .pods import pod, service, web_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]

READY_S = "--timeout=180s"


@pytest.fixture
def web(cluster: Any, namespace: str) -> Iterator[str]:
    """The namespace, with a web server and a shell in it."""
    cluster.apply(pod("web", namespace, *web_server(8080), labels={"app": "web"}), pod("shell", namespace))
    ready(cluster, namespace, "web", "shell")
    return namespace


def ready(cluster: Any, namespace: str, *names: str) -> None:
    pods = [f"pod/{name}" for name in names]
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", READY_S, *pods)


def test_the_node_is_ready(cluster: Any) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    (conditions,) = [node["status"]["conditions"] for node in nodes]
    assert {"Ready": "True"}.items() <= {c["type"]: c["status"] for c in conditions}.items()


def test_client_and_server_are_of_one_version(cluster: Any) -> None:
    versions = json.loads(cluster.kubectl("version", "-o", "json"))
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"]


def test_a_pod_runs_to_its_end_and_leaves_logs(cluster: Any, namespace: str) -> None:
    cluster.apply(pod("once", namespace, "echo", "from inside", restartPolicy="Never"))
    phase = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", "-n", namespace, phase, READY_S, "pod/once")
    assert cluster.kubectl("logs", "-n", namespace, "once") == "from inside\n"


def test_exec_runs_in_the_pod(cluster: Any, web: str) -> None:
    output = cluster.kubectl("exec", "-n", web, "shell", "--", "cat", "/etc/hostname")
    assert output == "shell\n"


def test_a_service_is_found_by_name(cluster: Any, web: str) -> None:
    cluster.apply(service("front", web, {"app": "web"}, 8080))
    asked = ("exec", "-n", web, "shell", "--", "timeout", "5", "wget", "-qO-", "http://front:8080")
    cluster.wait_until("the service to answer", lambda: cluster.attempt(*asked).returncode == 0)
    assert cluster.kubectl(*asked) == "hello\n"


def test_a_headless_service_resolves_to_pod_addresses(cluster: Any, web: str) -> None:
    cluster.apply(service("peers", web, {"app": "web"}, 8080, headless=True))
    address = cluster.kubectl("get", "-n", web, "pod/web", "-o", "jsonpath={.status.podIP}")
    name = f"peers.{web}.svc.cluster.local"
    asked = ("exec", "-n", web, "shell", "--", "nslookup", name)
    cluster.wait_until(f"{name} to resolve", lambda: address in cluster.attempt(*asked).stdout)


def test_the_host_reaches_a_service(cluster: Any, web: str) -> None:
    cluster.apply(service("front", web, {"app": "web"}, 8080))
    where = cluster.kubectl("get", "-n", web, "service/front", "-o", "jsonpath={.spec.clusterIP}")

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://{where}:8080", timeout=2) as answer:
                return bool(answer.read() == b"hello\n")
        except OSError:
            return False

    cluster.wait_until("the service to answer on the host", answers)


def test_a_host_path_shows_the_hosts_files(cluster: Any, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("left by the host\n")
    cluster.apply(
        pod(
            "reader",
            namespace,
            container={"volumeMounts": [{"name": "host", "mountPath": "/host"}]},
            volumes=[{"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}}],
        )
    )
    ready(cluster, namespace, "reader")
    read = cluster.kubectl("exec", "-n", namespace, "reader", "--", "cat", "/host/note")
    assert read == "left by the host\n"


@pytest.mark.parametrize("port", [6443, 10250], ids=["api-server", "kubelet"])
def test_the_api_server_refuses_strangers(cluster: Any, port: int) -> None:
    server = json.loads(cluster.kubectl("config", "view", "-o", "json"))["clusters"][0]["cluster"]
    host = server["server"].removeprefix("https://").partition(":")[0]
    nobody = ssl._create_unverified_context()
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"https://{host}:{port}/healthz", context=nobody, timeout=30)
    assert refusal.value.code == 401


def test_restricted_pod_security_refuses_a_privileged_pod(cluster: Any, namespace: str) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", namespace, label)
    privileged = pod("bad", namespace, container={"securityContext": {"privileged": True}})
    refused = cluster.attempt("apply", "-f", "-", input=json.dumps(privileged))
    assert refused.returncode != 0
    assert "violates PodSecurity" in refused.stderr
