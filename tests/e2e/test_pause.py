"""A job that finds nothing to train pauses itself, keeps its state, and resumes when a person says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_job import pods

from headway_demo.settings import NAMESPACE
from headway_demo.watch import condition, why

NAME, STEPS = "halted", 10
NO_ROOM = 2
"""Maximum tokens of a turn: too few for any answer, so that every episode has the same reward."""

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def halted(bench: Any) -> Iterator[dict[str, Any]]:
    """The job, once it has paused itself and its pods are gone."""
    changes = {
        "collapse": {"policy": "Pause", "signals": ["NothingToTrain"]},
        "rollout": {"sampling": {"maxTokens": NO_ROOM}},
        "schedule": {"maxSteps": STEPS},
    }
    bench.kube.apply(bench.job(NAME, changes))
    bench.wait_condition(NAME, "Suspended", deadline_s=400)
    yield bench.get(NAME)
    bench.delete(NAME)


def test_a_paused_job_says_why_and_how_to_resume_it(bench: Any, halted: dict[str, Any]) -> None:
    pause, state = halted["status"]["pause"], halted["status"]["state"]
    assert (pause["signal"], pause["signals"]) == ("NothingToTrain", ["NothingToTrain"])
    assert 3 <= pause["step"] < STEPS
    assert (state, halted["status"]["reason"]) == ("Suspended", "Paused")
    for kind in ("Suspended", "Stalled"):
        found = condition(halted, kind)
        assert found is not None
        assert (found["status"], found["reason"]) == ("True", "Paused"), why(halted)
        assert pause["resume"] in found["message"]
    assert halted["spec"]["suspend"] is False
    bench.kube.wait("no pods", lambda: not bench.pods(NAME), deadline_s=90)


def test_a_paused_job_has_a_checkpoint_of_its_last_step(
    bench: Any, halted: dict[str, Any], tmp_path: Path
) -> None:
    status = halted["status"]
    step = status["progress"]["step"]
    assert step == status["pause"]["step"], "nothing was trained while the operator reacted"
    with bench.platform.bucket() as bucket:
        found = bucket.download(f"{status['artifacts']['uri']}/checkpoints", tmp_path)
    whole = {path.parts[len(tmp_path.parts)] for path in found if path.name == "report.json"}
    assert f"{step:06d}" in whole


def test_an_annotation_that_does_not_name_the_pause_is_reported(bench: Any, halted: dict[str, Any]) -> None:
    target = ("rltj", NAME, "-n", NAMESPACE, "--overwrite")
    bench.kube.run("annotate", *target, f"headway.dev/resume={halted['status']['pause']['step']}")

    def explained() -> bool:
        found = condition(bench.get(NAME), "Suspended")
        return found is not None and "is not the time of this pause" in found["message"]

    bench.kube.wait("the operator to say so", explained, deadline_s=60, explain=lambda: why(bench.get(NAME)))
    assert not bench.pods(NAME)


def test_a_job_resumed_by_command_completes_if_the_operator_dies(bench: Any, halted: dict[str, Any]) -> None:
    before = halted["status"]["pause"]
    bench.kube.run(*before["resume"].split()[1:])
    leader = pods(bench.kube, NAME, "operator")[0]["metadata"]
    bench.kube.run("delete", "pod", leader["name"], "-n", leader["namespace"], "--grace-period=0", "--force")
    bench.wait_condition(NAME, "Complete", deadline_s=400)
    status = bench.get(NAME)["status"]
    assert status["progress"]["step"] == STEPS
    assert status["pause"] == before, "the sign is raised as it was, and was seen"
    assert status["resumedPause"] == before["time"]
    healthy = condition(bench.get(NAME), "Healthy")
    assert healthy is not None
    assert (healthy["status"], healthy["reason"]) == ("False", "NothingToTrain")
