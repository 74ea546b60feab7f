"""What deleting a job does on a real API server, with garbage collector, kubelet and namespace controller."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_rig import IMAGE, SMALL, Cluster, Rig, wait

from headway_api import names

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(300)]


def sandbox(rig: Rig, job: str, *, grace: int) -> str:
    """Create a pod such as the broker makes, which takes its whole grace period to end. Returns its key."""
    metadata = rig.get(job)["metadata"]
    owner = {"apiVersion": names.API_VERSION, "kind": "RLTrainingJob", "name": job, "uid": metadata["uid"]}
    container = {
        "name": names.SANDBOX,
        "image": IMAGE,
        "command": ["/bin/sh", "-c", "trap '' TERM; while true; do sleep 1; done"],
        "resources": SMALL,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-sandbox-1",
            "namespace": rig.namespace,
            "labels": names.job_labels("RLTrainingJob", job, metadata["uid"], names.SANDBOX),
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": False}],
        },
        "spec": {
            "serviceAccountName": names.child(job, names.SANDBOX),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace,
            "containers": [container],
        },
    }
    rig.cluster.kubectl("create", "-f", "-", input=json.dumps(pod))
    name = f"pod/{job}-sandbox-1"
    rig.cluster.kubectl("wait", name, "-n", rig.namespace, "--for=condition=Ready", "--timeout=60s")
    return f"Pod/{job}-sandbox-1"


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_a_deleted_job_leaves_no_object_behind(rig: Rig, cascade: str) -> None:
    rig.start()
    rig.run("gone")
    rig.delete("gone", f"--cascade={cascade}")
    assert not rig.children("gone")


def test_a_sandbox_keeps_its_network_policy_to_its_end(rig: Rig) -> None:
    rig.start()
    rig.run("walled")
    pod = sandbox(rig, "walled", grace=5)
    rig.delete("walled", "--wait=false")
    seen_ending = False
    while rig.exists("walled"):
        left = rig.children("walled")
        if pod in left:
            assert {"NetworkPolicy/walled-sandbox", "ServiceAccount/walled-sandbox"} <= set(left)
            seen_ending = seen_ending or "deletionTimestamp" in left[pod]["metadata"]
    assert seen_ending
    assert not rig.children("walled")


@pytest.mark.parametrize("delay", [0.3, *(pytest.param(s, marks=pytest.mark.long) for s in (0.0, 1.0, 3.0))])
def test_an_operator_killed_in_a_teardown_is_carried_on(rig: Rig, delay: float) -> None:
    first = rig.start()
    rig.run("torn")
    sandbox(rig, "torn", grace=2)
    rig.delete("torn", "--wait=false")
    time.sleep(delay)
    rig.kill(first)
    rig.start()
    wait("the job to be gone", lambda: not rig.exists("torn"), explain=rig.log)
    assert not rig.children("torn")


def test_without_an_operator_a_deleted_job_keeps_its_objects(rig: Rig) -> None:
    rig.start()
    rig.run("waiting")
    rig.stop()
    before = set(rig.children("waiting"))
    rig.delete("waiting", "--wait=false")
    time.sleep(3)
    assert set(rig.children("waiting")) == before
    rig.start()
    wait("the job to be gone", lambda: not rig.exists("waiting"), explain=rig.log)
    assert not rig.children("waiting")


def test_a_job_released_by_hand_is_collected(rig: Rig) -> None:
    rig.start()
    rig.run("free")
    rig.stop()
    rig.delete("free", "--wait=false")
    rig.let_go("free")
    wait("nothing", lambda: not rig.children("free"), explain=lambda: list(rig.children("free")))


def test_a_suspended_job_is_deleted(rig: Rig) -> None:
    rig.start()
    rig.run("asleep")
    rig.patch("asleep", {"suspend": True})
    rig.wait_true("asleep", "Suspended")
    rig.delete("asleep")
    assert not rig.children("asleep")


def test_an_ended_job_is_deleted_without_the_operator(rig: Rig) -> None:
    rig.scripts = {"coordinator": "exit 0"}
    rig.start()
    rig.apply("over")
    rig.wait_true("over", "Complete")
    wait("it to be let go", lambda: not rig.finalizers("over"), explain=lambda: rig.story("over"))
    assert not rig.children("over")
    rig.stop()
    rig.delete("over")


def test_the_operator_leaves_finalizers_of_others(rig: Rig) -> None:
    rig.start()
    rig.run("shared")
    theirs = '{"metadata":{"finalizers":["example.org/theirs","headway.dev/teardown"]}}'
    target = ("rltrainingjob", "shared", "-n", rig.namespace)
    rig.cluster.kubectl("patch", *target, "--type=merge", "-p", theirs)
    rig.delete("shared", "--wait=false")
    wait(
        "Headway to let go",
        lambda: rig.finalizers("shared") == ["example.org/theirs"],
        explain=lambda: rig.story("shared"),
    )
    assert not rig.children("shared")


@pytest.fixture
def deleting(cluster: Cluster, tmp_path: Path) -> Iterator[Rig]:
    """A namespace to be deleted, with an operator whose rights do not disappear with it."""
    rig = Rig(cluster, f"doomed-{uuid.uuid4().hex[:6]}", tmp_path)
    try:
        rig.prepare()
        rig.act_as_administrator()
        yield rig
    finally:
        rig.clean()
        cluster.kubectl("delete", "namespace", rig.namespace, "--ignore-not-found", "--wait=false")


@pytest.mark.long
def test_a_namespace_can_be_deleted_with_its_jobs(deleting: Rig) -> None:
    deleting.start()
    deleting.run("resident")
    deleting.cluster.kubectl("delete", "namespace", deleting.namespace, "--timeout=120s")
