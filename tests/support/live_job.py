"""Finds the pods of a running job for end-to-end tests, runs programs in them, and stops their engines."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neighbours import Target

from headway_demo.kube import Kube, KubeError
from headway_demo.settings import NAMESPACE, SYSTEM_NAMESPACE

PROBE = (Path(__file__).parent / "pod_probe.py").read_text()
SCRAPE = (Path(__file__).parent / "scrape_probe.py").read_text()
HOLDS = 20
"""Attempts to stop the engines while an episode runs. Between two batches no episode runs, which is half of
the time if new weights are slow."""

SETTLED_S = 2.0
"""After this many seconds, episodes that need no engine any more have ended, and all others wait."""

SIGNAL_ENGINES = """
import os, signal, sys
found = 0
for process in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{process}/cmdline").read().split(chr(0))
    except OSError:
        continue
    if command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
        os.kill(int(process), getattr(signal, sys.argv[1]))
        found += 1
print(found)
"""


@dataclass(frozen=True)
class Sandbox:
    """A sandbox that is leased to an episode."""

    pod: dict[str, Any]
    episode: str


def pods(kube: Kube, job: str, role: str) -> list[dict[str, Any]]:
    """Running pods of a role, oldest first."""
    where = SYSTEM_NAMESPACE if role == "operator" else NAMESPACE
    label = "app.kubernetes.io/component=" + role
    if role != "operator":
        label += f",headway.dev/job-name={job}"
    items = kube.get("pods", "-n", where, "-l", label)["items"]
    running = [p for p in items if p["status"].get("phase") == "Running"]
    return sorted(running, key=lambda p: str(p["metadata"]["creationTimestamp"]))


def look(
    kube: Kube, pod: Mapping[str, Any], targets: Mapping[str, Target], container: str | None = None
) -> dict[str, Any]:
    """The output of `pod_probe` in a pod's first or named container; raises KubeError if the pod is gone."""
    return _asked(kube, pod, PROBE, targets, container)


def scraped(kube: Kube, pod: Mapping[str, Any], targets: Mapping[str, str]) -> dict[str, Any]:
    """The output of `scrape_probe` in a pod: the answers that a scraper gets there."""
    return _asked(kube, pod, SCRAPE, targets, None)


def _asked(
    kube: Kube, pod: Mapping[str, Any], program: str, targets: Mapping[str, Any], container: str | None
) -> dict[str, Any]:
    """Run a Python program in a pod; returns its output, parsed as JSON."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    command = ("python3", "-", json.dumps(targets))
    place = () if container is None else ("-c", container)
    found: dict[str, Any] = json.loads(
        kube.run("exec", "-i", name, "-n", namespace, *place, "--", *command, stdin=program)
    )
    return found


@contextmanager
def engines_held(kube: Kube, job: str) -> Iterator[None]:
    """Stop vLLM in every rollout server until the block ends, so that every episode waits."""
    servers = [pod["metadata"]["name"] for pod in pods(kube, job, "rollout")]
    assert servers, f"{job} has no rollout server to hold"
    try:
        for server in servers:
            assert _signal(kube, server, "SIGSTOP"), f"no vLLM runs in {server}"
        yield
    finally:
        for server in servers:
            _signal(kube, server, "SIGCONT")


def _signal(kube: Kube, server: str, name: str) -> int:
    """Send a signal to vLLM in one rollout server; returns the number of processes that got it."""
    return int(kube.run("exec", server, "-n", NAMESPACE, "--", "python3", "-c", SIGNAL_ENGINES, name))


@contextmanager
def sandbox_in_use(kube: Kube, job: str) -> Iterator[Sandbox]:
    """A sandbox that stays leased to its episode until the block ends, since all engines are stopped."""
    for _ in range(HOLDS):
        with engines_held(kube, job):
            time.sleep(SETTLED_S)
            found = _leased(kube, job)
            if found is not None:
                yield found
                return
        time.sleep(random.uniform(0.5, 2.5))  # random, so that the attempts do not coincide with the batches
    raise AssertionError(f"{HOLDS} times the engines of {job} were held, and no sandbox was leased")


def _leased(kube: Kube, job: str) -> Sandbox | None:
    for pod in pods(kube, job, "sandbox"):
        try:
            episode = look(kube, pod, {})["lease"]
        except KubeError:
            continue  # its episode had ended just before
        if episode:
            return Sandbox(pod, episode)
    return None


def keys_in(kube: Any, pod: dict[str, Any], container: str) -> set[str]:
    """Names of the keys that a container finds and can read in its pod."""
    program = (
        "import pathlib; found = pathlib.Path('/etc/headway-keys').glob('[a-z]*'); "
        "print(*(file.name for file in found if file.read_bytes()))"
    )
    where = ("-n", pod["metadata"]["namespace"], pod["metadata"]["name"], "-c", container)
    return set(kube.run("exec", *where, "--", "python3", "-c", program).split())


@contextmanager
def pod_without_policy(
    kube: Any, image: str, namespace: str, labels: dict[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """A pod with the sandboxes' image in a new namespace with these labels, without any NetworkPolicy."""
    metadata = {"name": namespace, "labels": labels or {}}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "stranger",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", "import signal; signal.pause()"],
                    "resources": {
                        "requests": {"cpu": "10m"},
                        "limits": {"cpu": "500m", "memory": "64Mi"},
                    },
                }
            ],
        },
    }
    try:
        kube.apply(pod)
        ready = ("--for=condition=Ready", "--timeout=150s", "pod/stranger")
        kube.run("wait", "-n", namespace, *ready, timeout_s=180)
        yield pod
    finally:
        kube.run("delete", "namespace", namespace, "--wait=false")
