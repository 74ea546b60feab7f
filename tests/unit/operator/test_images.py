"""A container that cannot be created: the job names the field, the cause and the fix within seconds."""

from __future__ import annotations

import pytest
from observed_cluster import World, evaluating, job, running

from headway_api import names
from headway_operator.plan.events import unrecorded
from headway_operator.plan.health import pod_issue

ABSENT = 'Back-off pulling image "env:1": ErrImagePull: rpc error: code = NotFound desc = env:1: not found'
UNREACHABLE = 'failed to do request: Head "https://registry.test/v2/env": dial tcp: i/o timeout'


def checked() -> World:
    """A job whose coordinator waits for the sandbox of its preflight."""
    world = World(job())
    world.carry_out()
    world.ready("broker")
    world.starting("coordinator")
    world.body["status"]["preflight"] = {"state": "Running", "checks": []}
    world.carry_out()
    return world


def sandbox(world: World, reason: str, message: str) -> World:
    """The job's sandbox cannot start, for this reason."""
    pod = world.waiting("sandbox", reason, message)
    pod["spec"]["containers"][0]["image"] = "registry.test/env:1"
    world.carry_out()
    return world


def state(world: World) -> tuple[str, str]:
    status = world.body["status"]
    return status["state"], status["reason"]


def events(world: World) -> list[tuple[str, str]]:
    facts = [(fact.reason, fact.message) for fact in unrecorded(world.plan().status, set())]  # type: ignore[arg-type]
    return [fact for fact in facts if fact[0] in ("Stalled", "ImagePullFailed", "CreateFailed")]


def test_a_missing_image_is_in_the_columns_at_once() -> None:
    world = sandbox(checked(), "ImagePullBackOff", ABSENT)
    assert state(world) == ("Stalled", "ImagePullFailed")
    assert not world.is_true("Failed")


@pytest.mark.parametrize("kind", ["Stalled", "Ready", "Progressing", "SandboxesReady"])
def test_the_message_names_field_image_cause_and_fix(kind: str) -> None:
    world = sandbox(checked(), "ImagePullBackOff", ABSENT)
    message = world.status_condition(kind)["message"]
    assert message.startswith(
        "spec.environment.image: pod refunds-sandbox-0 has no image registry.test/env:1: "
    )
    assert "not found" in message
    assert message.endswith("; push it, or correct its name and tag")
    assert "coordinator: 0 of 1" not in message


def test_one_event_reports_a_missing_image() -> None:
    world = sandbox(checked(), "ImagePullBackOff", ABSENT)
    [(reason, words)] = events(world)
    assert reason == "Stalled"
    assert "ImagePullFailed: spec.environment.image: " in words


def test_an_unavailable_registry_is_reported_and_waited_for() -> None:
    world = sandbox(checked(), "ErrImagePull", UNREACHABLE)
    assert state(world) == ("Pending", "ImagePullFailed")
    assert world.is_true("Reconciling")
    [(reason, words)] = events(world)
    assert reason == "ImagePullFailed"
    assert words.startswith("spec.environment.image: ")
    assert world.plan().requeue_after == pytest.approx(120)


def test_after_two_minutes_the_job_is_stalled() -> None:
    world = sandbox(checked(), "ErrImagePull", UNREACHABLE)
    world.later(120).carry_out()
    assert state(world) == ("Stalled", "ImagePullFailed")
    assert not world.is_true("Failed")


def test_a_registry_that_is_back_clears_the_problem() -> None:
    world = sandbox(checked(), "ErrImagePull", UNREACHABLE).later(120)
    world.carry_out()
    world.ready("sandbox").carry_out()
    assert state(world) == ("Preflight", "Running")
    assert not world.is_true("Stalled")


