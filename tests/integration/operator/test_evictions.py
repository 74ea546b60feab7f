"""What Kubernetes makes of a role that fills its volume, by the failure policy that its Job has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operator_rig import IMAGE, SMALL, Rig, wait

from headway_api import names
from headway_operator.plan.coordinator import failure_policy
from headway_operator.plan.health import pod_trouble

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Json = dict[str, Any]
FILLS = "head -c 4000000 /dev/zero > /var/cache/headway/file; exec sleep 3600"


def filling(namespace: str) -> Json:
    """A Job whose pod fills its volume; one failure is one too many."""
    container = {
        "name": names.LEARNER,
        "image": IMAGE,
        "command": ["/bin/sh", "-c", FILLS],
        "resources": SMALL,
        "volumeMounts": [{"name": "cache", "mountPath": names.CACHE_DIR}],
    }
    volume = {"name": "cache", "emptyDir": {"sizeLimit": "64Ki"}}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "filling", "namespace": namespace},
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": failure_policy(names.LEARNER),
            "template": {"spec": spec},
        },
    }


def test_an_eviction_for_a_full_volume_is_a_restart(rig: Rig) -> None:
    """It is no disruption, which would be ignored: the pod would fill its volume for ever."""
    kubectl, where = rig.cluster.kubectl, ("-n", rig.namespace, "-o", "json")
    kubectl("apply", "-f", "-", input=json.dumps(filling(rig.namespace)))

    def failed() -> Json | None:
        status = json.loads(kubectl("get", "job", "filling", *where)).get("status", {})
        return next((c for c in status.get("conditions", []) if c["type"] == "Failed"), None)

    def pods() -> list[Json]:
        found: list[Json] = json.loads(kubectl("get", "pods", "-l", "job-name=filling", *where))["items"]
        return found

    assert wait("the Job to fail", failed, deadline=240, explain=pods)["reason"] == "BackoffLimitExceeded"
    (pod,) = pods()
    trouble = pod_trouble(pod)
    assert trouble is not None
    assert trouble.message.startswith("cacheSizeLimit of the chart's values: pod filling-")
    kubectl("delete", "job", "filling", "-n", rig.namespace)
