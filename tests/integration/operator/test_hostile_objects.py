"""Objects that a stranger made: each harms only itself, on a real API server with a running operator."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from operator_rig import IMAGE, SMALL, Rig, wait

from headway_api import names
from headway_api.document import Json
from headway_api.exits import PERMANENT

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.hostile, pytest.mark.timeout(300)]

RESIDENT_MIB = 256
"""Memory limit of the operator's process: half of the chart's limit."""


def put(rig: Rig, name: str, config: str) -> None:
    """Apply a job whose `environment.config` is a JSON text that no Python writer could produce."""
    body = json.dumps(rig.job(name)).replace('"entrypoint"', f'"config": {config}, "entrypoint"')
    rig.cluster.kubectl("create", "-f", "-", input=body)


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def accepted(rig: Rig, name: str) -> Json:
    """The condition Accepted of a job that Python's own JSON reader may not be able to read."""
    path = "jsonpath={.status.conditions}"
    text = rig.cluster.kubectl("get", rig.resource, name, "-n", rig.namespace, "-o", path)
    return next((item for item in json.loads(text or "[]") if item["type"] == "Accepted"), {})


def resident(process: subprocess.Popen[bytes]) -> float:
    """Peak resident memory of a process, in MiB."""
    with open(f"/proc/{process.pid}/status") as file:
        (line,) = [line for line in file if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def test_a_deep_job_is_refused_and_the_others_run(rig: Rig) -> None:
    """This holds for a job made before the operator starts and after, in a list and in a watch."""
    put(rig, "deep-before", deep(1200))
    process = rig.start()
    rig.run("neighbour")
    for levels in (17, 40, 1200, 5000, 9900):
        put(rig, f"deep-{levels}", deep(levels))
    for name in ("deep-before", "deep-17", "deep-40", "deep-1200", "deep-5000", "deep-9900"):
        condition = wait(
            f"{name} to be refused",
            lambda name=name: accepted(rig, name),
            explain=rig.log,
        )
        assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
        assert condition["message"].startswith("spec.environment.config: nested more than ")
        assert condition["message"].endswith("write it smaller and flatter")
    rig.run("later")
    assert process.poll() is None
    assert rig.state("neighbour") == "Training"
    assert rig.metric('headway_operator_reconcile_errors_total{reason="Unreadable"}') > 0
    assert rig.metric('headway_operator_reconcile_errors_total{reason="Bug"}') == 0
    rig.stop()
    again = rig.start()
    wait("the next operator to lead", rig.leads, explain=rig.log)
    rig.patch("later", {"suspend": True})
    rig.wait_true("later", "Suspended")
    assert again.poll() is None


def test_a_too_deep_job_runs_once_it_is_corrected(rig: Rig) -> None:
    rig.start()
    put(rig, "mended", deep(1200))
    wait("the refusal", lambda: accepted(rig, "mended"), explain=rig.log)
    # `environment` is immutable while a job exists.
    rig.delete("mended")
    rig.run("mended")


@pytest.mark.parametrize(("many", "objects"), [(2, 60_000), pytest.param(6, 400_000, marks=pytest.mark.long)])
def test_fat_jobs_fill_no_memory(rig: Rig, many: int, objects: int) -> None:
    """Even the API server takes several seconds for each write of the largest job."""
    process = rig.start()
    rig.run("neighbour")
    fat = '{"list":[' + "{}," * objects + "{}]}"
    for number in range(many):
        put(rig, f"fat-{number}", fat)
    for number in range(many):
        condition = wait("each to be refused", lambda n=number: accepted(rig, f"fat-{n}"), explain=rig.log)
        assert condition["status"] == "False"
        assert condition["message"].startswith("spec.environment.config: more than ")
    rig.run("later")
    assert resident(process) < RESIDENT_MIB, "RSS at its highest, in MiB"
    assert process.poll() is None


def foreign(rig: Rig, name: str, job: str, role: str, **metadata: Any) -> Json:
    """A foreign pod with the job's labels. It ends with a reason of its own."""
    uid = rig.get(job)["metadata"]["uid"]
    words = json.dumps({"reason": "AttackersChoice", "message": "x", "field": "spec.model"})
    script = f"echo '{words}' > /dev/termination-log; exit {PERMANENT}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": rig.namespace,
            "labels": names.job_labels(names.TRAINING_KIND, job, uid, role),
        }
        | metadata,
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": role, "image": IMAGE, "command": ["/bin/sh", "-c", script], "resources": SMALL}
            ],
        },
    }


def test_a_foreign_pod_does_not_fail_or_hold_a_job(rig: Rig) -> None:
    rig.start()
    rig.run("victim")
    elsewhere = f"{rig.namespace}-thief"
    rig.cluster.kubectl("create", "namespace", elsewhere)
    held = {"finalizers": ["attacker.example/stay"]}
    try:
        for body in (
            foreign(rig, "thief", "victim", "learner", **held),
            foreign(rig, "far-thief", "victim", "learner", namespace=elsewhere, **held),
        ):
            rig.cluster.kubectl("create", "-f", "-", input=json.dumps(body))
            where = body["metadata"]["namespace"]
            target = (f"pod/{body['metadata']['name']}", "-n", where)
            phase = "--for=jsonpath={.status.phase}=Failed"
            rig.cluster.kubectl("wait", *target, phase, "--timeout=60s")
        # By now the operator has seen the foreign pod, because it has carried out a later change.
        rig.patch("victim", {"rollout": {"replicas": 2}})
        wait("two servers", lambda: len(rig.pods("victim", "rollout")) == 2, explain=rig.log)
        assert rig.condition("victim", "Failed") == {}
        rig.delete("victim", "--wait=false")
        wait("the victim to be gone", lambda: not rig.exists("victim"), explain=rig.log)
        assert "Pod/thief" in rig.children("victim"), "a foreign pod was deleted"
    finally:
        off = '{"metadata":{"finalizers":null}}'
        for name, where in (("thief", rig.namespace), ("far-thief", elsewhere)):
            rig.cluster.kubectl("patch", "pod", name, "-n", where, "--type=merge", "-p", off)
            rig.cluster.kubectl("delete", "pod", name, "-n", where, "--force", "--ignore-not-found")
        rig.cluster.kubectl("delete", "namespace", elsewhere, "--wait=false")


@pytest.mark.parametrize("reason", ["not a reason", "x" * 500, "\\u202e"])
def test_a_process_with_an_odd_last_word_fails_its_job(rig: Rig, reason: str) -> None:
    words = f'{{"reason": "{reason}", "message": "odd", "field": "spec.model"}}'
    rig.scripts = {"coordinator": f"echo '{words}' > /dev/termination-log; exit {PERMANENT}"}
    rig.start()
    rig.apply("odd")
    condition = rig.wait_true("odd", "Failed")
    assert condition["reason"] == "ProcessFailed"
    assert condition["message"] == "spec.model: odd"
    assert rig.metric('headway_operator_reconcile_errors_total{reason="Bug"}') == 0
