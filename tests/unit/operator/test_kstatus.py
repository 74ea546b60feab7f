"""A tool that waits for a job (Argo CD, Flux, helm --wait) continues at success and stops at failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import kstatus
import pytest
from job_stages import STAGES, ended_pause, paused, paused_and_suspended
from observed_cluster import World, chosen, eval_job, evaluating, job, running

from headway_api.exits import PERMANENT
from headway_api.status import State


def waiting() -> World:
    world = World(eval_job(candidates=[{"name": "tuned", "checkpoint": {"job": "tuned-run"}}]))
    world.carry_out()
    return world


def refused() -> World:
    world = World(eval_job(rollout={"replicas": 65}))
    world.carry_out()
    return world


def starting() -> World:
    world = evaluating().gone("rollout")
    world.carry_out()
    return world


def suspended(world: World) -> World:
    world.body["spec"]["suspend"] = True
    world.carry_out()
    world.gone("coordinator", "broker", "rollout", "learner").carry_out()
    return world


def complete(world: World) -> World:
    world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    world.carry_out()
    return world


def refused_by_the_gate() -> World:
    world = evaluating()
    world.gave_up("coordinator", "GateNotPassed", "tuned has 0.71, and 0.8 is asked for", "spec.gate")
    world.carry_out()
    return world


def timed_out() -> World:
    world = evaluating(activeDeadlineSeconds=60).later(61)
    world.carry_out()
    return world


def stalled() -> World:
    world = evaluating()
    world.body["status"]["progress"]["stalled"] = "no sandbox answers"
    world.carry_out()
    return world


@pytest.mark.parametrize(
    ("make", "state", "verdict"),
    [
        (waiting, "Pending", "InProgress"),
        (chosen, "Pending", "InProgress"),
        (starting, "Starting", "InProgress"),
        (evaluating, "Evaluating", "InProgress"),
        (lambda: suspended(evaluating()), "Suspended", "Failed"),
        (lambda: suspended(evaluating(readinessPolicy="Running")), "Suspended", "Current"),
        (lambda: suspended(running()), "Suspended", "Current"),
        (lambda: suspended(running(readinessPolicy="Accepted")), "Suspended", "Current"),
        (lambda: suspended(running(readinessPolicy="Succeeded")), "Suspended", "Failed"),
        (lambda: paused(running()), "Suspended", "Failed"),
        (lambda: paused(running(readinessPolicy="Accepted")), "Suspended", "Failed"),
        (lambda: paused_and_suspended(running()), "Suspended", "Current"),
        (lambda: ended_pause(running()), "Restarting", "InProgress"),
        (lambda: complete(evaluating()), "Complete", "Current"),
        (refused_by_the_gate, "Failed", "Failed"),
        (timed_out, "Failed", "Failed"),
        (refused, "Stalled", "Failed"),
        (stalled, "Stalled", "Failed"),
    ],
)
def test_a_tool_that_waits_for_a_job_goes_on_or_stops(
    make: Callable[[], World], state: str, verdict: str
) -> None:
    world = make()
    assert world.body["status"]["state"] == state
    assert kstatus.verdict(world.body) == verdict


EVERY = [(kind, stage) for kind, makes in STAGES.items() for stage in makes]
UNSEEN = ("new, no operator has seen it", "spec edited, not yet seen", "complete, then edited")
"""Stages that the operator has not seen yet."""


@pytest.mark.parametrize(("kind", "stage"), EVERY)
def test_a_stage_in_progress_can_still_end(kind: str, stage: str) -> None:
    """A wait continues only while the job is reconciling, and every such stage ends by itself."""
    world = STAGES[kind][stage]()
    verdict = kstatus.verdict(world.body)
    if verdict != "InProgress" or stage in UNSEEN:
        return
    assert world.is_true("Reconciling")
    assert not world.is_true("Stalled")
    held = world.body["status"]["state"] in ("Queued", "Training", "Evaluating", "Suspending")
    # The coordinator notices when these stages make no progress.
    held |= world.body["status"].get("preflight", {}).get("state") == "Sampling"
    waits = world.status_condition("Ready")["reason"] == "WaitingForWeights"
    world.carry_out()  # the new objects are observed
    assert held or waits or world.plan().requeue_after is not None, "no deadline ends it"


@pytest.mark.parametrize(("kind", "stage"), EVERY)
def test_a_current_job_fulfils_its_readiness_policy(kind: str, stage: str) -> None:
    world = STAGES[kind][stage]()
    if kstatus.verdict(world.body) != "Current":
        return
    suspended = world.is_true("Suspended") and world.body["spec"].get("suspend")
    policy = world.body["spec"].get("readinessPolicy", "Running" if kind == "RLTrainingJob" else "Succeeded")
    reached = {
        "Accepted": world.is_true("Accepted"),
        "Running": world.is_true("Complete") or world.body["status"]["state"] in ("Training", "Evaluating"),
        "Succeeded": world.is_true("Complete"),
    }[policy]
    assert reached or (suspended and policy != "Succeeded")


def test_every_state_of_a_job_has_a_stage() -> None:
    shown = {
        kind: {make().body["status"].get("state") for make in makes.values()} - {None}
        for kind, makes in STAGES.items()
    }
    never = {"RLTrainingJob": set[str](), "RLEvalJob": {"Training", "Restarting"}}
    for kind, states in shown.items():
        assert set(get_args(State)) - states == never[kind], kind


@pytest.mark.parametrize("kind", STAGES)
def test_a_preflight_that_runs_is_waited_for(kind: str) -> None:
    world = STAGES[kind]["accepted, the preflight is not over"]()
    world.body["status"]["preflight"] = {"state": "Running", "checks": []}
    world.carry_out()
    assert world.body["status"]["state"] == "Preflight"
    assert kstatus.verdict(world.body) == "InProgress"


def test_a_job_that_validates_is_still_current() -> None:
    world = running()
    world.body["status"]["progress"] = {"step": 4, "evaluating": 4}
    world.carry_out()
    assert world.body["status"]["state"] == "Evaluating"
    assert kstatus.verdict(world.body) == "Current"


def test_a_suspended_evaluation_says_what_would_make_it_succeed() -> None:
    world = suspended(evaluating())
    assert world.status_condition("Ready")["status"] == "False"
    assert (world.status_condition("Stalled")["status"], world.status_condition("Stalled")["reason"]) == (
        "True",
        "Suspended",
    )
    assert "spec.suspend is true" in world.status_condition("Stalled")["message"]
    world.body["spec"]["suspend"] = False
    world.carry_out()
    assert kstatus.verdict(world.body) == "InProgress"


def test_a_job_that_no_operator_has_seen_lets_nothing_through() -> None:
    """The API server fills in the CRD's defaults."""
    for body in (job(), eval_job()):
        body["status"] = {"observedGeneration": -1}
        assert kstatus.verdict(body) == "InProgress"
        world = World(body)
        world.carry_out()
        assert world.body["status"]["observedGeneration"] == 1


@pytest.mark.parametrize("make", [running, evaluating])
@pytest.mark.parametrize("how", ["Current", "Failed"])
def test_an_edit_after_the_end_changes_no_verdict(make: Callable[[], World], how: str) -> None:
    world = make()
    if how == "Current":
        complete(world)
    else:
        world.died("coordinator", PERMANENT)
        world.carry_out()
    assert kstatus.verdict(world.body) == how
    world.objects.clear()
    world.body["spec"]["ttlSecondsAfterFinished"] = 3600
    world.body["metadata"]["generation"] = 2
    assert kstatus.verdict(world.body) == "InProgress"
    world.carry_out()
    assert kstatus.verdict(world.body) == how
