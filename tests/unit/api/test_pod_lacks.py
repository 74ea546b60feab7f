"""What a pod lacks, by messages of the scheduler and the API server, with field and fix."""

from __future__ import annotations

import pytest

from headway_api import names, pod_lacks

SCHEDULER = (
    "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to "
    "deallocate, "
    "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
)


def test_an_unschedulable_pods_message_leaves_out_preemption() -> None:
    message = pod_lacks.of_scheduler(names.LEARNER, "refunds-learner-0", SCHEDULER)
    assert message == (
        "spec.learner.podTemplate: pod refunds-learner-0: Unschedulable: 0/1 nodes are available: 1 "
        "node(s) didn't "
        "match Pod's node affinity/selector. Add such a node, or request what a node has"
    )


def test_too_little_of_a_resource_names_the_resources() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    assert pod_lacks.of_scheduler(names.ROLLOUT, "p", words).startswith("spec.rollout.resources: ")
    assert pod_lacks.of_scheduler(names.COORDINATOR, "p", words).startswith(
        "resources.coordinator of the chart"
    )


def test_a_killed_containers_message_has_its_limit_and_field() -> None:
    message = pod_lacks.of_memory(names.ROLLOUT, "p", "rollout", "96Mi")
    assert message.startswith(
        "spec.rollout.resources: container rollout of pod p was OOMKilled at its limit of 96Mi"
    )
    assert "limits.memory" in message


@pytest.mark.parametrize(
    ("role", "message", "field", "fix"),
    [
        (
            names.LEARNER,
            'Error creating: pods "a-learner-" is forbidden: exceeded quota: few, requested: pods=1',
            "spec.learner.resources: exceeded quota",
            "have the ResourceQuota raised",
        ),
        (
            names.COORDINATOR,
            'Error creating: pods "a-" is forbidden: error looking up service account team/trainer: '
            'serviceaccount "trainer" not found',
            'spec.serviceAccountName: serviceaccount "trainer" not found',
            "create it in the job's namespace",
        ),
        (
            names.SANDBOX,
            'pods "a" is forbidden: pod rejected: RuntimeClass "gvisor" not found',
            'spec.environment.sandbox.runtimeClassName: RuntimeClass "gvisor" not found',
            "install it",
        ),
        (
            names.LEARNER,
            'pods "a" is forbidden: no PriorityClass with name urgent was found',
            "spec.learner.podTemplate: no PriorityClass with name urgent was found",
            "create it",
        ),
        (
            names.ROLLOUT,
            'pods "a" is forbidden: maximum memory usage per Container is 4500Mi, but limit is 5Gi',
            "spec.rollout.resources: maximum memory usage per Container is 4500Mi",
            "have the LimitRange raised",
        ),
        (
            names.COORDINATOR,
            'pods "a" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes',
            'violates PodSecurity "restricted:latest"',
            "pod-security.kubernetes.io/enforce allows it",
        ),
    ],
)
def test_a_pod_that_is_refused_has_field_and_fix(role: str, message: str, field: str, fix: str) -> None:
    found = pod_lacks.of_creation(role, message)
    assert found.startswith(field)
    assert found.endswith(fix) or fix in found
    assert "forbidden" not in found


@pytest.mark.parametrize("volume", ["cache", "tmp"])
def test_a_volume_that_is_full_names_its_limit(volume: str) -> None:
    message = pod_lacks.of_eviction("p", f'Usage of EmptyDir volume "{volume}" exceeds the limit "100Gi". ')
    assert message == (
        f'cacheSizeLimit of the chart\'s values: pod p: Usage of EmptyDir volume "{volume}" exceeds the '
        'limit "100Gi"; ask an administrator to raise it'
    )


@pytest.mark.parametrize("message", ['Usage of EmptyDir volume "mine" exceeds the limit "1Gi".', "preempted"])
def test_another_eviction_keeps_its_own_words(message: str) -> None:
    assert pod_lacks.of_eviction("p", message) == f"pod p: {message}"


def test_an_unknown_message_is_kept_as_it_is() -> None:
    assert pod_lacks.of_creation(names.LEARNER, "the moon is full") == "the moon is full"
