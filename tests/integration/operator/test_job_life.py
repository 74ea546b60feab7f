"""A job's life on a real API server, with the real operator under the rights of its chart."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from operator_rig import PASSED, Rig, wait
from raised import a_pause

from headway_api import exits, names
from headway_api.config import Identity

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FOUR = ("coordinator", "broker", "learner", "rollout")


def test_pods_come_in_two_stages_and_the_status_follows(rig: Rig) -> None:
    rig.start()
    wait("a leader", rig.leads, explain=rig.log)
    rig.apply("stages")
    rig.first_pods("stages")
    assert not rig.pods("stages", "learner")
    kinds = {key.split("/")[0] for key in rig.children("stages")}
    assert kinds >= {"ServiceAccount", "RoleBinding", "ConfigMap", "Secret", "NetworkPolicy"}

    rig.tell("stages", preflight=PASSED)
    wait("the other pods", lambda: rig.pods("stages", "learner") and rig.pods("stages", "rollout"))
    rig.wait_true("stages", "Ready")
    status = rig.get("stages")["status"]
    assert status["state"] == "Training"
    assert status["preflight"]["state"] == "Passed", "the coordinator's part is left alone"
    assert {role["name"]: role["ready"] for role in status["roles"]} == dict.fromkeys(FOUR, 1)


def test_the_gateway_is_open_to_the_pods_that_the_agent_needs(rig: Rig) -> None:
    rig.start()
    kinds = {
        "inside": {"sandboxed": {"command": ["agent"]}},
        "outside": {"http": {"url": "http://agent.acme.dev"}},
    }
    found = {}
    for name, agent in kinds.items():
        rig.apply(name, agent=agent)
        rig.first_pods(name)
        found[name] = children = rig.children(name)
        service = children[f"Service/{name}-coordinator"]["spec"]["ports"]
        assert {port["name"]: port["port"] for port in service} == {"http": 8100, "gateway": 8110}
    (way,) = found["inside"]["NetworkPolicy/inside-sandbox"]["spec"]["egress"]
    (peer,), (port,) = way["to"], way["ports"]
    assert peer["podSelector"]["matchLabels"][names.LABEL_COMPONENT] == names.COORDINATOR
    assert (port["protocol"], port["port"]) == ("TCP", 8110)
    assert "egress" not in found["outside"]["NetworkPolicy/outside-sandbox"]["spec"]
    opened = found["outside"]["NetworkPolicy/outside-coordinator"]["spec"]["ingress"][-1]
    assert opened == {"ports": [port]}


def test_a_second_reconcile_writes_nothing(rig: Rig) -> None:
    rig.start()
    rig.run("still")
    before = versions(rig, "still")
    rig.stop()
    rig.start()
    wait("a reconcile", lambda: rig.metric("headway_operator_reconcile_seconds_count") >= 1)
    rig.cluster.kubectl("annotate", "rltrainingjob", "still", "-n", rig.namespace, "touched=yes")
    wait("another", lambda: rig.metric("headway_operator_reconcile_seconds_count") >= 2)
    assert versions(rig, "still") == before
    assert rig.metric('headway_operator_applies_total{kind="RoleBinding",result="changed"}') == 0


def versions(rig: Rig, name: str) -> dict[str, str]:
    """The operator's last write to every child, with its time, and the status.

    Resource versions do not serve for this: the API server's own controllers write to Jobs and Deployments
    too.
    """
    found = {}
    for key, item in rig.children(name).items():
        entries = item["metadata"].get("managedFields", [])
        own = [entry for entry in entries if entry["manager"] == names.FIELD_MANAGER_OPERATOR]
        if own:
            found[key] = json.dumps(own, sort_keys=True)
        elif not key.startswith("Pod/"):
            found[key] = item["metadata"]["resourceVersion"]
    assert len(found) > 20
    return found | {"status": json.dumps(rig.get(name)["status"], sort_keys=True)}


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.8])
def test_an_operator_killed_at_any_moment_is_carried_on(rig: Rig, delay: float) -> None:
    name = f"killed-{int(delay * 10)}"
    first = rig.start()
    wait("a leader", rig.leads, explain=rig.log)
    rig.apply(name)
    time.sleep(delay)
    rig.kill(first)
    rig.start()
    rig.first_pods(name)
    rig.tell(name, preflight=PASSED)
    time.sleep(delay)
    rig.stop()
    rig.start()
    rig.trains(name)
    for role in FOUR:
        assert len(rig.pods(name, role)) == 1, role
    kinds = [key.split("/")[0] for key in rig.children(name)]
    assert {kind: kinds.count(kind) for kind in ("Job", "Deployment", "Secret", "NetworkPolicy")} == {
        "Job": 2, "Deployment": 2, "Secret": 1, "NetworkPolicy": 5,
    }  # fmt: skip


def test_a_job_of_the_same_name_starts_afresh(rig: Rig) -> None:
    rig.start()
    rig.run("phoenix")
    first = rig.get("phoenix")["metadata"]["uid"]
    rig.delete("phoenix")
    rig.run("phoenix")
    owners = {
        reference["uid"]
        for item in rig.children("phoenix").values()
        for reference in item["metadata"]["ownerReferences"]
        if reference["kind"] == "RLTrainingJob"
    }
    assert owners == {rig.get("phoenix")["metadata"]["uid"]} != {first}


@pytest.mark.ci
def test_suspend_stops_every_pod_and_resume_starts_them(rig: Rig) -> None:
    rig.start()
    rig.run("paused")
    rig.patch("paused", {"suspend": True})
    rig.wait_true("paused", "Suspended")
    assert not [key for key in rig.children("paused") if key.startswith(("Pod", "Job", "Deployment"))]
    rig.patch("paused", {"suspend": False})
    rig.trains("paused")
    assert rig.condition("paused", "Suspended")["reason"] == "Resumed"


def test_a_paused_job_has_no_pods_until_its_resume_command_runs(rig: Rig) -> None:
    rig.start()
    rig.run("halted", collapse={"policy": "Pause"})
    metadata = rig.get("halted")["metadata"]
    of = {key: metadata[key] for key in ("name", "namespace", "uid")}
    identity = Identity(kind=names.TRAINING_KIND, **of)
    pause = a_pause(identity, datetime.now(UTC))
    rig.tell("halted", preflight=PASSED, pause=pause.as_object())
    assert rig.wait_true("halted", "Suspended")["reason"] == "Paused"
    assert not [key for key in rig.children("halted") if key.startswith(("Pod", "Job", "Deployment"))]
    assert rig.condition("halted", "Stalled")["reason"] == "Paused"
    assert rig.get("halted")["spec"]["suspend"] is False

    wrong = f"{names.ANNOTATION_RESUME}=12"
    rig.cluster.kubectl("annotate", "rltj", "halted", "-n", rig.namespace, wrong)
    wait("its message", lambda: "'12', which is not" in rig.condition("halted", "Suspended")["message"])
    rig.stop()
    rig.cluster.kubectl(*pause.resume.split()[1:])
    rig.start()
    rig.trains("halted")
    assert rig.get("halted")["status"]["resumedPause"] == pause.as_object()["time"]
    assert rig.condition("halted", "Suspended")["reason"] == "Resumed"


def test_servers_are_scaled_while_the_job_runs(rig: Rig) -> None:
    rig.start()
    rig.run("wide")
    uid = rig.children("wide")["Deployment/wide-rollout"]["metadata"]["uid"]
    rig.cluster.kubectl("scale", "rltrainingjob", "wide", "-n", rig.namespace, "--replicas=3")
    wait("three servers", lambda: len(rig.pods("wide", "rollout")) == 3, explain=rig.log)
    wait("the status", lambda: rig.get("wide")["status"]["rolloutReplicas"] == 3)
    assert rig.children("wide")["Deployment/wide-rollout"]["metadata"]["uid"] == uid


def test_an_object_deleted_by_hand_is_made_again(rig: Rig) -> None:
    rig.start()
    rig.run("healed")
    for kind in ("networkpolicy", "service", "deployment"):
        rig.cluster.kubectl("delete", kind, "healed-broker", "-n", rig.namespace)
    rig.cluster.kubectl("delete", "rolebinding", "healed-broker-rights", "-n", rig.namespace)
    wanted = {f"{kind}/healed-broker" for kind in ("NetworkPolicy", "Service", "Deployment")}
    wanted.add("RoleBinding/healed-broker-rights")
    wait("all of it", lambda: wanted <= set(rig.children("healed")), explain=rig.log)


@pytest.mark.ci
def test_a_policy_opened_by_hand_is_closed_again(rig: Rig) -> None:
    rig.start()
    rig.run("closed")
    opened = json.dumps({"spec": {"ingress": [{}]}})
    target = ("networkpolicy", "closed-sandbox", "-n", rig.namespace)
    rig.cluster.kubectl("patch", *target, "--type=merge", "-p", opened)
    wait(
        "the policy",
        lambda: rig.children("closed")["NetworkPolicy/closed-sandbox"]["spec"]["ingress"] != [{}],
        explain=rig.log,
    )


def test_a_conflict_over_an_object_is_not_fought_at_full_speed(rig: Rig) -> None:
    rig.start()
    rig.apply("contested")
    rig.first_pods("contested")
    opened = json.dumps({"spec": {"ingress": [{}]}})
    target = ("networkpolicy", "contested-sandbox", "-n", rig.namespace)

    def fight() -> bool:
        rig.cluster.kubectl("patch", *target, "--type=merge", "-p", opened)
        return rig.condition("contested", "Reconciling").get("reason") == "Contested"

    wait("the operator to say so", fight, explain=rig.log)
    assert "NetworkPolicy contested-sandbox" in rig.condition("contested", "Reconciling")["message"]


def test_a_coordinator_that_completes_ends_the_job(rig: Rig) -> None:
    # The container ends only after the process of `kubectl exec` is gone, because its end would kill that
    # process.
    rig.scripts = {
        "coordinator": "until [ -e /tmp/asker ] && [ ! -e /proc/$(cat /tmp/asker) ]; do sleep 0.2; done"
    }
    rig.start()
    rig.run("done", schedule={"maxSteps": 2})
    rig.tell("done", preflight=PASSED, progress={"step": 2, "maxSteps": 2})
    (pod,) = rig.pods("done", "coordinator")
    ask = ("sh", "-c", "echo $$ > /tmp/asker")
    rig.cluster.kubectl("exec", "-n", rig.namespace, pod["metadata"]["name"], "--", *ask)
    found = rig.wait_true("done", "Complete")
    assert found["reason"] == "MaxStepsReached"
    wait("nothing left running", lambda: not rig.children("done"), explain=lambda: list(rig.children("done")))
    assert rig.condition("done", "Ready")["status"] == "True"
    assert rig.get("done")["status"]["progress"]["step"] == 2


def test_a_finished_job_is_deleted_after_its_ttl(rig: Rig) -> None:
    rig.scripts = {"coordinator": "exit 0"}
    rig.start()
    rig.apply("brief", ttlSecondsAfterFinished=1)
    wait("the job to be gone", lambda: not rig.exists("brief"), explain=rig.log)


def test_a_process_explaining_its_end_fails_the_job_in_its_words(rig: Rig) -> None:
    words = exits.Termination(reason="BucketUnavailable", field="spec.output.uri", message="no bucket b")
    script = f"echo '{words.model_dump_json()}' > /dev/termination-log; exit {exits.PERMANENT}"
    rig.scripts = {"coordinator": script}
    rig.start()
    rig.apply("broke")
    failed = rig.wait_true("broke", "Failed")
    assert (failed["reason"], failed["message"]) == ("BucketUnavailable", "spec.output.uri: no bucket b")
    wait("nothing left", lambda: not rig.children("broke"), explain=lambda: list(rig.children("broke")))
    assert rig.state("broke") == "Failed"


@pytest.mark.ci
def test_a_coordinator_that_keeps_failing_fails_the_job(rig: Rig) -> None:
    rig.scripts = {"coordinator": "echo out of luck; exit 7"}
    rig.start()
    rig.apply("unlucky", failurePolicy={"maxRestarts": 0})
    failed = rig.wait_true("unlucky", "Failed")
    assert failed["reason"] == "MaxRestartsExceeded"
    assert "exit code 7" in failed["message"]


def test_pods_that_cannot_start_are_named_and_then_fail_the_job(rig: Rig) -> None:
    rig.start()
    too_much = {"limits": {"memory": "4000Gi"}}
    rig.apply("greedy", rollout={"resources": too_much}, pendingDeadlineSeconds=15)
    rig.first_pods("greedy")
    rig.tell("greedy", preflight=PASSED)
    found = wait(
        "the scheduler's words",
        lambda: (c := rig.condition("greedy", "RolloutReady")).get("reason") == "Unschedulable" and c,
    )
    assert "Insufficient memory" in found["message"]
    failed = rig.wait_true("greedy", "Failed")
    assert failed["reason"] == "PendingDeadlineExceeded"
    assert "Insufficient memory" in failed["message"]


def test_a_quota_that_forbids_pods_is_named(rig: Rig) -> None:
    rig.cluster.kubectl("create", "quota", "none", "-n", rig.namespace, "--hard=pods=0")
    try:
        rig.start()
        rig.apply("poor")

        def messages() -> dict[str, str]:
            roles = rig.get("poor").get("status", {}).get("roles", [])
            return {role["name"]: role.get("message", "") for role in roles}

        wait(
            "the quota's words on both roles",
            lambda: len([text for text in messages().values() if "exceeded quota: none" in text]) == 2,
            explain=messages,
        )
        assert rig.condition("poor", "Reconciling")["reason"] == "CreateFailed"
    finally:
        rig.cluster.kubectl("delete", "quota", "none", "-n", rig.namespace)


def test_a_spec_the_platform_forbids_creates_nothing(rig: Rig) -> None:
    rig.start()
    rig.apply("forbidden", rollout={"podTemplate": {"spec": {"hostNetwork": True}}})
    stalled = rig.wait_true("forbidden", "Stalled")
    assert stalled["reason"] == "InvalidSpec"
    assert "spec.rollout.podTemplate.spec.hostNetwork" in stalled["message"]
    assert not rig.children("forbidden")
    assert not rig.finalizers("forbidden")


@pytest.mark.ci
def test_an_object_of_another_owner_is_not_taken_over(rig: Rig) -> None:
    rig.cluster.kubectl("create", "configmap", "mine-config", "-n", rig.namespace, "--from-literal=a=b")
    rig.start()
    rig.apply("mine")
    stalled = rig.wait_true("mine", "Stalled")
    assert stalled["reason"] == "NameConflict"
    assert "ConfigMap mine-config" in stalled["message"]
    rig.cluster.kubectl("delete", "configmap", "mine-config", "-n", rig.namespace)
    rig.first_pods("mine")


def test_each_role_may_do_what_it_must_and_no_more(rig: Rig) -> None:
    rig.start()
    rig.apply("meek")
    rig.first_pods("meek")
    status = {"group": names.GROUP, "resource": "rltrainingjobs", "subresource": "status"}
    assert rig.can("meek-coordinator", "patch", name="meek", **status)
    assert not rig.can("meek-coordinator", "patch", name="meek", **status | {"resource": "rlevaljobs"})
    assert not rig.can("meek-coordinator", "patch", "rltrainingjobs", group=names.GROUP, name="meek")
    assert rig.can("meek-broker", "create", "pods")
    for role in FOUR:
        assert not rig.can(f"meek-{role}", "get", "secrets"), role
        assert not rig.can(f"meek-{role}", "create", "pods", subresource="exec"), role
    assert not rig.can("meek-sandbox", "get", "secrets")
    for verb in ("get", "list", "watch"):
        assert not rig.can("headway-operator", verb, "secrets")
    assert not rig.can("headway-operator", "create", "pods", subresource="exec")
    assert not rig.can("headway-operator", "create", "pods")
    for verb in ("create", "patch", "update", "bind", "escalate"):
        assert not rig.can("headway-operator", verb, "roles", group="rbac.authorization.k8s.io"), verb
    for role in ("learner", "rollout", "sandbox"):
        assert not rig.can(f"meek-{role}", "get", "pods"), role


def test_the_coordinator_writes_its_status_with_its_own_account(rig: Rig) -> None:
    rig.start()
    rig.apply("scribe")
    rig.first_pods("scribe")
    token = rig.cluster.kubectl("create", "token", "scribe-coordinator", "-n", rig.namespace).strip()
    metadata = {"name": "scribe", "namespace": rig.namespace}
    body = {"apiVersion": names.API_VERSION, "kind": "RLTrainingJob", "metadata": metadata}
    rig.cluster.kubectl(
        "apply", "--server-side", "--subresource=status", "--field-manager=headway-coordinator",
        f"--token={token}", "-f", "-", input=json.dumps(body | {"status": {"progress": {"step": 1}}}),
    )  # fmt: skip
    assert rig.get("scribe")["status"]["progress"]["step"] == 1


def test_one_operator_leads_and_the_other_takes_over(rig: Rig) -> None:
    rig.settings = {"leaseNamespace": rig.namespace}
    first = rig.start()
    wait("a leader", rig.leads, explain=rig.log)
    rig.start()
    assert not rig.leads()
    first.terminate()
    first.wait(timeout=30)
    wait("the second to lead", rig.leads, explain=rig.log)
    rig.apply("inherited")
    rig.first_pods("inherited")