@pytest.mark.parametrize("role", ["sandbox", "coordinator", "learner", "rollout", "broker"])
def test_an_invalid_image_name_fails_the_job(role: str) -> None:
    world = running() if role in ("learner", "rollout") else checked()
    world.waiting(role, "InvalidImageName", 'couldn\'t parse image name "Env:1": must be lowercase')
    world.carry_out()
    condition = world.status_condition("Failed")
    assert condition["reason"] == "ImagePullFailed"
    assert condition["message"].endswith("write it as REGISTRY/NAME:TAG, the name in lower case")


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("pull access denied, repository does not exist or may require authorization", "imagePullSecrets"),
        ("unexpected status code 401 Unauthorized", "imagePullSecrets"),
        ("manifest unknown", "push it"),
        ("dial tcp: lookup registry.test: no such host", "let the nodes reach it"),
        ("", "push it, correct its name and tag, or let the nodes reach its registry"),
    ],
)
def test_each_cause_has_its_fix(message: str, fix: str) -> None:
    world = sandbox(checked(), "ErrImagePull", message)
    assert fix in world.status_condition("SandboxesReady")["message"]


@pytest.mark.parametrize("role", ["coordinator", "broker"])
def test_a_missing_platform_image_names_the_charts_value(role: str) -> None:
    world = checked()
    world.waiting(role, "ImagePullBackOff", ABSENT)
    world.carry_out()
    assert state(world) == ("Stalled", "ImagePullFailed")
    assert world.status_condition("Stalled")["message"].startswith(f"images.{role} of the chart's values: ")


def test_a_missing_suite_image_names_the_suites_field() -> None:
    world = evaluating()
    pod = world.waiting("sandbox", "ErrImagePull", "not found")
    pod["metadata"]["labels"][names.LABEL_SUITE] = "arc"
    issue = pod_issue(pod)
    assert issue is not None
    assert issue.message.startswith("spec.suites[arc].image: ")


def test_a_container_that_a_template_adds_is_named() -> None:
    world = checked()
    pod = world.waiting("sandbox", "ErrImagePull", "not found")
    pod["status"]["containerStatuses"][0]["name"] = "proxy"
    world.carry_out()
    assert world.status_condition("Stalled")["message"].startswith("container proxy of a podTemplate: ")


def test_a_secret_that_is_missing_is_named_by_its_field() -> None:
    world = checked()
    pod = world.waiting("coordinator", "CreateContainerConfigError", 'secret "objects" not found')
    pod["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "objects"}}]
    world.carry_out()
    assert state(world) == ("Pending", "CreateFailed")
    [(reason, words)] = events(world)
    assert reason == "CreateFailed"
    assert words.startswith("spec.output.secretRef: ")
    assert "create Secret objects" in words


@pytest.mark.parametrize(("status", "reason"), [("False", "NothingToTrain"), ("True", "Stepping")])
def test_a_job_that_learns_nothing_has_the_reason_in_its_state(status: str, reason: str) -> None:
    world = running()
    healthy = world.condition("Healthy", status == "True") | {"reason": "NothingToTrain", "message": ""}
    world.body["status"]["conditions"].append(healthy)
    world.carry_out()
    assert state(world) == ("Training", reason)


def test_a_job_that_learned_nothing_says_so_at_its_end() -> None:
    world = running()
    healthy = world.condition("Healthy", False) | {"reason": "NothingToTrain", "message": "no advantage"}
    world.body["status"]["conditions"].append(healthy)
    world.body["status"] |= {"usage": {"trainTokens": 0}, "progress": {"step": 40, "maxSteps": 40}}
    world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    world.carry_out()
    message = world.status_condition("Complete")["message"]
    assert "; but no token was trained, because all rewards in each group were equal" in message
    assert message.endswith("; but NothingToTrain: no advantage")


def test_one_server_without_its_image_stalls_no_job() -> None:
    world = running(rollout={"replicas": 2})
    pod = world.waiting("rollout", "ImagePullBackOff", ABSENT)
    world.objects["Pod", "refunds-rollout-1"] = pod | {
        "metadata": pod["metadata"] | {"name": "refunds-rollout-1", "uid": "another"}
    }
    world.ready("rollout").carry_out()
    assert state(world)[0] == "Training"
