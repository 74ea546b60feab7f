"""How an evaluation's candidates are resolved to models and weights, and when this is final."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from observed_cluster import START, World, chosen, eval_job, job, stamp

from headway_api.config import EvalConfig
from headway_api.document import Json
from headway_operator.plan import candidates
from headway_operator.plan.planner import LOOK_SECONDS, sources

ROOT = "s3://b/runs/team/tuned-run/u"
BASE = "hf://Qwen/Qwen3-8B"
BEST = {"step": 20, "uri": f"{ROOT}/weights/000020"}
LAST = {"step": 30, "uri": f"{ROOT}/weights/000030"}
ENDED = [{"type": "Complete", "status": "True", "reason": "R", "lastTransitionTime": stamp(START)}]
TUNED = {"name": "tuned", "checkpoint": {"job": "tuned-run"}}
PLAIN = {"name": "plain", "model": {"base": BASE}}
ELSEWHERE = {"name": "frontier", "endpoint": {"url": "https://models.test/v1", "model": "big"}}
STORED = {"name": "again", "rescore": {"uri": f"{ROOT}-other", "candidate": "base"}}


def trained(
    name: str = "tuned-run", *, ended: bool = False, model: Json | None = None, **checkpoints: Json
) -> Json:
    """A training job whose status has these checkpoints."""
    status = {"checkpoints": checkpoints, "conditions": ENDED if ended else [], "artifacts": {"uri": ROOT}}
    return job(name, status=copy.deepcopy(status), model=model or {"base": BASE})


def unvalidated(**arguments: Any) -> Json:
    """A training job that never validates."""
    body = trained(**arguments)
    del body["spec"]["data"]["validation"]
    return body | {"spec": body["spec"] | {"evaluation": {"everySteps": 0, "atStart": False}}}


def checkpoint(**wanted: Any) -> Json:
    return {"name": "tuned", "checkpoint": {"job": "tuned-run"} | wanted}


def world_of(*candidates: Json, others: tuple[Json, ...] = (), **spec: Any) -> World:
    world = World(eval_job(candidates=[*candidates], **spec))
    world.others = [*others]
    return world


def config_of(world: World) -> EvalConfig:
    """The job configuration that its processes read."""
    body = world.objects["ConfigMap", "refunds-eval-config"]
    return EvalConfig.model_validate_json(body["data"]["job.json"])


def status_of(world: World) -> list[Json]:
    found: list[Json] = world.body["status"]["candidates"]
    return found


@pytest.mark.parametrize(
    ("wanted", "checkpoints", "weights"),
    [
        ({}, {"best": BEST, "adapter": LAST}, BEST),
        ({"which": "best"}, {"best": BEST, "adapter": LAST}, BEST),
        ({"which": "latest"}, {"adapter": LAST}, LAST),
        ({"step": 10}, {"adapter": LAST}, {"step": 10, "uri": f"{ROOT}/weights/000010"}),
        ({"step": 30}, {"adapter": LAST}, LAST),
        ({"step": 0}, {"adapter": LAST}, {"step": 0, "uri": f"{ROOT}/weights/000000"}),
        ({"step": 20, "uri": BEST["uri"]}, {"adapter": LAST}, BEST),
        ({"step": 20, "uri": f"{BEST['uri']}/"}, {"adapter": LAST}, BEST),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_checkpoint_is_the_weights_that_it_names(
    wanted: Json, checkpoints: Json, weights: Json, ended: bool
) -> None:
    source = trained(ended=ended, model={"base": BASE, "revision": "v1", "lora": {"rank": 16}}, **checkpoints)
    world = chosen(source, candidates=[checkpoint(**wanted)])
    adapter = {"name": "tuned", "kind": "Adapter", "base": BASE, "revision": "v1", "dtype": "bfloat16"}
    assert status_of(world) == [adapter | {"loraRank": 16, "job": "tuned-run", "serverSet": 0} | weights]
    assert world.is_true("CandidatesResolved")


def test_a_job_that_names_no_rank_has_the_default_one() -> None:
    (found,) = status_of(chosen(trained(best=BEST), candidates=[TUNED]))
    assert found["loraRank"] == 32


def test_server_lora_rank_covers_adapters_widened_by_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "largest_rank", lambda model, collapse: 64)
    world = chosen(trained(best=BEST), candidates=[TUNED])
    assert [found["loraRank"] for found in status_of(world)] == [64]
    assert config_of(world).served(0).lora_rank == 64


def test_a_job_whose_remedies_cannot_be_read_has_no_candidate() -> None:
    source = trained(best=BEST)
    source["spec"]["collapse"] = {"policy": "Pray"}
    world = chosen(source, candidates=[TUNED])
    message = world.status_condition("CandidatesResolved")["message"]
    assert "spec.collapse of RLTrainingJob tuned-run cannot be read" in message


def test_full_weights_are_a_model_of_their_own() -> None:
    source = trained(model={"base": BASE, "revision": "v1", "full": {}, "contextLength": 4096}, best=BEST)
    world = chosen(source, candidates=[checkpoint(withBase=True)])
    tuned, base = status_of(world)
    assert (tuned["kind"], tuned["base"], tuned["serverSet"]) == ("Weights", BEST["uri"], 0)
    assert "revision" not in tuned
    assert "loraRank" not in tuned
    assert (tuned["trainedFrom"], "trainedFrom" in base) == (BASE, False)
    assert (base["name"], base["kind"], base["base"], base["revision"]) == ("tuned-base", "Model", BASE, "v1")
    assert (base["serverSet"], base["contextLength"]) == (1, 4096)


def test_full_weights_have_the_prices_of_their_base() -> None:
    source = trained(model={"base": BASE, "full": {}}, best=BEST)
    alone = config_of(chosen(source, candidates=[checkpoint(withBase=True)]))
    assert alone.model == BASE
    assert [alone.priced_as(each) for each in alone.candidates] == [None, None]
    other = {"name": "other", "model": {"base": "hf://org/other"}}
    several = config_of(chosen(source, candidates=[checkpoint(withBase=True), other]))
    assert several.model == ""
    assert [several.priced_as(each) for each in several.candidates] == [BASE, BASE, "hf://org/other"]


def test_candidates_with_different_prices_share_no_servers() -> None:
    """The same folder as a plain model is a base model of its own."""
    source = trained(model={"base": BASE, "full": {}}, best=BEST)
    plain = {"name": "plain", "model": {"base": BEST["uri"]}}
    found = status_of(chosen(source, candidates=[TUNED, plain]))
    assert [(each["base"], each["serverSet"]) for each in found] == [(BEST["uri"], 0), (BEST["uri"], 1)]


def test_candidates_of_one_base_share_a_set_of_servers() -> None:
    world = chosen(
        trained(best=BEST, adapter=LAST),
        trained("other-run", best=LAST, model={"base": BASE, "dtype": "float32"}),
        candidates=[
            ELSEWHERE,
            checkpoint(withBase=True),
            {"name": "second", "checkpoint": {"job": "tuned-run", "step": 0}},
            {"name": "exact", "checkpoint": {"job": "other-run"}},
            {"name": "larger", "model": {"base": "hf://Qwen/Qwen3-14B"}},
            PLAIN,
            {"name": "pinned", "model": {"base": BASE, "revision": "v2"}},
            STORED,
        ],
    )
    sets = {item["name"]: item.get("serverSet") for item in status_of(world)}
    assert sets == {
        "frontier": None, "tuned": 0, "tuned-base": 0, "second": 0, "exact": 1, "larger": 2, "plain": 0,
        "pinned": 3, "again": None,
    }  # fmt: skip
    config = config_of(world)
    assert [candidate.name for candidate in config.candidates] == list(sets)
    assert (config.served(0).lora_rank, config.served(0).adapters) == (32, 2)
    assert config.unresolved == {}


def test_a_candidate_that_needs_no_job_is_resolved_at_once() -> None:
    world = chosen(candidates=[PLAIN, ELSEWHERE, STORED])
    assert [item["kind"] for item in status_of(world)] == ["Model", "Endpoint", "Rescore"]
    assert status_of(world)[2]["uri"] == f"{ROOT}-other"
    assert sources(eval_job(candidates=[PLAIN, ELSEWHERE, STORED])) == ()


def test_the_choice_is_kept_before_anything_is_made() -> None:
    world = world_of(TUNED, others=(trained(best=BEST),))
    made = world.carry_out()
    assert (made.wanted, made.requeue_after) == ((), 0)
    assert status_of(world)[0]["step"] == 20
    assert world.carry_out().wanted


def test_a_chosen_checkpoint_stays_chosen() -> None:
    world = chosen(trained(best=BEST), candidates=[TUNED])
    before = config_of(world)
    for since in ([], [trained(best=LAST)], [unvalidated()]):
        world.others = since
        world.later(60).carry_out()
        assert status_of(world)[0]["step"] == 20
        assert world.is_true("CandidatesResolved")
        assert config_of(world) == before
    assert sources(world.body) == (), "nobody has to look for that job any more"


NO_JOB = (
    "spec.candidates[tuned].checkpoint.job: there is no RLTrainingJob tuned-run in this namespace; create it"
)


@pytest.mark.parametrize(
    ("status", "step"),
    [
        ({"checkpoints": {"best": BEST, "adapter": LAST}}, 20),
        ({"checkpoints": {"best": BEST, "adapter": LAST}, "validation": {"step": 25}}, 25),
        ({"checkpoints": {"adapter": LAST, "latest": {"step": 28, "uri": f"{ROOT}/c"}}}, 28),
        (
            {
                "checkpoints": {"adapter": LAST, "latest": {"step": 28, "uri": f"{ROOT}/c"}},
                "validation": {"step": 0},
            },
            28,
        ),
    ],
    ids=["best", "validated later", "never validated", "validated before training alone"],
)
def test_latest_of_a_running_job_is_the_newest_weights_it_keeps(status: Json, step: int) -> None:
    """The newest weights of all are deleted a few steps later.

    Only weights of validated steps are kept, and those of a checkpoint for a while.
    """
    running = trained()
    running["status"] |= status
    world = world_of(checkpoint(which="latest"), others=(running,))
    world.carry_out()
    [found] = status_of(world)
    assert (found["step"], found["uri"]) == (step, f"{ROOT}/weights/{step:06d}")
    running["status"]["conditions"] = ENDED
    world = world_of(checkpoint(which="latest"), others=(running,))
    world.carry_out()
    assert status_of(world)[0]["step"] == LAST["step"]


def test_a_checkpoint_of_full_weights_is_not_taken_for_a_model() -> None:
    """The folder may contain only the changes since the step before."""
    running = trained(model={"base": BASE, "full": {}}, adapter=LAST, latest={"step": 28, "uri": f"{ROOT}/c"})
    world = world_of(checkpoint(which="latest"), others=(running,))
    world.carry_out()
    assert status_of(world)[0]["step"] == LAST["step"]


@pytest.mark.parametrize(
    ("others", "wanted", "reason", "words"),
    [
        ((), {}, "CandidateMissing", NO_JOB),
        (
            (trained(),),
            {"which": "latest"},
            "CheckpointMissing",
            "RLTrainingJob tuned-run has published",
        ),
        (
            (trained(adapter=LAST),),
            {},
            "CheckpointMissing",
            "has not validated yet; wait for it, or write which:",
        ),
        (
            (trained(adapter=LAST),),
            {"step": 40},
            "CheckpointMissing",
            "weights up to step 30 so far; wait for",
        ),
        ((trained(),), {"step": 40}, "CheckpointMissing", "has published no weights yet; wait for its first"),
    ],
)
def test_missing_weights_that_may_still_come_are_waited_for(
    others: tuple[Json, ...], wanted: Json, reason: str, words: str
) -> None:
    world = world_of(PLAIN, checkpoint(**wanted), others=others, pendingDeadlineSeconds=600)
    made = world.carry_out()
    assert (made.wanted, made.finalizer, made.requeue_after) == ((), False, LOOK_SECONDS)
    assert "candidates" not in world.body["status"]
    lacking = world.status_condition("CandidatesResolved")
    assert (lacking["status"], lacking["reason"]) == ("False", reason)
    assert words in lacking["message"]
    assert (world.body["status"]["state"], world.body["status"]["reason"]) == ("Pending", reason)
    assert [world.is_true(kind) for kind in ("Accepted", "Reconciling", "Ready", "Stalled")] == [
        True, True, False, False,
    ]  # fmt: skip
    world.others = [trained(best=BEST, adapter={"step": 50, "uri": f"{ROOT}/weights/000050"})]
    world.later(30).carry_out()
    assert world.is_true("CandidatesResolved")
    assert len(status_of(world)) == 2


def test_after_the_deadline_the_job_goes_on_with_the_others() -> None:
    world = world_of(PLAIN, checkpoint(withBase=True), pendingDeadlineSeconds=600)
    assert world.later(590).carry_out().requeue_after == pytest.approx(10.5)
    assert world.status_condition("CandidatesResolved")["message"].startswith(NO_JOB)
    world.later(11).carry_out()
    world.carry_out()
    assert [item["name"] for item in status_of(world)] == ["plain"]
    lacking = world.status_condition("CandidatesResolved")
    assert (lacking["status"], lacking["reason"]) == ("False", "CandidateMissing")
    assert lacking["message"].startswith(NO_JOB)
    assert set(config_of(world).unresolved) == {"tuned", "tuned-base"}
    assert (
        "spec.candidates[tuned].checkpoint: RLTrainingJob tuned-run had no such weights"
        in (config_of(world).unresolved["tuned"])
    )
    before = copy.deepcopy(world.body["status"])
    world.others = [trained(best=BEST)]
    assert world.later(60).carry_out().to_delete == ()
    assert world.body["status"] == before, "the choice is made once"


def test_the_base_is_measured_although_the_weights_never_came() -> None:
    world = world_of(checkpoint(withBase=True), others=(trained(),), pendingDeadlineSeconds=600)
    world.later(601).carry_out()
    world.carry_out()
    assert [item["name"] for item in status_of(world)] == ["tuned-base"]
    assert set(config_of(world).unresolved) == {"tuned"}


def test_suspended_time_does_not_count_as_waiting() -> None:
    world = world_of(TUNED, pendingDeadlineSeconds=600, suspend=True)
    world.carry_out()
    assert world.body["status"]["state"] == "Suspended"
    world.later(5000).carry_out()
    world.body["spec"]["suspend"] = False
    world.carry_out()
    assert world.body["status"]["suspendedSeconds"] == 5000
    assert (world.body["status"]["state"], world.status_condition("Suspended")["reason"]) == (
        "Pending",
        "Resumed",
    )
    world.later(599).carry_out()
    assert not world.is_true("Failed")
    world.later(2).carry_out()
    assert world.is_true("Failed")


def test_a_job_without_any_candidate_left_fails_with_the_reason() -> None:
    world = world_of(TUNED, pendingDeadlineSeconds=600)
    made = world.later(601).carry_out()
    assert (made.wanted, made.ending) == ((), True)
    failed = world.status_condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "CandidateMissing")
    assert failed["message"].startswith(NO_JOB)
    assert world.status_condition("CandidatesResolved")["status"] == "False"
    assert (world.body["status"]["state"], world.is_true("Stalled")) == ("Failed", True)
    assert world.plan().wanted == ()


@pytest.mark.parametrize(
    ("source", "wanted", "words"),
    [
        (
            unvalidated(adapter=LAST),
            {},
            "checkpoint.which: RLTrainingJob tuned-run runs no validations, so it has",
        ),
        (trained(ended=True, adapter=LAST), {}, "ended before it had validated"),
        (
            trained(ended=True),
            {"which": "latest"},
            "checkpoint.job: RLTrainingJob tuned-run ended without weights",
        ),
        (trained(ended=True, adapter=LAST), {"step": 31}, "weights up to step 30; write a step up to that"),
    ],
)
def test_weights_that_will_never_come_are_not_waited_for(source: Json, wanted: Json, words: str) -> None:
    world = world_of(checkpoint(**wanted), others=(source,))
    world.carry_out()
    assert world.status_condition("Failed")["reason"] == "CheckpointMissing"
    assert words in world.status_condition("Failed")["message"]
    world = world_of(PLAIN, checkpoint(**wanted), others=(source,))
    world.carry_out()
    world.carry_out()
    assert [item["name"] for item in status_of(world)] == ["plain"]
    assert words in world.status_condition("CandidatesResolved")["message"]


@pytest.mark.parametrize(
    "source", [trained(adapter=LAST), trained(ended=True, best=BEST, adapter=LAST), trained()]
)
@pytest.mark.parametrize("step", [10, 40])
def test_weights_of_another_run_never_replace_the_requested_ones(source: Json, step: int) -> None:
    """The training job was deleted and made again, so its later weights are not the requested ones."""
    meant, found = f"s3://b/runs/team/tuned-run/first/weights/{step:06d}", f"{ROOT}/weights/{step:06d}"
    world = world_of(PLAIN, checkpoint(step=step, uri=meant), others=(source,))
    world.carry_out()
    world.carry_out()
    assert [item["name"] for item in status_of(world)] == ["plain"]
    condition = world.status_condition("CandidatesResolved")
    assert (condition["status"], condition["reason"]) == ("False", "CheckpointMissing")
    start = f"spec.candidates[tuned].checkpoint.uri: step {step} of RLTrainingJob tuned-run is at {found}, "
    assert condition["message"].startswith(f"{start}but {meant} belongs to another run")
    assert f"write {found} to measure it" in condition["message"]


def test_a_job_without_weights_is_awaited_despite_a_named_uri() -> None:
    source = trained()
    del source["status"]["artifacts"]
    world = world_of(PLAIN, checkpoint(step=20, uri=BEST["uri"]), others=(source,))
    world.carry_out()
    assert "has published no weights yet" in world.status_condition("CandidatesResolved")["message"]
    world.others = [trained(adapter=LAST)]
    world.later(30).carry_out()
    assert status_of(world)[1]["uri"] == BEST["uri"]


SHORT = {"base": BASE, "contextLength": 4096}


@pytest.mark.parametrize(
    ("candidates", "others", "words"),
    [
        (
            [PLAIN, TUNED],
            [trained(best=BEST, model=SHORT)],
            "spec.candidates[plain].model.contextLength: plain has the model's own context length, but "
            "tuned, on the same servers, has a context length of 4096; write 4096",
        ),
        (
            [TUNED, {"name": "plain", "model": SHORT}],
            [trained(best=BEST)],
            "spec.candidates[plain].model.contextLength: plain has a context length of 4096, but tuned, "
            "on the same servers, has the model's own context length; leave it out",
        ),
        (
            [TUNED, {"name": "other", "checkpoint": {"job": "other-run", "withBase": True}}],
            [trained(best=BEST), trained("other-run", best=BEST, model=SHORT)],
            "spec.candidates[other].checkpoint.job: other has a context length of 4096, but tuned, on the "
            "same servers, has the model's own context length; measure them in RLEvalJobs of their own",
        ),
    ],
)
def test_shared_servers_have_one_context_length(
    candidates: list[Json], others: list[Json], words: str
) -> None:
    world = world_of(*candidates, others=tuple(others))
    made = world.carry_out()
    assert made.wanted == ()
    assert words in world.status_condition("Accepted")["message"]
    assert world.status_condition("Accepted")["status"] == "False"
    assert world.is_true("Stalled")
    assert made.requeue_after == LOOK_SECONDS
