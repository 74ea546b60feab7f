"""How the planner handles an evaluation: its objects, its sets of servers, and its status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from observed_cluster import PASSED, PLATFORM, UID, World, chosen, eval_job, evaluating, running, stamp

from headway_api import names
from headway_api.config import EvalConfig
from headway_api.document import Json
from headway_operator.plan.observed import Observed, role_of

MODELS = [
    {"name": "small", "model": {"base": "hf://Qwen/Qwen3-4B"}},
    {"name": "large", "model": {"base": "hf://Qwen/Qwen3-14B"}},
    {"name": "largest", "model": {"base": "hf://Qwen/Qwen3-32B"}},
]
ELSEWHERE = {
    "name": "frontier-1",
    "endpoint": {"url": "https://models.test/v1", "model": "big", "secretRef": {"name": "keys"}},
}


def container(world: World, kind: str, name: str) -> Json:
    found: Json = world.objects[kind, name]["spec"]["template"]["spec"]["containers"][0]
    return found


class TestObjects:
    """The objects of an evaluation, and their names."""

    def test_each_object_is_owned_and_labelled_with_its_kind(self) -> None:
        for world, kind in ((evaluating(), "RLEvalJob"), (running(), "RLTrainingJob")):
            for item in world.plan().wanted:
                (owner,) = item.body["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["name"], owner["uid"]) == (kind, "refunds", UID)
                assert item.body["metadata"]["labels"][names.LABEL_JOB_KIND] == kind
                assert item.body["metadata"]["labels"][names.LABEL_JOB_NAME] == "refunds"

    def test_names_differ_from_those_of_a_training_job_of_that_name(self) -> None:
        ours = {item.ref for item in evaluating().plan().wanted}
        theirs = {item.ref for item in running().plan().wanted}
        assert not ours & theirs
        own = {name for _, _, name in ours}
        assert all(name.startswith("refunds-eval-") for name in own)

    def test_an_evaluation_has_no_learner(self) -> None:
        world = evaluating()
        roles = {role_of(body) for body in world.objects.values()}
        assert names.LEARNER not in roles
        assert ("ServiceAccount", "refunds-eval-learner") not in world.objects
        assert ("NetworkPolicy", "refunds-eval-learner") not in world.objects

    def test_the_coordinator_may_write_the_status_of_evaluations(self) -> None:
        binding = chosen().objects["RoleBinding", "refunds-eval-coordinator-rights"]
        assert binding["roleRef"]["name"] == "headway-coordinator-rlevaljobs"

    def test_nobody_but_scrapers_reaches_the_coordinator(self) -> None:
        policy = chosen().objects["NetworkPolicy", "refunds-eval-coordinator"]["spec"]
        (rule,) = policy["ingress"]
        assert rule["from"] == [*PLATFORM.metrics_from]
        assert policy["policyTypes"] == ["Ingress"], "endpoints and the store are anywhere"
        world = World(eval_job(), PLATFORM.model_copy(update={"metrics_from": ()}))
        world.carry_out()
        world.carry_out()
        assert world.objects["NetworkPolicy", "refunds-eval-coordinator"]["spec"]["ingress"] == []

    def test_the_token_of_an_endpoint_comes_from_its_secret(self) -> None:
        world = chosen(candidates=[ELSEWHERE, MODELS[0]])
        coordinator = world.objects["Job", "refunds-eval-coordinator"]["spec"]["template"]["spec"]
        volumes = {item["name"]: item for item in coordinator["volumes"]}
        mounts = {item["mountPath"]: item for item in coordinator["containers"][0]["volumeMounts"]}
        mount = mounts["/etc/headway-endpoints/frontier-1"]
        assert mount["readOnly"]
        assert volumes[mount["name"]]["secret"] == {
            "secretName": "keys",
            "items": [{"key": "token", "path": "token"}],
            "defaultMode": 0o440,
            "optional": True,
        }, "without it the other candidates are measured all the same"
        broker = world.objects["Deployment", "refunds-eval-broker"]["spec"]["template"]["spec"]
        assert not [item for item in broker["volumes"] if item.get("secret", {}).get("secretName") == "keys"]

    def test_a_judge_may_have_a_candidates_name(self) -> None:
        judge = {"name": "frontier-1", "endpoint": {"url": "http://j/v1", "model": "m"}}
        world = chosen(
            candidates=[ELSEWHERE, MODELS[0]], judges=[judge | {"secretRef": {"name": "judge-key"}}]
        )
        pod = world.objects["Job", "refunds-eval-coordinator"]["spec"]["template"]["spec"]
        names = [item["name"] for item in pod["volumes"]]
        assert len(set(names)) == len(names)
        secrets = {item["secret"]["secretName"] for item in pod["volumes"] if "secret" in item}
        assert {"keys", "judge-key"} <= secrets

    def test_processes_of_an_evaluation_read_its_configuration(self) -> None:
        text = chosen().objects["ConfigMap", "refunds-eval-config"]["data"]["job.json"]
        config = EvalConfig.model_validate_json(text)
        assert (config.kind, config.name, config.uid) == ("RLEvalJob", "refunds", UID)
        assert json.loads(text)["spec"]["candidates"][0]["name"] == "base"

    def test_more_servers_in_all_sets_than_the_limit_are_refused(self) -> None:
        world = World(eval_job(rollout={"replicas": 33}, parallelism=2))
        world.carry_out()
        assert (
            "spec.rollout.replicas x spec.parallelism: 66 is above"
            in world.status_condition("Accepted")["message"]
        )


class TestServerSets:
    """A set of servers exists exactly while the coordinator requests it."""

    def test_no_set_of_servers_exists_before_the_preflight(self) -> None:
        world = chosen(candidates=MODELS).wants_sets(0)
        world.carry_out()
        assert world.deployments() == {"refunds-eval-broker"}
        world.body["status"] |= PASSED
        world.carry_out()
        assert world.deployments() == {"refunds-eval-broker", "refunds-eval-rollout-0"}

    def test_each_set_has_its_own_labels_address_and_number(self) -> None:
        world = evaluating(candidates=MODELS, parallelism=2, sets=(0, 1), rollout={"replicas": 3})
        for number in (0, 1):
            name = f"refunds-eval-rollout-{number}"
            labels = {
                names.LABEL_SERVER_SET: str(number),
                names.LABEL_COMPONENT: "rollout",
                names.LABEL_JOB_UID: UID,
            }
            deployment, service = world.objects["Deployment", name], world.objects["Service", name]
            assert deployment["spec"]["replicas"] == 3
            assert deployment["spec"]["selector"]["matchLabels"] == labels
            assert deployment["spec"]["template"]["metadata"]["labels"].items() >= labels.items()
            assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", labels)
            env = {item["name"]: item.get("value") for item in container(world, "Deployment", name)["env"]}
            assert env[names.ENV_SERVER_SET] == str(number)
            assert container(world, "Deployment", name)["command"] == ["python", "-m", "headway_rollout"]

    def test_a_set_is_released_as_soon_as_it_is_done(self) -> None:
        world = evaluating(candidates=MODELS).wants_sets(1)
        made = world.carry_out()
        to_delete = {(body["kind"], body["metadata"]["name"]) for body in made.to_delete}
        assert to_delete == {("Deployment", "refunds-eval-rollout-0"), ("Service", "refunds-eval-rollout-0")}
        assert world.deployments() == {"refunds-eval-broker", "refunds-eval-rollout-1"}
        world.wants_sets().carry_out()
        assert world.deployments() == {"refunds-eval-broker"}
        assert world.body["status"]["state"] == "Evaluating"

    def test_sets_stay_within_parallelism_and_need_a_candidate(self) -> None:
        world = evaluating(candidates=MODELS, sets=(0,)).wants_sets(0, 1, 7)
        world.carry_out()
        assert world.deployments() == {"refunds-eval-broker", "refunds-eval-rollout-0"}
        world = evaluating(candidates=MODELS, parallelism=3, sets=(2,)).wants_sets(7, 1, 2)
        world.carry_out()
        assert world.deployments() == {
            f"refunds-eval-{name}" for name in ("broker", "rollout-1", "rollout-2")
        }

    def test_sets_stay_while_a_restarted_coordinator_checks_again(self) -> None:
        world = evaluating()
        world.body["status"]["preflight"] = {"state": "Running"}
        assert world.carry_out().to_delete == ()

    def test_suspension_releases_sets_and_resuming_restores_them(self) -> None:
        world = evaluating()
        world.body["spec"]["suspend"] = True
        world.carry_out()
        assert world.deployments() == set()
        world.gone("coordinator", "broker", "rollout").carry_out()
        assert world.is_true("Suspended")
        world.body["spec"]["suspend"] = False
        world.carry_out()
        assert "refunds-eval-rollout-0" in world.deployments()


class TestStatus:
    """The conditions and state of an evaluation."""

    def test_conditions_are_those_of_an_evaluation(self) -> None:
        world = evaluating()
        assert {item["type"] for item in world.body["status"]["conditions"]} == {
            "Accepted", "CandidatesResolved", "PreflightPassed", "RolloutReady", "SandboxesReady",
            "Progressing", "Suspended", "Ready", "Reconciling", "Stalled",
        }  # fmt: skip
        assert world.is_true("RolloutReady")
        assert world.status_condition("Progressing")["reason"] == "Evaluating"
        assert not world.is_true("Ready"), "spec.readinessPolicy is Succeeded unless it says otherwise"

    @pytest.mark.parametrize(
        ("policy", "before", "during"),
        [("Accepted", True, True), ("Running", False, True), ("Succeeded", False, False)],
    )
    def test_ready_means_what_the_policy_says(self, policy: str, before: bool, during: bool) -> None:
        assert chosen(readinessPolicy=policy).is_true("Ready") is before
        assert evaluating(readinessPolicy=policy).is_true("Ready") is during

    def test_servers_are_counted_over_the_sets_that_are_needed(self) -> None:
        world = evaluating(candidates=MODELS, parallelism=2, sets=(0, 1), rollout={"replicas": 2})
        (role,) = [role for role in world.body["status"]["roles"] if role["name"] == "rollout"]
        assert (role["desired"], role["ready"]) == (4, 2)
        assert world.body["status"]["rolloutReplicas"] == 2
        assert world.is_true("RolloutReady"), "each set has a server"
        del world.objects["Pod", "refunds-eval-rollout-10"]
        world.carry_out()
        assert not world.is_true("RolloutReady")
        assert (world.body["status"]["state"], world.is_true("Reconciling")) == ("Starting", True)
        world.wants_sets(0).carry_out()
        assert world.is_true("RolloutReady"), "only about those that are needed now"
        assert world.body["status"]["state"] == "Evaluating"

    def test_each_stage_has_its_state(self) -> None:
        world = chosen()
        assert world.body["status"]["state"] == "Pending"
        world.body["status"]["preflight"] = {"state": "Running"}
        world.carry_out()
        assert world.body["status"]["state"] == "Preflight"
        world.body["status"] |= PASSED
        world.wants_sets(0).carry_out()
        assert world.body["status"]["state"] == "Starting"
        world.ready("coordinator", "broker").server(0)
        world.carry_out()
        assert world.body["status"]["state"] == "Evaluating"

    def test_endpoints_alone_need_no_servers(self) -> None:
        world = evaluating(candidates=[ELSEWHERE], sets=())
        assert world.body["status"]["state"] == "Evaluating"
        assert world.deployments() == {"refunds-eval-broker"}
        assert world.status_condition("RolloutReady")["reason"] == "NotStarted"

    @pytest.mark.parametrize("reason", ["GateNotPassed", "CandidateFailed"])
    def test_an_evaluation_fails_in_its_coordinators_words(self, reason: str) -> None:
        world = evaluating()
        gate = {"type": "GatePassed", "status": "False", "reason": reason} | {
            "lastTransitionTime": "2026-11-01T12:00:00Z"
        }
        world.body["status"]["conditions"].append(gate)
        world.gave_up("coordinator", reason, "tuned has 0.71, and 0.8 is asked for")
        made = world.carry_out()
        assert made.ending
        failed = world.status_condition("Failed")
        assert (failed["reason"], failed["message"]) == (reason, "tuned has 0.71, and 0.8 is asked for")
        assert world.is_true("Stalled")
        world.objects.clear()
        world.carry_out()
        assert world.status_condition("GatePassed")["status"] == "False", "the coordinator's word stands"

    @pytest.mark.parametrize("reason", ["bad reason: x", "", "lower", "X" * 65, "Line\n"])
    def test_an_evaluation_fails_for_any_reason_of_its_coordinator(self, reason: str) -> None:
        """A sandbox may have made up the reason. If no condition accepted it, the job would never end."""
        world = evaluating()
        world.gave_up("coordinator", reason, "the environment said so")
        assert world.carry_out().ending
        failed = world.status_condition("Failed")
        assert failed["reason"] == "ProcessFailed"
        assert "the environment said so" in failed["message"]

    def test_an_evaluation_is_complete_when_its_coordinator_is(self) -> None:
        world = evaluating()
        results = [{"name": "base", "state": "Complete"}, {"name": "other", "state": "Failed"}]
        world.body["status"]["results"] = results
        world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
        world.carry_out()
        condition = world.status_condition("Complete")
        assert (condition["status"], condition["reason"]) == ("True", "Evaluated")
        assert condition["message"] == "1 of 2 candidates were measured"
        assert world.is_true("Ready")
        assert (world.body["status"]["state"], world.body["status"]["results"]) == ("Complete", results)

    def test_an_evaluation_without_progress_is_stalled(self) -> None:
        world = evaluating()
        assert world.later(PLATFORM.stalled_after_seconds - 1).carry_out().requeue_after == pytest.approx(1)
        world.later(2).carry_out()
        assert (world.status_condition("Stalled")["reason"], world.is_true("Stalled")) == ("NoProgress", True)

    def test_a_deadline_says_what_makes_it_shorter(self) -> None:
        world = evaluating(activeDeadlineSeconds=60).later(61)
        world.carry_out()
        assert "lower spec.evaluation.maxRows" in world.status_condition("Failed")["message"]

    def test_a_plan_carried_out_asks_for_nothing_more(self) -> None:
        world = evaluating()
        settled = json.dumps(world.body["status"])
        made = world.later(30).carry_out()
        assert made.to_delete == ()
        assert json.dumps(world.body["status"]) == settled

    def test_an_invalid_spec_does_not_stop_running_pods(self) -> None:
        world = evaluating(activeDeadlineSeconds=1000)
        world.body["spec"]["candidates"] = [{"name": "none"}]
        made = world.carry_out()
        assert (made.wanted, made.to_delete) == ((), ())
        assert world.status_condition("Accepted")["reason"] == "InvalidSpec"
        assert world.is_true("Progressing")
        world.later(1001).carry_out()
        assert world.status_condition("Failed")["reason"] == "ActiveDeadlineExceeded"


@pytest.mark.parametrize("failed", [False, True])
def test_a_finished_evaluation_is_deleted_after_its_ttl(failed: bool) -> None:
    world = evaluating(ttlSecondsAfterFinished=60)
    if failed:
        world.gave_up("coordinator", "GateNotPassed", "tuned has 0.71, and 0.8 is asked for")
    else:
        world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    assert world.carry_out().ending
    assert world.is_true("Failed" if failed else "Complete")
    world.objects.clear()
    assert world.carry_out().requeue_after == pytest.approx(60)
    assert not world.has_finalizer
    assert not world.plan().delete_job
    assert world.later(61).plan().delete_job


def test_a_finished_evaluation_without_a_ttl_stays() -> None:
    world = evaluating()
    world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    world.carry_out()
    world.objects.clear()
    world.carry_out()
    assert not world.later(10_000_000).plan().delete_job


def test_a_deleted_evaluation_is_taken_down_and_let_go() -> None:
    world = evaluating().deleted()
    for _ in range(6):
        world.carry_out()
        world.gone("coordinator", "broker", "rollout")
    assert world.objects == {}
    assert not world.has_finalizer


def test_a_set_of_servers_is_part_of_the_observed_state() -> None:
    world = evaluating(candidates=MODELS, parallelism=2, sets=(0, 1))
    seen = Observed(world.now, tuple(world.objects.values())).of_set(1)
    assert {body["kind"] for body in seen.objects} == {"Deployment", "Service", "Pod"}
    assert [pod["metadata"]["name"] for pod in seen.pods(names.ROLLOUT)] == ["refunds-eval-rollout-10"]


def gated(**spec: Any) -> World:
    """A running evaluation with a gate, whose coordinator has reported that it is still measuring."""
    return reported(evaluating(gate={"candidate": "base", "minimum": "0.5"}, **spec), "Unknown", "Evaluating")


def reported(world: World, status: str, reason: str) -> World:
    """Set GatePassed and the gate's result as the coordinator writes them."""
    others = [each for each in world.body["status"]["conditions"] if each["type"] != "GatePassed"]
    gate = {"type": "GatePassed", "status": status, "reason": reason, "message": "its own words"}
    world.body["status"]["conditions"] = [*others, gate | {"lastTransitionTime": stamp(world.now)}]
    results = {"Evaluating": "Pending", "GateNotPassed": "Refused", "Passed": "Passed"}
    world.body["status"]["gate"] = {"result": results[reason], "message": "its own words"}
    return world


