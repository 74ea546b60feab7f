"""A real Prometheus on this machine, which scrapes the cluster's pods as the chart's PodMonitors say.

The machine is the cluster's node, and a node reaches its pods. Debian builds Prometheus without Kubernetes
discovery. So `Discovery` lists the pods instead, and describes them by the same labels.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from api_reader import ApiReader
from chart import render, rules_at_once
from prometheus_server import Pod, Prometheus, prometheus_server, translated, watched

from headway_api.document import Json
from headway_dashboards.asking import Question, sent

SCRAPE_S = 1
LIST_S = 1.0
"""Seconds from one list of the pods to the next."""
MAX_POINTS = 5000
"""Points of a curve at most. Prometheus refuses more than 11,000."""


@dataclass(frozen=True)
class Watched:
    """The Prometheus that watches a cluster, and when it began."""

    prometheus: Prometheus
    begun: float
    """When the watch began, as Unix time."""

    def returns_series(self, question: Question, chosen: dict[str, str]) -> bool:
        """Return whether the question had an answer at any time since the watch began.

        This covers all that time even for a question about now, because the jobs have ended by now.
        """
        now = time.time()
        step = max(SCRAPE_S, (now - self.begun) / MAX_POINTS)
        expr = sent(question.expr, chosen, scrape_seconds=SCRAPE_S, step_seconds=step)
        found = self.prometheus.ask(
            "query_range", query=expr, start=f"{self.begun}", end=f"{now}", step=f"{step}"
        )["result"]
        return any(math.isfinite(float(value)) for each in found for _, value in each["values"])


class Discovery:
    """Repeatedly writes to files which pods have a port of a given name."""

    def __init__(self, folder: Path, kubeconfig: Path, places: set[tuple[str, str]]) -> None:
        """`places` are pairs of a namespace and a port's name."""
        self._folder = folder
        self._readers = {name: ApiReader(kubeconfig, name) for name in {name for name, _ in places}}
        self._places = places
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def file(self, namespace: str, port: str) -> Path:
        """Return the file that lists the pods of a namespace."""
        return self._folder / f"{namespace}.{port}.json"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write the files while the block lasts. At its end, raise any error that stopped the writing."""
        self._write()
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()
            for reader in self._readers.values():
                reader.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._over.wait(LIST_S):
                self._write()
        except Exception as error:  # raised again at the end of the block
            self._failure = error

    def _write(self) -> None:
        pods = {name: reader.labelled("", ["Pod"]).values() for name, reader in self._readers.items()}
        for namespace, port in self._places:
            groups = [group for pod in pods[namespace] for group in targets(pod, port)]
            made = self.file(namespace, port)
            (partial := made.with_suffix(".partial")).write_text(json.dumps(groups))
            partial.rename(made)


def targets(pod: Json, port: str) -> Iterator[Json]:
    """Return a running pod as Prometheus discovers it; nothing if it has no port of this name."""
    status, meta = pod["status"], pod["metadata"]
    if status.get("phase") != "Running" or "podIP" not in status or "deletionTimestamp" in meta:
        return
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    for container in pod["spec"]["containers"]:
        for each in container.get("ports", ()):
            if each.get("name") == port:
                address = f"{status['podIP']}:{each['containerPort']}"
                found = Pod(meta["namespace"], meta["name"], pod, address, ready)
                yield {"targets": [address], "labels": found.discovered(port)}


@contextmanager
def watched_cluster(
    folder: Path, kubeconfig: Path, *, system: str, namespaces: Sequence[str]
) -> Iterator[Watched]:
    """Watch a cluster while the block lasts. `system` is the operator's namespace."""
    often = f"{SCRAPE_S}s"
    values: Json = {
        "watchNamespaces": [*namespaces],
        # An evaluation gate that is not met raises the alert too.
        "prometheusRule": {"enabled": True, "expectedFailures": []},
        "podMonitor": {"enabled": True, "interval": often, "scrapeTimeout": often},
    }
    monitors = render("podmonitor.yaml", values, namespace=system)
    ports = {endpoint["port"] for each in monitors for endpoint in each["spec"]["podMetricsEndpoints"]}
    found = Discovery(folder, kubeconfig, {(name, port) for name in (system, *namespaces) for port in ports})
    configs = [config for monitor in monitors for config in _configs(monitor, found)]
    begun = time.time()
    with found.running(), prometheus_server(folder, configs, rules_at_once(values, system)) as server:
        yield Watched(server, begun)


def _configs(monitor: Json, discovery: Discovery) -> Iterator[Json]:
    def files(port: str) -> Json:
        written = [str(discovery.file(name, port)) for name in watched(monitor)]
        return {"file_sd_configs": [{"files": written, "refresh_interval": "1s"}]}

    return translated(monitor, files)
