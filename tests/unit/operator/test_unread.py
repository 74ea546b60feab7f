"""A job with an unreadable part: it is refused by field, its pods go on, and no other job is harmed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from observed_cluster import PLATFORM, eval_job, job, running, stamp

from headway_api import names
from headway_api.document import Json
from headway_operator.plan import planner
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.observed import Observed
from headway_operator.plan.reading import parse_status
from headway_operator.wire import UNREAD

WHY = "spec.environment.config: nested more than 32 levels deep; write it smaller and flatter"


def unread(body: Json, *blocks: str) -> Json:
    """The job as it is read without these blocks of its spec."""
    spec = {key: value for key, value in body["spec"].items() if key not in blocks}
    return copy.deepcopy(body | {"spec": spec, UNREAD: WHY})


@pytest.mark.parametrize("make", [job, eval_job])
def test_an_unreadable_job_is_refused_with_field_and_fix(make: Any) -> None:
    world = running()
    made = planner.make(unread(make(), "environment"), PLATFORM, Observed(world.now))
    assert made.wanted == ()
    assert made.status is not None
    (accepted,) = [known for known in made.status.conditions if known.type == "Accepted"]
    assert (accepted.status, accepted.reason, accepted.message) == ("False", "InvalidSpec", WHY)
    assert made.status.state == "Stalled"


def test_pods_of_an_unreadable_job_go_on() -> None:
    world = running()
    world.body = unread(world.body, "environment")
    made = world.carry_out()
    assert (made.to_delete, made.wanted) == ((), ())
    assert world.status_condition("Accepted")["message"] == WHY
    assert not made.ending


def test_an_unreadable_job_can_be_suspended_and_deleted() -> None:
    world = running()
    world.body = unread(world.body, "environment")
    world.body["spec"]["suspend"] = True
    assert world.carry_out().to_delete
    world.deleted()
    world.gone(*names.ROLES)
    assert world.carry_out().to_delete
    world.carry_out()
    assert not world.has_finalizer


def test_a_job_of_another_manager_is_left_alone() -> None:
    body = unread(job(managedBy="acme.dev/other"), "environment")
    assert planner.make(body, PLATFORM, Observed(running().now)) == planner.Plan()


def test_a_job_that_waits_for_its_weights_says_so() -> None:
    """An unreadable source is the fault of another job, and makes no reconcile fail."""
    world = running()
    source = unread(job("refunds-0"), "model")
    source["metadata"]["uid"] = "other"
    source["status"] = {"conditions": [world.condition("Complete", True) | {"reason": "X"}]}
    source["status"]["checkpoints"] = {"best": {"step": 3, "uri": "s3://b/3"}}
    waits = eval_job(candidates=[{"name": "tuned", "checkpoint": {"job": "refunds-0"}}])
    warm = job("warm", model={"base": "hf://Qwen/Qwen3-8B", "warmStart": {"job": "refunds-0"}})
    for body in (waits, warm):
        made = planner.make(body, PLATFORM, Observed(world.now, sources={"refunds-0": source}))
        assert made.status is not None
        text = " ".join(known.message for known in made.status.conditions)
        assert "refunds-0" in text
        assert "cannot be read" in text


def test_a_status_that_cannot_be_read_is_read_in_part() -> None:
    world = running()
    world.body["status"] |= {"progress": {"step": "many"}, "preflight": [1]}
    status = parse_status(job_kind_of(world.body).model, world.body)
    assert status.conditions
    assert status.progress is None
    world.carry_out()
    assert world.is_true("Accepted")


@pytest.mark.parametrize("spec", [{}, {"candidates": [7]}, {"candidates": 7}, {"model": []}, {"model": None}])
def test_a_spec_of_another_shape_waits_for_no_job(spec: Json) -> None:
    for make in (job, eval_job):
        assert planner.sources(make() | {"spec": spec}) == ()


def test_a_deleted_job_is_released_despite_unreadable_labels() -> None:
    body = unread(job(), "environment")
    body["metadata"]["labels"] = {names.LABEL_JOB_NAME: 7}
    body["metadata"]["deletionTimestamp"] = stamp(running().now)
    assert planner.make(body, PLATFORM, Observed(running().now)).finalizer is False
