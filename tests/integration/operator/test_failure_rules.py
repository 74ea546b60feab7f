"""Failure rules on a real cluster, with its own controllers and kubelet, and the operator's conclusions."""

from __future__ import annotations

import json

import pytest
from operator_rig import Rig, wait

from headway_api.document import Json

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(300)]

ONCE = "test -e /tmp/ended && exec sleep 3600; touch /tmp/ended; exit 3"
"""A command that fails the first time that it runs in a pod, and then keeps running."""


def rule(action: str, role: str, *codes: int) -> Json:
    return {"action": action, "role": role, "onExitCodes": {"operator": "In", "values": [*codes]}}


def decided(rig: Rig, name: str) -> list[Json]:
    found: list[Json] = rig.get(name).get("status", {}).get("failures", {}).get("matched", [])
    return found


def restarts(rig: Rig, name: str, role: str) -> int:
    roles = rig.get(name).get("status", {}).get("roles", [])
    return int(next((each.get("restarts", 0) for each in roles if each["name"] == role), 0))


def event_messages(rig: Rig, name: str) -> list[str]:
    fields = f"involvedObject.name={name},reason=FailureRuleMatched"
    text = rig.cluster.kubectl("get", "events", "-n", rig.namespace, "--field-selector", fields, "-o", "json")
    return [event["message"] for event in json.loads(text)["items"]]


def test_a_rule_fails_the_job_at_once_and_is_named(rig: Rig) -> None:
    rig.scripts = {"coordinator": "exit 9"}
    rig.start()
    rules = [rule("Ignore", "broker", 9), rule("FailJob", "coordinator", 9)]
    rig.apply("doomed", failurePolicy={"maxRestarts": 5, "rules": rules})
    failed = rig.wait_true("doomed", "Failed")
    assert failed["reason"] == "FailureRuleMatched"
    assert failed["message"].startswith("spec.failurePolicy.rules[1]: coordinator")


def test_a_job_does_not_count_what_a_rule_ignores(rig: Rig) -> None:
    rig.scripts = {"coordinator": "exit 9"}
    rig.start()
    rig.apply("patient", failurePolicy={"maxRestarts": 0, "rules": [rule("Ignore", "coordinator", 9)]})
    wait("two decisions", lambda: len(decided(rig, "patient")) == 2, explain=lambda: rig.story("patient"))
    assert restarts(rig, "patient", "coordinator") == 0
    assert rig.condition("patient", "Failed") == {}


@pytest.mark.parametrize(("action", "count"), [("Ignore", 0), ("Count", 1)])
def test_a_process_restarted_by_the_kubelet_counts_by_the_rule(rig: Rig, action: str, count: int) -> None:
    rig.scripts = {"broker": ONCE}
    rig.start()
    name = action.lower()
    rig.apply(name, failurePolicy={"maxRestarts": 5, "rules": [rule(action, "broker", 3)]})
    wait("a decision", lambda: decided(rig, name), explain=lambda: rig.story(name))
    [found] = decided(rig, name)
    assert (found["role"], found["exitCode"], found["action"]) == ("broker", 3, action)
    wait("its event", lambda: event_messages(rig, name), explain=rig.log)
    assert event_messages(rig, name) == [
        f"spec.failurePolicy.rules[0]: broker pod {found['pod']} ended with exit code 3: {action}"
    ]
    assert restarts(rig, name, "broker") == count
    [pod] = rig.pods(name, "broker")
    assert pod["metadata"]["name"] == found["pod"], "started again in place"


def test_a_role_restarts_as_a_whole_despite_a_killed_operator(rig: Rig) -> None:
    rig.scripts = {"broker": "test -e /tmp/ended && exec sleep 3600; sleep 5; touch /tmp/ended; exit 3"}
    first = rig.start()
    rig.apply("whole", failurePolicy={"maxRestarts": 1, "rules": [rule("Restart", "broker", 3)]})
    wait("the first broker", lambda: rig.pods("whole", "broker"), explain=rig.log)
    [before] = rig.pods("whole", "broker")
    wait("a decision", lambda: decided(rig, "whole"), explain=lambda: rig.story("whole"))
    rig.kill(first)
    rig.start()

    def successor() -> bool:
        found = rig.pods("whole", "broker")
        return bool(found) and found[0]["metadata"]["uid"] != before["metadata"]["uid"]

    wait("another broker", successor, explain=lambda: rig.story("whole"))
    # Its next failure is another one, and one too many.
    failed = rig.wait_true("whole", "Failed")
    assert failed["reason"] == "MaxRestartsExceeded"
    assert "spec.failurePolicy.rules[0]: Restart" in failed["message"]
