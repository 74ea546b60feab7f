"""Faults of what a job needs from its surroundings: store, network, credentials, quotas and nodes."""

from __future__ import annotations

from typing import Any

from headway_api.document import Json
from provoked.provocation import Provocation

NOWHERE = {"headway.example/no-such": "node"}


def secret(**keys: str) -> Json:
    """A Secret with these store keys, which replaces the right Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "objects"}, "stringData": keys}


def quota(name: str, **hard: str) -> Json:
    """A ResourceQuota for the job's namespace."""
    named = {key.replace("_", "."): value for key, value in hard.items()}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}}
    return body | {"spec": {"hard": named}}


def placed(role: str, **spec: Any) -> Json:
    """Changes of the spec that set fields in the pod template of a role."""
    return {role: {"podTemplate": {"spec": spec}}}


LIMIT_RANGE: Json = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "max": {"memory": "3Gi"}}]},
}
TOO_LARGE: Json = {"requests": {"memory": "4000Gi"}, "limits": {"memory": "4000Gi"}}
INSIDE: Json = {"ipBlock": {"cidr": "0.0.0.0/0"}}
WALL: Json = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "no-store"},
    "spec": {
        "podSelector": {"matchLabels": {"app.kubernetes.io/component": "coordinator"}},
        "policyTypes": ["Egress"],
        "egress": [
            {"to": [INSIDE], "ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]},
            {"to": [INSIDE], "ports": [{"protocol": "UDP", "port": 53}]},
        ],
    },
}
"""A policy by which the coordinator reaches only DNS and the API server, but no store."""

PROVOKED: dict[str, Provocation] = {
    "no-bucket": Provocation({"output": {"uri": "s3://no-such-bucket/runs"}}),
    "odd-bucket-name": Provocation({"output": {"uri": "s3://my bucket/runs"}}),
    "no-store-there": Provocation({"output": {"endpointUrl": "http://objects.headway-demo.svc:7071"}}),
    "no-store-of-that-name": Provocation(
        {"output": {"endpointUrl": "http://no-such-store.headway-demo.svc:7070"}}
    ),
    "store-behind-a-wall": Provocation(beside=[WALL]),
    "wrong-key": Provocation(beside=[secret(AWS_ACCESS_KEY_ID="headway", AWS_SECRET_ACCESS_KEY="guessed")]),
    "no-keys": Provocation({"output": {"secretRef": None}}),
    "no-secret": Provocation({"output": {"secretRef": {"name": "keys"}}}),
    "no-account": Provocation({"serviceAccountName": "trainer"}),
    "no-pods-left": Provocation(beside=[quota("few-pods", pods="0")]),
    "no-memory-left": Provocation(
        {"learner": {"resources": {"limits": {"memory": "12Gi"}}}},
        beside=[quota("little-memory", limits_memory="12Gi")],
    ),
    "sandboxes-beyond-quota": Provocation(
        {"environment": {"sandbox": {"resources": {"limits": {"memory": "9Gi"}}}}},
        beside=[quota("small-sandboxes", limits_memory="8Gi")],
    ),
    "beyond-the-limit-range": Provocation(beside=[LIMIT_RANGE]),
    "no-such-node": Provocation(placed("learner", nodeSelector=NOWHERE)),
    "no-accelerator": Provocation({"learner": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}),
    "too-large-for-any-node": Provocation({"learner": {"resources": TOO_LARGE}}),
    "no-node-for-sandboxes": Provocation({"environment": placed("sandbox", nodeSelector=NOWHERE)}),
    "no-runtime-class": Provocation({"environment": {"sandbox": {"runtimeClassName": "gvisor"}}}),
    "no-priority-class": Provocation(placed("learner", priorityClassName="urgent")),
    "name-taken": Provocation(
        beside=[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "name-taken-config"}}]
    ),
}