class TestGateOfNobody:
    """A job that failed before its gate was decided does not claim to be still measuring."""

    def test_a_deadline_leaves_the_gate_unjudged(self) -> None:
        world = gated(activeDeadlineSeconds=1000)
        world.later(1001).carry_out()
        for _ in range(2):
            found = world.status_condition("GatePassed")
            assert (found["status"], found["reason"]) == ("Unknown", "GateNotJudged")
            assert found["message"] == "the job failed before all rows were measured"
            assert world.body["status"]["gate"] == {"result": "NotJudged", "message": found["message"]}
            world.later(30).carry_out()

    def test_a_late_coordinator_write_keeps_the_gate_unjudged(self) -> None:
        world = gated(activeDeadlineSeconds=1000)
        world.later(1001).carry_out()
        reported(world, "Unknown", "Evaluating").objects.clear()
        world.later(5).carry_out()
        assert world.status_condition("GatePassed")["reason"] == "GateNotJudged"
        assert world.body["status"]["gate"]["result"] == "NotJudged"

    @pytest.mark.parametrize(("status", "reason"), [("False", "GateNotPassed"), ("True", "Passed")])
    def test_a_gates_verdict_is_kept(self, status: str, reason: str) -> None:
        world = reported(gated(activeDeadlineSeconds=1000), status, reason)
        made = world.later(1001).carry_out().status
        assert made is not None
        assert "GatePassed" not in {each.type for each in made.conditions}, "it is the coordinator's"
        assert world.status_condition("GatePassed")["message"] == "its own words"
        assert world.body["status"]["gate"]["message"] == "its own words"
        assert made.gate is None

    def test_a_job_without_a_gate_says_nothing_of_one(self) -> None:
        world = evaluating(activeDeadlineSeconds=1000)
        world.later(1001).carry_out()
        assert "GatePassed" not in {each["type"] for each in world.body["status"]["conditions"]}
