#!/usr/bin/python3
"""Measures how many short-lived pods per second the running local cluster starts and removes.

    python3 hack/cluster/measure_churn.py --pods 300 --in-flight 16

Each pod has one container, and is deleted as soon as it is Running.
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
import statistics
import threading
import time
from queue import SimpleQueue

from headway_cluster.cgroups import ControlGroup
from headway_cluster.images import TESTBOX_IMAGE
from headway_cluster.layout import API_PORT, NODE_IP, Layout

PODS = "/api/v1/namespaces/default/pods"
LABEL = "headway-churn=1"
DEADLINE_S = 900


class Api:
    """One connection to the API server as the administrator."""

    def __init__(self, layout: Layout) -> None:
        context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
        self.connection = http.client.HTTPSConnection(NODE_IP, API_PORT, context=context, timeout=DEADLINE_S)

    def call(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        content = None if body is None else json.dumps(body)
        self.connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.read().decode()[:300]}")
        return answer


def pod(name: str) -> dict[str, object]:
    container = {"name": "main", "image": TESTBOX_IMAGE, "command": ["sleep", "3600"]}
    return {
        "metadata": {"name": name, "labels": dict([LABEL.split("=")])},
        "spec": {
            "containers": [container],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
        },
    }


def watch(layout: Layout, events: SimpleQueue[tuple[str, str]], version: str) -> None:
    """Put ("running" or "gone", pod name) on the queue whenever a pod starts to run or is deleted."""
    path = f"{PODS}?watch=1&labelSelector={LABEL}&resourceVersion={version}"
    stream = Api(layout).call("GET", path)
    for line in stream:
        event = json.loads(line)
        seen = event["object"]
        if event["type"] == "DELETED":
            events.put(("gone", seen["metadata"]["name"]))
        elif seen["status"].get("phase") == "Running":
            events.put(("running", seen["metadata"]["name"]))


def churn(layout: Layout, *, total: int, in_flight: int) -> dict[str, float]:
    api = Api(layout)
    listed = json.loads(api.call("GET", f"{PODS}?limit=1").read())
    events: SimpleQueue[tuple[str, str]] = SimpleQueue()
    version = listed["metadata"]["resourceVersion"]
    threading.Thread(target=watch, args=(layout, events, version), daemon=True).start()
    run = f"{time.time_ns() // 1_000_000:x}"
    started: dict[str, float] = {}
    latencies: dict[str, float] = {}
    gone: set[str] = set()
    group = ControlGroup(layout.name)
    begun, cpu_before = time.monotonic(), group.cpu_seconds()
    while len(gone) < total:
        while len(started) < total and len(started) - len(gone) < in_flight:
            name = f"churn-{run}-{len(started)}"
            started[name] = time.monotonic()
            api.call("POST", PODS, pod(name)).read()
        what, name = events.get(timeout=DEADLINE_S)
        if what == "gone":
            gone.add(name)
        elif name not in latencies:
            latencies[name] = time.monotonic() - started[name]
            api.call("DELETE", f"{PODS}/{name}").read()
    took = time.monotonic() - begun
    running = sorted(latencies.values())
    return {
        "pods": total,
        "seconds": round(took, 1),
        "pods_per_second": round(total / took, 2),
        "create_to_running_p50_s": round(statistics.median(running), 2),
        "create_to_running_p95_s": round(running[int(0.95 * len(running))], 2),
        "cpu_seconds_per_pod": round((group.cpu_seconds() - cpu_before) / total, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure pods started and removed a second.")
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--in-flight", type=int, default=16)
    options = parser.parse_args()
    layout = Layout.from_environment()
    print(json.dumps(churn(layout, total=options.pods, in_flight=options.in_flight)))


if __name__ == "__main__":
    main()
