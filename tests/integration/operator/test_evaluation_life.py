"""An evaluation's life on a real API server, with the real operator under the rights of its chart."""

from __future__ import annotations

import json

import kstatus
import pytest
from operator_rig import PASSED, Rig, wait

from headway_api import exits, names

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(300)]

ROOT = "s3://b/runs/team/tuned-run/u"
BEST = {"step": 20, "uri": f"{ROOT}/weights/000020"}
TUNED = {"name": "tuned", "checkpoint": {"job": "tuned-run", "withBase": True}}
OTHER = {"name": "other", "model": {"base": "hf://Qwen/Qwen3-14B"}}


def servers(evals: Rig, name: str) -> set[str]:
    """Sets of servers that have pods which are not terminating."""
    return {pod["metadata"]["labels"][names.LABEL_SERVER_SET] for pod in evals.pods(name, names.ROLLOUT)}


def passed(evals: Rig, name: str, *sets: int) -> None:
    """Have the coordinator report that the job passed its check, and that these sets are needed."""
    evals.tell(name, preflight=PASSED, progress={"groups": 0, "serverSets": [*sets]})


def test_candidates_come_from_a_training_job_that_still_runs(rig: Rig) -> None:
    rig.start()
    evals = rig.evaluations
    evals.apply("compare", candidates=[TUNED, OTHER])
    missing = wait(
        "the job to say what it waits for",
        lambda: (c := evals.condition("compare", "CandidatesResolved")).get("status") == "False" and c,
        explain=rig.log,
    )
    assert (missing["reason"], evals.state("compare")) == ("CandidateMissing", "Pending")
    assert "spec.candidates[tuned].checkpoint.job" in missing["message"]
    assert not evals.children("compare")
    assert kstatus.verdict(evals.get("compare")) == "InProgress"

    rig.apply("tuned-run")
    wait(
        "the job to miss the checkpoint",
        lambda: evals.condition("compare", "CandidatesResolved")["reason"] == "CheckpointMissing",
        explain=rig.log,
    )
    rig.first_pods("tuned-run")
    rig.tell("tuned-run", checkpoints={"best": BEST, "adapter": BEST}, artifacts={"uri": ROOT})
    evals.first_pods("compare")
    chosen = {item["name"]: item for item in evals.get("compare")["status"]["candidates"]}
    assert {name: item["serverSet"] for name, item in chosen.items()} == {
        "tuned": 0,
        "tuned-base": 0,
        "other": 1,
    }
    assert (chosen["tuned"]["kind"], chosen["tuned"]["uri"]) == ("Adapter", BEST["uri"])
    config = json.loads(evals.children("compare")["ConfigMap/compare-eval-config"]["data"]["job.json"])
    assert [item["name"] for item in config["candidates"]] == ["tuned", "tuned-base", "other"]


def test_server_sets_come_and_go_as_the_coordinator_needs_them(rig: Rig) -> None:
    rig.start()
    evals = rig.evaluations
    base = {"name": "base", "model": {"base": "hf://Qwen/Qwen3-8B"}}
    evals.apply("sets", candidates=[base, OTHER])
    evals.first_pods("sets")
    assert not servers(evals, "sets"), "no accelerator before the preflight"
    passed(evals, "sets", 0)
    wait("the first set", lambda: servers(evals, "sets") == {"0"}, explain=rig.log)
    wait("work", lambda: evals.state("sets") == "Evaluating", explain=lambda: evals.story("sets"))
    assert evals.condition("sets", "Ready")["status"] == "False", "what waits on it goes on waiting"
    rig.cluster.kubectl("scale", "rlevaljob", "sets", "-n", rig.namespace, "--replicas=2")
    wait("two servers", lambda: evals.get("sets")["status"].get("rolloutReplicas") == 2, explain=rig.log)
    passed(evals, "sets", 1)
    wait("the second set in its place", lambda: servers(evals, "sets") == {"1"}, explain=rig.log)
    assert "Service/sets-eval-rollout-0" not in evals.children("sets")
    passed(evals, "sets")
    wait("no servers", lambda: not servers(evals, "sets"), explain=rig.log)
    assert evals.pods("sets", names.COORDINATOR), "the coordinator goes on"


