"""Jobs and Deployments on one machine create, recreate and give up pods as Kubernetes' controllers do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway_cli.local import workloads
from headway_cli.local.workloads import PodState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = {
    "rules": [
        {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}},
        {"action": "Ignore", "onExitCodes": {"containerName": "c", "operator": "In", "values": [44]}},
        {"action": "Count", "onExitCodes": {"containerName": "c", "operator": "NotIn", "values": [7]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
}


def a_job(**spec: Any) -> dict[str, Any]:
    return {"spec": {"completions": 1, "backoffLimit": 2, "podFailurePolicy": POLICY, **spec}}


def failed(code: int, index: int = 0, ago: float = 100, name: str = "p") -> PodState:
    return PodState(f"{name}-{index}-{code}-{ago}", index, "Failed", code, NOW - timedelta(seconds=ago))


def test_a_new_job_gets_a_pod_for_each_completion() -> None:
    assert workloads.job(a_job(), [], NOW).create == (0,)
    indexed = a_job(completions=3, completionMode="Indexed", backoffLimitPerIndex=1)
    assert workloads.job(indexed, [], NOW).create == (0, 1, 2)


def test_a_pod_that_runs_is_left_alone() -> None:
    running = [PodState("p", 0, "Running")]
    assert workloads.job(a_job(), running, NOW) == workloads.Step()


def test_a_failure_is_counted_and_its_pod_remade_after_a_pause() -> None:
    step = workloads.job(a_job(), [failed(1, ago=0.5)], NOW)
    assert step.create == ()
    assert step.status == {"failed": 1}
    assert workloads.job(a_job(), [failed(1, ago=1.0)], NOW).create == (0,)


def test_pauses_double_up_to_a_bound() -> None:
    assert [workloads.backoff(n) for n in (1, 2, 3, 10)] == [1, 2, 4, workloads.LONGEST_BACKOFF_SECONDS]


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ([failed(42)], "PodFailurePolicy"),
        ([failed(1, ago=n) for n in (10, 20, 30)], "BackoffLimitExceeded"),
    ],
)
def test_a_job_fails_beyond_its_limit_of_restarts(pods: list[PodState], reason: str) -> None:
    step = workloads.job(a_job(), pods, NOW)
    (condition,) = step.status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Failed", "True", reason)
    assert step.create == ()


def test_the_rule_that_fails_a_job_is_named() -> None:
    (condition,) = workloads.job(a_job(), [failed(42)], NOW).status["conditions"]
    assert condition["message"].endswith("failed with exit code 42 matching FailJob rule at index 0")


def test_a_fresh_start_is_not_counted() -> None:
    step = workloads.job(a_job(), [failed(44, ago=n) for n in range(10)], NOW)
    assert step.create == (0,)
    assert step.status == {}


def test_each_index_has_a_limit_of_its_own() -> None:
    spec = {"completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "maxFailedIndexes": 0}
    once_each = [failed(1, index=0), failed(1, index=1)]
    assert workloads.job(a_job(**spec), once_each, NOW).create == (0, 1)
    twice = [*once_each, failed(1, index=1, ago=50)]
    (condition,) = workloads.job(a_job(**spec), twice, NOW).status["conditions"]
    assert condition["reason"] == "MaxFailedIndexesExceeded"


def test_a_job_is_complete_when_every_index_has_succeeded() -> None:
    spec = {"completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1}
    one = [PodState("a", 0, "Succeeded", 0, NOW), PodState("b", 1, "Running")]
    assert "conditions" not in workloads.job(a_job(**spec), one, NOW).status
    both = [one[0], PodState("b", 1, "Succeeded", 0, NOW)]
    (condition,) = workloads.job(a_job(**spec), both, NOW).status["conditions"]
    assert condition["type"] == "Complete"


def test_a_job_that_has_ended_ends_what_still_runs() -> None:
    ended = a_job() | {"status": {"failed": 1, "conditions": [{"type": "Failed", "status": "True"}]}}
    step = workloads.job(ended, [PodState("p", 0, "Running"), failed(1)], NOW)
    assert step.delete == ("p",)
    assert step.create == ()
    assert step.status == ended["status"]


def test_a_deployment_has_as_many_pods_as_replicas() -> None:
    pods = [PodState(f"p{n}", n, "Running") for n in range(3)]
    assert workloads.deployment({"spec": {"replicas": 4}}, pods, 2).create == (3,)
    step = workloads.deployment({"spec": {"replicas": 1}}, pods, 2)
    assert step.delete == ("p1", "p2")
    assert step.status == {"replicas": 3, "readyReplicas": 2}
