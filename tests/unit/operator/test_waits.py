"""What a job waits for, and may still get: one event reports it, with field and fix."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from observed_cluster import PASSED, World, job

from headway_operator.plan.conditions import without_repeats
from headway_operator.plan.events import unrecorded

NO_NODE = "0/3 nodes are available: 3 Insufficient memory."


def begun() -> World:
    """A job whose preflight has passed, and whose learner and servers are starting."""
    world = World(job(status=copy.deepcopy(PASSED)))
    world.carry_out()
    world.ready("coordinator", "broker")
    world.starting("rollout")
    return world


def checked(**waits: Any) -> World:
    """A job whose preflight waits for something."""
    world = World(job())
    world.carry_out()
    world.ready("broker")
    world.starting("coordinator")
    check = {"passed": False, **waits}
    world.body["status"]["preflight"] = {"state": "Running", "checks": [], "waitsFor": check}
    world.carry_out()
    return world


def warned(world: World) -> list[tuple[str, str]]:
    """The warnings that a new operator would record, except for those of the spec."""
    facts = unrecorded(world.plan().status, set())  # type: ignore[arg-type]
    return [(fact.reason, fact.message) for fact in facts if fact.warning and fact.reason != "SpecUnwise"]


def test_a_learner_that_no_node_takes_is_one_event() -> None:
    world = begun()
    world.unschedulable("learner", NO_NODE)
    world.carry_out()
    [(reason, message)] = warned(world)
    assert reason == "Unschedulable"
    assert "spec.learner.resources: pod refunds-learner-0: Unschedulable: 0/3 nodes" in message
    assert "3 Insufficient memory. Add such a node, or request what a node has" in message


def test_there_is_one_event_whichever_pod_waits() -> None:
    world = begun()
    world.unschedulable("learner", NO_NODE)
    world.carry_out()
    first = {fact.key for fact in unrecorded(world.plan().status, set())}  # type: ignore[arg-type]
    world.unschedulable("learner", "0/4 nodes are available: 4 Insufficient memory.")
    world.later(60).carry_out()
    assert {fact.key for fact in unrecorded(world.plan().status, set())} == first  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "field", "reason"),
    [
        ("Agent", "spec.agent.http.service", "AgentUnreachable"),
        ("Environment", "spec.environment.sandbox.runtimeClassName", "CreateFailed"),
    ],
)
def test_a_preflights_wait_is_in_columns_and_event(name: str, field: str, reason: str) -> None:
    world = checked(name=name, field=field, message="it is not there; make it")
    assert (world.body["status"]["state"], world.body["status"]["reason"]) == ("Pending", reason)
    words = f"{field}: it is not there; make it"
    assert world.status_condition("Progressing")["message"].count(words) == 1
    [(found, message)] = warned(world)
    assert found == reason
    assert words in message


def test_a_preflight_that_waits_too_long_fails_with_its_words() -> None:
    world = checked(name="Agent", field="spec.agent.http.url", message="nobody answers; deploy it")
    world.later(3700).carry_out()
    failed = world.status_condition("Failed")
    assert failed["reason"] == "PendingDeadlineExceeded"
    assert "spec.agent.http.url: nobody answers; deploy it" in failed["message"]


def test_a_job_that_waits_for_another_one_says_so_once() -> None:
    raw = job()
    raw["spec"]["model"]["warmStart"] = {"job": "earlier"}
    world = World(raw)
    world.carry_out()
    [(reason, message)] = warned(world)
    assert reason == "WaitingForWeights"
    assert message.startswith(
        "spec.model.warmStart.job: there is no RLTrainingJob earlier in this namespace yet"
    )


@pytest.mark.parametrize(
    "message", ["not present with pull policy of Never", 'failed to pull "desk:1": no such host']
)
def test_an_image_that_is_not_there_is_named_once_with_the_fix(message: str) -> None:
    pod = (
        f"spec.environment.image: pod refunds-sandbox-1 has no image desk:1: ErrImagePull: {message}; push it"
    )
    known = [pod, f"spec.environment.image: {message}"]
    assert without_repeats(known) == [pod]
    assert without_repeats(known[::-1]) == [pod]


@pytest.mark.parametrize(
    "other", ["spec.output.uri: no such host", "spec.environment.image: denied", "no such host"]
)
def test_a_message_that_no_other_repeats_is_kept(other: str) -> None:
    known = [
        "spec.environment.image: pod refunds-sandbox-1 has no image desk:1: no such host; push it",
        other,
    ]
    assert without_repeats(known) == known
    assert without_repeats([other, other]) == [other]
