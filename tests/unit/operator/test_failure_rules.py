"""spec.failurePolicy.rules: what each action does for each role, and that each failure counts once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_cluster import PASSED, World, evaluating, job, running, stamp

from headway_api import names
from headway_api.document import Json
from headway_api.exits import PERMANENT, RESTART
from headway_operator.plan import events
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.reading import parse_status

ACTIONS = ("FailJob", "Ignore", "Count", "Restart")
JUDGE = {"name": "style", "model": {"base": "hf://acme/judge"}}
SERVED = ("rollout", "broker", "judge")
OWN_CONTAINER = {"judge": "rollout"}


def rule(action: str, role: str | None = None, codes: tuple[int, ...] = (137,), operator: str = "In") -> Json:
    body: Json = {"action": action, "onExitCodes": {"operator": operator, "values": [*codes]}}
    return body | ({"role": role} if role else {})


def on_condition(action: str, kind: str = "DisruptionTarget", status: str = "True") -> Json:
    return {"action": action, "onPodConditions": [{"type": kind, "status": status}]}


def job_under(*rules: Json, limit: int = 5, **spec: Any) -> World:
    """A job with a judge's server, in which every role runs."""
    world = running(failurePolicy={"maxRestarts": limit, "rules": [*rules]}, judges=[JUDGE], **spec)
    well(world, "judge")
    world.carry_out()
    return world


def container(role: str, **status: Any) -> Json:
    return {"name": OWN_CONTAINER.get(role, role), "ready": False, "restartCount": 0} | status


def well(world: World, role: str, index: int = 0, **status: Any) -> Json:
    """A ready pod. `status` has fields of its container's status."""
    pod = world.pod(
        role,
        index,
        phase="Running",
        conditions=[world.condition("Ready", True)],
        containerStatuses=[container(role, **({"state": {"running": {}}} | status))],
    )
    if role == "judge":
        pod["metadata"]["labels"][names.LABEL_JUDGE] = "style"
    return pod


