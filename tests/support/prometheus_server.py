"""A real Prometheus for a test, which scrapes pods on loopback as a PodMonitor says."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from chart import cluster_command
from first_answer import until_it_answers
from ports import free_port

from headway_api.document import Json


@dataclass(frozen=True)
class Pod:
    """Something that answers scrapes, as service discovery would describe it."""

    namespace: str
    name: str
    template: Json
    """Pod template of its Deployment or Job."""
    address: str
    ready: bool = True

    def discovered(self, port: str) -> dict[str, str]:
        """The labels of a target before relabelling; empty if no container has this port."""
        labels = {
            "__meta_kubernetes_namespace": self.namespace,
            "__meta_kubernetes_pod_name": self.name,
            "__meta_kubernetes_pod_phase": "Running",
            "__meta_kubernetes_pod_ready": str(self.ready).lower(),
            "__meta_kubernetes_pod_ip": self.address.rpartition(":")[0],
            "__meta_kubernetes_pod_container_port_name": port,
        }
        for key, value in self.template["metadata"]["labels"].items():
            labels[f"__meta_kubernetes_pod_label_{plain(key)}"] = value
            labels[f"__meta_kubernetes_pod_labelpresent_{plain(key)}"] = "true"
        for container in self.template["spec"]["containers"]:
            if port in (each["name"] for each in container.get("ports", ())):
                return labels | {"__meta_kubernetes_pod_container_name": container["name"]}
        return {}


def plain(label: str) -> str:
    """A Kubernetes label as Prometheus spells it."""
    return re.sub(r"[^A-Za-z0-9_]", "_", label)


def scrape_configs(monitor: Json, pods: list[Pod]) -> Iterator[Json]:
    """A PodMonitor in Prometheus' own configuration, with `pods` instead of service discovery.

    It follows the Prometheus operator's documented translation. The operator itself does not run here.
    """
    in_reach = [pod for pod in pods if pod.namespace in watched(monitor)]

    def listed(port: str) -> Json:
        found = [(pod.address, pod.discovered(port)) for pod in in_reach]
        return {"static_configs": [{"targets": [at], "labels": labels} for at, labels in found if labels]}

    return translated(monitor, listed)


def translated(monitor: Json, discovery: Callable[[str], Json]) -> Iterator[Json]:
    """A PodMonitor in Prometheus' own configuration. `discovery`: name of a port -> its discovery block."""
    spec, own = monitor["spec"], monitor["metadata"]
    for number, endpoint in enumerate(spec["podMetricsEndpoints"]):
        config = {
            "job_name": f"podMonitor/{own['namespace']}/{own['name']}/{number}",
            "honor_labels": endpoint.get("honorLabels", False),
            "scrape_interval": endpoint.get("interval"),
            "scrape_timeout": endpoint.get("scrapeTimeout"),
            **discovery(endpoint["port"]),
            "relabel_configs": [
                *chosen(spec["selector"]),
                *named(monitor, endpoint["port"]),
                *map(relabelling, endpoint.get("relabelings", ())),
            ],
            "metric_relabel_configs": [*map(relabelling, endpoint.get("metricRelabelings", ()))],
        }
        yield {key: value for key, value in config.items() if value is not None}


def watched(monitor: Json) -> list[str]:
    """The namespaces whose pods a PodMonitor sees."""
    selector = monitor["spec"].get("namespaceSelector", {})
    assert "any" not in selector, "name the namespaces in the release's watchNamespaces"
    return list(selector.get("matchNames", [monitor["metadata"]["namespace"]]))


def chosen(selector: Json) -> Iterator[Json]:
    """Rules that keep only the pods that a label selector selects."""
    wanted = {key: [value] for key, value in selector.get("matchLabels", {}).items()}
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In", "only In is translated"
        wanted[expression["key"]] = expression["values"]
    for key, values in wanted.items():
        sources = [f"__meta_kubernetes_pod_{kind}_{plain(key)}" for kind in ("label", "labelpresent")]
        yield {"action": "keep", "source_labels": sources, "regex": f"({'|'.join(values)});true"}


def named(monitor: Json, port: str) -> Iterator[Json]:
    """Rules for the labels that each sample of a target gets."""
    for source, target in (("namespace",) * 2, ("pod_container_name", "container"), ("pod_name", "pod")):
        yield {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
    for label in map(plain, monitor["spec"].get("podTargetLabels", ())):
        yield {
            "source_labels": [f"__meta_kubernetes_pod_label_{label}"],
            "target_label": label,
            "regex": "(.+)",
        }
    own = monitor["metadata"]
    yield {"target_label": "job", "replacement": f"{own['namespace']}/{own['name']}"}
    yield {"target_label": "endpoint", "replacement": port}


def relabelling(rule: Json) -> Json:
    """A relabelling rule of a PodMonitor, in Prometheus' spelling."""
    return {re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", key): rule[key] for key in rule}


@contextmanager
def exposing(text: Callable[[], bytes]) -> Iterator[str]:
    """The address of a server whose /metrics answers with `text`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Prometheus:
    """A client of Prometheus' HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer; raises AssertionError with the text of a refusal."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def series(self, expression: str) -> list[tuple[Json, float]]:
        """Labels and value of each series that an expression returns now."""
        found = self.ask("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]


@contextmanager
def prometheus_server(folder: Path, configs: list[Json], rules: Json) -> Iterator[Prometheus]:
    """Run a Prometheus with these scrape configurations and rules, which it evaluates every second."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    everything = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": configs,
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(everything))
    address = f"127.0.0.1:{free_port()}"
    command = [str(cluster_command("prometheus")), f"--config.file={folder}/prometheus.yaml"]
    command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}", "--log.level=warn"]
    command += ["--storage.tsdb.retention.time=10y"]  # replayed records may be old
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        until_it_answers(process, f"http://{address}/-/ready", folder / "log")
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(30)