def test_a_gate_not_passed_fails_the_job_in_coordinators_words(rig: Rig) -> None:
    words = exits.Termination(reason="GateNotPassed", field="spec.gate", message="tuned has 0.71 of 0.8")
    script = f"echo '{words.model_dump_json()}' > /dev/termination-log; exit {exits.PERMANENT}"
    rig.scripts = {"coordinator": script}
    rig.start()
    evals = rig.evaluations
    evals.apply("gate")
    failed = evals.wait_true("gate", "Failed")
    assert (failed["reason"], failed["message"]) == ("GateNotPassed", "spec.gate: tuned has 0.71 of 0.8")
    assert kstatus.verdict(evals.get("gate")) == "Failed"
    wait("nothing left", lambda: not evals.children("gate"), explain=rig.log)
    evals.patch("gate", {"ttlSecondsAfterFinished": 3600})
    wait(
        "the same verdict after the edit",
        lambda: kstatus.verdict(evals.get("gate")) == "Failed",
        explain=rig.log,
    )


def test_an_evaluation_that_succeeds_is_ready(rig: Rig) -> None:
    rig.scripts = {"coordinator": "exit 0"}
    rig.start()
    evals = rig.evaluations
    evals.apply("done")
    assert evals.wait_true("done", "Complete")["reason"] == "Evaluated"
    assert kstatus.verdict(evals.get("done")) == "Current"
    wait("nothing left", lambda: not evals.children("done"), explain=rig.log)


def test_two_jobs_of_one_name_but_different_kinds_coexist(rig: Rig) -> None:
    rig.start()
    evals = rig.evaluations
    rig.run("twin")
    evals.apply("twin")
    evals.first_pods("twin")
    passed(evals, "twin", 0)
    wait("both at work", lambda: evals.state("twin") == "Evaluating", explain=lambda: evals.story("twin"))
    assert rig.state("twin") == "Training"
    assert not set(rig.children("twin")) & set(evals.children("twin"))
    status = {"group": names.GROUP, "subresource": "status", "name": "twin"}
    assert rig.can("twin-eval-coordinator", "patch", resource="rlevaljobs", **status)
    assert not rig.can("twin-eval-coordinator", "patch", resource="rltrainingjobs", **status)
    theirs = {key for key in rig.children("twin") if not key.startswith("Pod/")}
    evals.delete("twin")
    assert not evals.children("twin")
    assert {key for key in rig.children("twin") if not key.startswith("Pod/")} == theirs
    assert rig.state("twin") == "Training"


def test_suspend_stops_every_pod_and_resume_brings_them_back(rig: Rig) -> None:
    rig.start()
    evals = rig.evaluations
    evals.apply("paused")
    evals.first_pods("paused")
    passed(evals, "paused", 0)
    wait("work", lambda: evals.state("paused") == "Evaluating", explain=lambda: evals.story("paused"))
    evals.patch("paused", {"suspend": True})
    evals.wait_true("paused", "Suspended")
    assert not [key for key in evals.children("paused") if key.startswith(("Pod", "Job", "Deployment"))]
    evals.patch("paused", {"suspend": False})
    wait("work again", lambda: evals.state("paused") == "Evaluating", explain=lambda: evals.story("paused"))


def test_an_endpoint_without_its_secret_keeps_no_pod_waiting(rig: Rig) -> None:
    """The coordinator measures the other candidates, and reports what this candidate lacks."""
    rig.start()
    evals = rig.evaluations
    endpoint = {"url": "https://models.test/v1", "model": "big", "secretRef": {"name": "no-such-keys"}}
    evals.apply("outside", candidates=[{"name": "frontier", "endpoint": endpoint}])

    def running() -> bool:
        pods = evals.pods("outside", names.COORDINATOR)
        return any(pod["status"]["phase"] == "Running" for pod in pods)

    wait("a coordinator that runs", running, explain=lambda: evals.story("outside"))