def ended(world: World, code: int) -> Json:
    return {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": stamp(world.now)}}


def crashed(world: World, role: str, code: int, times: int = 1, index: int = 0) -> Json:
    """A server whose process has ended so many times, and runs again."""
    return well(world, role, index, restartCount=times, lastState=ended(world, code))


def died(world: World, role: str, code: int, index: int = 0, **status: Any) -> Json:
    """A pod that has failed."""
    return world.pod(
        role,
        index,
        **({"phase": "Failed", "containerStatuses": [container(role, state=ended(world, code))]} | status),
    )


def restarts(world: World, role: str) -> int:
    found = next(each for each in world.body["status"]["roles"] if each["name"] == role)
    return int(found.get("restarts", 0))


def matched(world: World) -> list[tuple[str, str, int]]:
    found = world.body["status"].get("failures", {}).get("matched", [])
    return [(each["role"], each["action"], each.get("rule", 0)) for each in found]


def matches(world: World) -> list[str]:
    status = parse_status(job_kind_of(world.body).model, world.body)
    found = [fact for fact in events.unrecorded(status, ()) if fact.reason == "FailureRuleMatched"]
    assert len({fact.key for fact in found}) == len(found)
    return [fact.message for fact in found]


class TestOfJobs:
    """Rules for coordinator and learner become rules of their Job's podFailurePolicy."""

    @pytest.mark.parametrize("role", ["coordinator", "learner"])
    @pytest.mark.parametrize(
        ("action", "native"),
        [("FailJob", "FailJob"), ("Ignore", "Ignore"), ("Count", "Count"), ("Restart", "Count")],
    )
    def test_rules_come_between_fixed_rules_and_disruptions(
        self, role: str, action: str, native: str
    ) -> None:
        world = job_under(rule(action, codes=(137, 3, 137)), on_condition(action, "acme.dev/Gone", "Unknown"))
        policy = world.objects["Job", f"refunds-{role}"]["spec"]["podFailurePolicy"]["rules"]
        permanent, restart, by_code, by_condition, disrupted = policy
        assert (permanent["action"], permanent["onExitCodes"]["values"]) == ("FailJob", [PERMANENT])
        assert (restart["action"], restart["onExitCodes"]["values"]) == ("Ignore", [RESTART])
        assert by_code == {
            "action": native,
            "onExitCodes": {"containerName": role, "operator": "In", "values": [3, 137]},
        }
        assert by_condition == {
            "action": native,
            "onPodConditions": [{"type": "acme.dev/Gone", "status": "Unknown"}],
        }
        assert disrupted["onPodConditions"][0]["type"] == "DisruptionTarget"

    def test_a_job_has_no_rules_of_other_roles(self) -> None:
        world = job_under(rule("Ignore", "learner"), rule("FailJob", "rollout"))
        policies = {
            role: world.objects["Job", f"refunds-{role}"]["spec"]["podFailurePolicy"]["rules"]
            for role in ("coordinator", "learner")
        }
        assert [len(policies[role]) for role in ("coordinator", "learner")] == [3, 4]

    @pytest.mark.parametrize("role", ["coordinator", "learner"])
    def test_a_fail_rule_fails_the_job_at_once_and_is_named(self, role: str) -> None:
        world = job_under(rule("Ignore", codes=(9,)), rule("FailJob", role))
        died(world, role, 137)
        made = world.carry_out()
        assert made.ending
        failed = world.status_condition("Failed")
        assert failed["reason"] == "FailureRuleMatched"
        assert failed["message"].startswith(f"spec.failurePolicy.rules[1]: {role} pod refunds-{role}-0 ended")
        assert matches(world) == [
            f"spec.failurePolicy.rules[1]: {role} pod refunds-{role}-0 ended with exit code 137: FailJob"
        ]

    def test_a_rule_is_named_although_the_pod_is_gone(self) -> None:
        world = job_under(rule("Ignore", "learner"), rule("FailJob", "coordinator"))
        world.gone("coordinator")
        text = "Container coordinator of pod x failed with exit code 137 matching FailJob rule at index 2"
        failed = world.condition("Failed", True) | {"reason": "PodFailurePolicy", "message": text}
        world.workload_status("Job", "coordinator", conditions=[failed])
        world.later(6).carry_out()
        assert world.status_condition("Failed")["reason"] == "FailureRuleMatched"
        assert world.status_condition("Failed")["message"].startswith(
            "spec.failurePolicy.rules[1]: coordinator"
        )

    @pytest.mark.parametrize("index", [0, 1, 3])
    def test_a_rule_is_not_named_if_another_decided(self, index: int) -> None:
        world = job_under(rule("FailJob", "coordinator"))
        world.gone("coordinator")
        text = f"failed with exit code 42 matching FailJob rule at index {index}"
        failed = world.condition("Failed", True) | {"reason": "PodFailurePolicy", "message": text}
        world.workload_status("Job", "coordinator", conditions=[failed])
        world.later(6).carry_out()
        assert world.status_condition("Failed")["reason"] == "ProcessFailed"

    @pytest.mark.parametrize("action", ["Ignore", "Count"])
    def test_a_rule_that_restarts_a_process_is_reported_once(self, action: str) -> None:
        world = job_under(rule(action, "learner"))
        died(world, "learner", 137)
        world.carry_out()
        first = copy.deepcopy(world.body["status"]["failures"])
        assert matched(world) == [("learner", action, 0)]
        assert f"(spec.failurePolicy.rules[0]: {action})" in world.status_condition("LearnerReady")["message"]
        made = world.later(30).carry_out()
        assert world.body["status"]["failures"] == first
        assert not made.to_delete
        assert not world.is_true("Failed")

    def test_a_restart_rule_ends_the_other_ranks_too(self) -> None:
        world = job_under(rule("Restart", "learner"), learner={"nodes": 3})
        for index in (1, 2):
            well(world, "learner", index)
        died(world.later(5), "learner", 137)
        made = world.carry_out()
        assert not made.to_delete, "first the status says so"
        going = {pod["metadata"]["name"] for pod in world.plan().to_delete}
        assert going == {"refunds-learner-1", "refunds-learner-2"}
        made = world.carry_out()
        # Their successors, and the other pods that end by SIGTERM, start no new attempt.
        died(world.later(1), "learner", 143, index=1)
        well(world, "learner", 3)["metadata"]["creationTimestamp"] = stamp(world.now)
        world.carry_out()
        assert not world.plan().to_delete
        assert matched(world) == [("learner", "Restart", 0)]

    def test_a_restart_rule_keeps_an_existing_successor(self) -> None:
        world = job_under(rule("Restart", "coordinator"))
        died(world.later(5), "coordinator", 137)
        world.later(20)
        well(world, "coordinator", 1)
        world.carry_out()
        assert not world.carry_out().to_delete


class TestOfServers:
    """Rules for roles whose pods the kubelet restarts: the operator applies them and counts."""

    @pytest.mark.parametrize("role", SERVED)
    def test_a_servers_fail_rule_fails_the_job_at_once(self, role: str) -> None:
        world = job_under(rule("FailJob", role))
        crashed(world, role, 137)
        assert world.carry_out().ending
        assert world.status_condition("Failed")["reason"] == "FailureRuleMatched"
        assert (
            f"{role} pod refunds-{role}-0 ended with exit code 137"
            in world.status_condition("Failed")["message"]
        )

    @pytest.mark.parametrize("role", SERVED)
    def test_ignored_failures_never_count(self, role: str) -> None:
        world = job_under(rule("Ignore", role), limit=2)
        for times in range(1, 9):
            crashed(world.later(20), role, 137, times)
            world.carry_out()
        assert not world.is_true("Failed")
        assert restarts(world, role) == 0
        [unit] = world.body["status"]["failures"]["roles"]
        assert unit["ignored"] == 8
        assert len(matches(world)) == 8

    @pytest.mark.parametrize("role", SERVED)
    @pytest.mark.parametrize("action", ["Count", None])
    def test_a_count_rule_ends_the_job_as_no_rule_does(self, role: str, action: str | None) -> None:
        world = job_under(rule(action or "Ignore", role, codes=(137 if action else 9,)), limit=2)
        for times in (1, 2):
            crashed(world.later(20), role, 137, times)
            world.carry_out()
            assert restarts(world, role) == times
            assert not world.is_true("Failed")
        crashed(world.later(20), role, 137, 3)
        world.carry_out()
        assert world.status_condition("Failed")["reason"] == "MaxRestartsExceeded"
        assert ("rules[0]: Count" in world.status_condition("Failed")["message"]) == bool(action)

    @pytest.mark.parametrize("role", SERVED)
    def test_a_restart_rule_deletes_all_pods_of_the_role_once(self, role: str) -> None:
        world = job_under(rule("Restart", role), limit=1)
        for index in (1, 2):
            well(world, role, index)
        crashed(world.later(5), role, 137)
        crashed(world, role, 137, index=1)
        world.carry_out()
        assert restarts(world, role) == 1, "two that fail together are started again together"
        going = {pod["metadata"]["name"] for pod in world.carry_out().to_delete}
        assert going == {f"refunds-{role}-{n}" for n in range(3)}
        well(world.later(5), role, 7)
        assert not world.carry_out().to_delete
        assert "pods" not in world.body["status"]["failures"]
        crashed(world.later(5), role, 137, index=7)
        world.carry_out()
        assert world.status_condition("Failed")["reason"] == "MaxRestartsExceeded", (
            "counted though the pods are gone"
        )

    def test_restart_rules_leave_pods_that_are_ending_already(self) -> None:
        world = job_under(rule("Restart"))
        world.ending("broker")
        crashed(world.later(5), "rollout", 137)
        world.carry_out()
        assert [pod["metadata"]["name"] for pod in world.carry_out().to_delete] == ["refunds-rollout-0"]

    def test_the_first_matching_rule_decides(self) -> None:
        world = job_under(
            rule("FailJob", "broker"),
            rule("Ignore", codes=(0, 5), operator="NotIn"),
            rule("FailJob"),
        )
        crashed(world, "rollout", 137)
        world.carry_out()
        assert matched(world) == [("rollout", "Ignore", 1)]

    @pytest.mark.parametrize(("code", "count"), [(5, 1), (0, 1), (1, 0)])
    def test_not_in_matches_other_failures_alone(self, code: int, count: int) -> None:
        world = job_under(rule("Ignore", codes=(5,), operator="NotIn"))
        crashed(world, "rollout", code)
        world.carry_out()
        assert restarts(world, "rollout") == count

    def test_fixed_rules_come_first(self) -> None:
        world = job_under(rule("Ignore", codes=(0,), operator="NotIn"))
        crashed(world, "rollout", RESTART)
        world.carry_out()
        assert (restarts(world, "rollout"), matched(world)) == (0, [])
        crashed(world, "rollout", PERMANENT, 2)
        world.carry_out()
        assert world.status_condition("Failed")["reason"] == "ProcessFailed"

    def test_a_process_that_waits_for_its_back_off_has_ended(self) -> None:
        world = job_under(rule("Count"), limit=1)
        for times, state in [(0, ended(world, 137)), (1, {"running": {}}), (1, ended(world, 137))]:
            well(world, "rollout", restartCount=times, state=state, lastState=ended(world, 137))
            world.carry_out()
        assert world.status_condition("Failed")["reason"] == "MaxRestartsExceeded"
        assert len(matched(world)) == 2

    def test_a_users_own_container_counts_as_without_rules(self) -> None:
        world = job_under(rule("Ignore"))
        pod = well(world, "rollout")
        sidecar = {"name": "proxy", "restartCount": 2, "lastState": ended(world, 137), "state": {}}
        pod["status"]["containerStatuses"].append(sidecar)
        world.carry_out()
        assert (restarts(world, "rollout"), matched(world)) == (2, [])

    @pytest.mark.parametrize(
        ("action", "count"), [("Ignore", 0), ("Count", 1), ("Restart", 1), ("FailJob", None)]
    )
    def test_a_rule_matches_the_condition_of_an_evicted_pod(self, action: str, count: int | None) -> None:
        world = job_under(on_condition(action))
        evicted = world.ending("rollout")
        evicted["status"]["conditions"].append(world.condition("DisruptionTarget", True))
        well(world, "rollout", 1)
        world.carry_out()
        assert matches(world) == [
            f"spec.failurePolicy.rules[0]: rollout pod refunds-rollout-0 ended with condition "
            f"DisruptionTarget: {action}"
        ]
        if count is None:
            assert world.status_condition("Failed")["reason"] == "FailureRuleMatched"
            return
        assert restarts(world, "rollout") == count
        going = [pod["metadata"]["name"] for pod in world.carry_out().to_delete]
        assert going == (["refunds-rollout-1"] if action == "Restart" else [])
        world.later(10).carry_out()
        assert restarts(world, "rollout") == count

    def test_a_disruption_that_no_rule_is_about_counts_nothing(self) -> None:
        world = job_under(rule("Count", codes=(1,)))
        lost = world.condition("DisruptionTarget", True)
        died(world, "rollout", 137, conditions=[lost])
        world.carry_out()
        assert (restarts(world, "rollout"), matched(world)) == (0, [])

    def test_the_end_of_an_unneeded_pod_is_no_failure(self) -> None:
        any_code = rule("FailJob", codes=(0,), operator="NotIn")
        world = job_under(any_code, on_condition("FailJob", "Ready", "False"))
        pod = crashed(world, "rollout", 143)
        pod["metadata"]["deletionTimestamp"] = stamp(world.now)
        pod["status"]["conditions"] = [world.condition("Ready", False)]
        world.carry_out()
        assert not world.is_true("Failed")

    def test_counted_failures_outlive_a_suspension(self) -> None:
        world = job_under(rule("Count"), limit=1)
        crashed(world, "rollout", 137)
        world.carry_out()
        world.body["spec"]["suspend"] = True
        for _ in range(3):
            world.carry_out()
            for key in [key for key in world.objects if key[0] == "Pod"]:
                del world.objects[key]
        assert matched(world) == [("rollout", "Count", 0)]
        world.body["spec"]["suspend"] = False
        world.carry_out()
        crashed(world.later(60), "rollout", 137, index=4)
        world.carry_out()
        assert world.status_condition("Failed")["reason"] == "MaxRestartsExceeded"

    def test_rules_apply_while_the_spec_is_refused(self) -> None:
        world = job_under(rule("Ignore"), limit=0)
        crashed(world, "rollout", 137)
        world.carry_out()
        world.body["spec"]["seed"] = -1
        made = world.carry_out()
        assert not made.ending
        assert matched(world) == [("rollout", "Ignore", 0)]

    def test_without_rules_no_failures_are_stored(self) -> None:
        world = job_under()
        crashed(world, "rollout", 137, 2)
        world.carry_out()
        assert "failures" not in world.body["status"]
        assert restarts(world, "rollout") == 2

    def test_only_the_last_decisions_are_stored(self) -> None:
        world = job_under(rule("Ignore"), limit=0)
        for times in range(1, 40):
            crashed(world.later(20), "rollout", 137, times)
            world.carry_out()
        kept = world.body["status"]["failures"]["matched"]
        assert [each["ending"] for each in kept] == [*range(24, 40)]


def test_sets_of_servers_are_counted_apart() -> None:
    base = {"name": "base", "model": {"base": "hf://Qwen/Qwen3-8B"}}
    other = {"name": "other", "model": {"base": "hf://Qwen/Qwen3-4B"}}
    policy = {"maxRestarts": 1, "rules": [rule("Count")]}
    world = evaluating(candidates=[base, other], parallelism=2, sets=(0, 1), failurePolicy=policy)
    for times in (1, 2):
        for number in (0, 1):
            count = times if number else 1
            world.later(5).server(
                number,
                phase="Running",
                conditions=[world.condition("Ready", True)],
                containerStatuses=[container("rollout", restartCount=count, lastState=ended(world, 137))],
            )
        world.carry_out()
    units = {unit["unit"]: unit["counted"] for unit in world.body["status"]["failures"]["roles"]}
    assert units == {"0": 1, "1": 2}
    lost = {each["name"]: each.get("lostReason") for each in world.body["status"]["candidates"]}
    assert lost == {"base": None, "other": "MaxRestartsExceeded"}
    assert not world.is_true("Failed")


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 137, 9])), min_size=1, max_size=24)


@given(steps=STEPS, looks=st.sets(st.integers(0, 23)))
def test_each_end_is_counted_once_in_any_order_of_reads(
    steps: list[tuple[int, int]], looks: set[int]
) -> None:
    """Three servers crash in turn, and each end is read once or more.

    The reads in `looks` are repeated, as by a restarted operator that has only the status.
    """
    rules = [rule("Ignore"), rule("Count", codes=(9,))]
    world = World(job(failurePolicy={"maxRestarts": 1000, "rules": rules}))
    world.body["status"] = copy.deepcopy(PASSED)
    world.carry_out()
    world.ready(*names.ROLES[:4])
    times = [0, 0, 0]
    for number, (index, code) in enumerate(steps):
        times[index] += 1
        crashed(world.later(7), "rollout", code, times[index], index)
        for _ in range(2 if number in looks else 1):
            world.carry_out()
    kept = world.body["status"].get("failures", {})
    [unit] = kept.get("roles", [{}])
    assert unit.get("ignored", 0) == sum(code == 137 for _, code in steps)
    assert unit.get("counted", 0) == sum(code != 137 for _, code in steps)
    assert len(kept.get("matched", [])) == min(16, sum(code != 1 for _, code in steps))
