"""A job that starts from another job's weights: which weights, when this is final, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from observed_cluster import START, UID, World, job, stamp

from headway_api.config import JobConfig
from headway_api.document import Json
from headway_operator.plan import warm_start
from headway_operator.plan.planner import LOOK_SECONDS

BASE = {"base": "hf://Qwen/Qwen3-8B"}
BEST = {"step": 20, "uri": "s3://b/runs/team/earlier/u/weights/000020"}
LAST = {"step": 30, "uri": "s3://b/runs/team/earlier/u/weights/000030"}
ENDED = [{"type": "Complete", "status": "True", "reason": "R", "lastTransitionTime": stamp(START)}]


def earlier(conditions: list[Json] | None = None, model: Json | None = None, **checkpoints: Json) -> Json:
    """The other job, which has ended unless `conditions` says otherwise."""
    status = {"conditions": ENDED if conditions is None else conditions, "checkpoints": checkpoints}
    return job("earlier", status=copy.deepcopy(status), model=model or BASE)


def later(source: Json | None, **model: Any) -> World:
    world = World(job(model=BASE | {"warmStart": {"job": "earlier"}} | model))
    world.others = [source] if source else []
    return world


def config_of(world: World) -> JobConfig:
    """The job configuration that its processes read."""
    body = world.objects["ConfigMap", "refunds-config"]
    return JobConfig.model_validate_json(body["data"]["job.json"])


def test_the_weights_that_validated_best_are_taken() -> None:
    world = later(earlier(best=BEST, adapter=LAST))
    world.carry_out()
    assert world.body["status"]["warmStart"] == {"job": "earlier"} | BEST
    start = config_of(world).spec.model.warm_start
    assert start is not None
    assert (start.job, start.uri) == (None, BEST["uri"])


def test_without_validation_the_last_weights_are_used() -> None:
    world = later(earlier(adapter=LAST))
    world.carry_out()
    assert world.body["status"]["warmStart"] == {"job": "earlier"} | LAST


@pytest.mark.parametrize("since", [None, earlier(best=LAST), earlier(conditions=[])])
def test_chosen_weights_do_not_change(since: Json | None) -> None:
    world = later(earlier(best=BEST))
    world.carry_out()
    before = json.dumps(config_of(world).model_dump(mode="json"))
    world.others = [since] if since else []
    made = world.later(60).carry_out()
    assert world.body["status"]["warmStart"] == {"job": "earlier"} | BEST
    assert world.is_true("Accepted")
    config = next(item.body for item in made.wanted if item.body["kind"] == "ConfigMap")
    stored = JobConfig.model_validate_json(config["data"]["job.json"])
    assert json.dumps(stored.model_dump(mode="json")) == before
    assert warm_start.source(world.body) is None, "nobody has to look for that job any more"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (earlier(), "earlier ended without weights"),
        (earlier(model={"base": "hf://Qwen/Qwen3-4B"}, best=BEST), "earlier trained hf://Qwen/Qwen3-4B, not"),
        (
            earlier(model=BASE | {"revision": "v1"}, best=BEST),
            "earlier trained hf://Qwen/Qwen3-8B at v1, not",
        ),
    ],
)
def test_an_unusable_warm_start_is_refused_before_objects_exist(source: Json, words: str) -> None:
    world = later(source)
    made = world.carry_out()
    assert made.wanted == ()
    refused = world.status_condition("Accepted")
    assert refused["status"] == "False"
    assert refused["message"].startswith("spec.model.warmStart.job: ")
    assert words in refused["message"]
    assert made.requeue_after == LOOK_SECONDS, "that job may be made again"
    world.others = [earlier(best=BEST)]
    world.later(30).carry_out()
    assert world.is_true("Accepted")
    assert world.body["status"]["warmStart"] == {"job": "earlier"} | BEST


def test_a_job_that_is_not_there_yet_is_waited_for() -> None:
    world = later(None)
    made = world.carry_out()
    assert (made.wanted, made.finalizer, made.requeue_after) == ((), False, LOOK_SECONDS)
    assert (world.body["status"]["state"], world.body["status"]["reason"]) == ("Pending", "WaitingForWeights")
    assert (
        "there is no RLTrainingJob earlier in this namespace yet"
        in world.status_condition("Reconciling")["message"]
    )
    assert [world.is_true(kind) for kind in ("Accepted", "Stalled")] == [True, False]
    world.others = [earlier(conditions=[])]
    world.later(30).carry_out()
    assert "starts when earlier has ended" in world.status_condition("Reconciling")["message"]
    world.others = [earlier(best=BEST)]
    world.later(30).carry_out()
    assert world.body["status"]["warmStart"] == {"job": "earlier"} | BEST


def test_the_wait_for_a_missing_job_ends_at_the_pending_deadline() -> None:
    world = later(None)
    world.body["spec"]["pendingDeadlineSeconds"] = 600
    world.later(600).carry_out()
    assert world.body["status"]["reason"] == "WaitingForWeights"
    made = world.later(1).carry_out()
    assert world.is_true("Stalled")
    refused = world.status_condition("Accepted")
    assert (refused["status"], refused["reason"]) == ("False", "InvalidSpec")
    assert refused["message"] == (
        "spec.model.warmStart.job: there is no RLTrainingJob earlier in this namespace, and this job has "
        "waited longer than spec.pendingDeadlineSeconds (600); create earlier, name another job, or give "
        "the uri of weights"
    )
    assert (made.wanted, made.requeue_after) == ((), LOOK_SECONDS)
    world.others = [earlier(conditions=[])]
    world.later(30).carry_out()
    assert world.body["status"]["reason"] == "WaitingForWeights"
    assert [world.is_true(kind) for kind in ("Accepted", "Stalled")] == [True, False]


def test_two_jobs_that_wait_for_one_another_are_refused() -> None:
    both = earlier(conditions=[], model=BASE | {"warmStart": {"job": "refunds"}})
    world = later(both)
    made = world.carry_out()
    assert made.wanted == ()
    refused = world.status_condition("Accepted")
    assert refused["status"] == "False"
    assert refused["message"].startswith("spec.model.warmStart.job: earlier waits for refunds")
    assert made.requeue_after == LOOK_SECONDS
    # It may name an earlier job of the same name as this one. Then it waits for nothing.
    both["status"]["warmStart"] = {"job": "refunds"} | LAST
    world.later(30).carry_out()
    assert world.is_true("Accepted")
    assert world.body["status"]["reason"] == "WaitingForWeights"


def test_a_job_waits_for_the_other_to_end_and_then_starts() -> None:
    world = later(earlier(conditions=[], best=BEST))
    made = world.carry_out()
    assert (made.wanted, made.finalizer, made.requeue_after) == ((), False, LOOK_SECONDS)
    assert "warmStart" not in world.body["status"]
    assert (world.body["status"]["state"], world.body["status"]["reason"]) == ("Pending", "WaitingForWeights")
    assert "this job starts when earlier has ended" in world.status_condition("Reconciling")["message"]
    assert [world.is_true(kind) for kind in ("Accepted", "Reconciling", "Ready", "Stalled")] == [
        True,
        True,
        False,
        False,
    ]
    world.others = [earlier(best=BEST)]
    world.later(30).carry_out()
    assert world.is_true("Accepted")
    assert config_of(world).uid == UID
    assert not world.is_true("Ready")
    assert world.body["status"]["reason"] != "WaitingForWeights"


def test_objects_are_kept_although_the_choice_was_lost() -> None:
    world = later(earlier(best=BEST))
    world.carry_out()
    del world.body["status"]["warmStart"]
    world.others = []
    made = world.carry_out()
    assert (world.has_finalizer, made.to_delete) == (True, ())


def test_a_job_cannot_start_from_itself() -> None:
    world = later(None)
    world.body["spec"]["model"]["warmStart"] = {"job": "refunds"}
    world.others = [world.body]
    world.carry_out()
    assert "a job cannot start from itself" in world.status_condition("Accepted")["message"]


def test_a_uri_is_passed_on_unchanged() -> None:
    world = World(job(model=BASE | {"warmStart": {"uri": "s3://b/adapter"}}))
    assert warm_start.source(world.body) is None
    world.carry_out()
    start = config_of(world).spec.model.warm_start
    assert start is not None
    assert start.uri == "s3://b/adapter"
    assert "warmStart" not in world.body["status"]
