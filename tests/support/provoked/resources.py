"""Adds up what jobs request from a node and what is left on it, to tell how many jobs fit together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from headway_api.document import Json
from provoked.provocation import merged

ENDED = ("Succeeded", "Failed")
"""Phases of pods that no longer use resources."""


@dataclass(frozen=True)
class Resources:
    """CPU and memory, as a node's scheduler counts them."""

    cpu: Decimal = Decimal(0)
    """Cores."""
    memory: Decimal = Decimal(0)
    """Bytes."""

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.cpu - other.cpu, self.memory - other.memory)

    def __mul__(self, times: int) -> Resources:
        return Resources(self.cpu * times, self.memory * times)

    def holds(self, other: Resources) -> bool:
        """Whether `other` fits into these resources."""
        return other.cpu <= self.cpu and other.memory <= self.memory

    def larger(self, other: Resources) -> Resources:
        """The maximum of both, for CPU and memory separately."""
        return Resources(max(self.cpu, other.cpu), max(self.memory, other.memory))

    def __str__(self) -> str:
        return f"{self.cpu * 1000:.0f}m of CPU and {self.memory / 2**20:.0f} MiB"


def resources_of(quantities: Mapping[str, Any]) -> Resources:
    """The resources in a container's requests, or in a node's capacity."""
    return Resources(parse_quantity(quantities.get("cpu", 0)), parse_quantity(quantities.get("memory", 0)))


def asked(spec: Mapping[str, Any]) -> Resources:
    """What a pod requests: the sum of its containers, or the request of an init container if that is
    larger."""

    def of(container: Mapping[str, Any]) -> Resources:
        return resources_of(container.get("resources", {}).get("requests", {}))

    before = spec.get("initContainers", [])
    together = [*spec["containers"], *(each for each in before if each.get("restartPolicy") == "Always")]
    found = sum((of(each) for each in together), Resources())
    for each in before:
        found = found.larger(of(each))
    return found


def left(node: Json, pods: Iterable[Json]) -> Resources:
    """What the only node has left besides these pods, pending ones included."""
    found = resources_of(node["status"]["allocatable"])
    for pod in pods:
        if pod["status"].get("phase") not in ENDED:
            found -= asked(pod["spec"])
    return found


def of_a_job(spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> Resources:
    """The maximum that a job requests, with all its sandboxes. `defaults`: the chart's resources by role."""
    sandbox = spec["environment"]["sandbox"]
    wished = {role: spec.get(role, {}).get("resources", {}) for role in ("learner", "rollout")}
    wished["sandbox"] = sandbox.get("resources", {})
    ask = {role: resources_of(_requests(base, wished.get(role, {}))) for role, base in defaults.items()}
    ask["sandbox"] *= sandbox["warmPool"]["max"]
    return sum(ask.values(), Resources())


def _requests(default: Json, wish: Mapping[str, Any]) -> Json:
    """Requests as the operator merges them: a limit without a request is also the request."""
    return merged(default["requests"], dict(wish.get("limits", {})) | dict(wish.get("requests", {})))
