"""The preflight's baseline episodes on a cluster: real model and sandboxes, no learner before the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headway_api.preflight import CHECK_IDS
from headway_cli.progress import is_true
from headway_demo.settings import NAMESPACE
from headway_demo.watch import condition, why

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

EPISODES = 48
"""Twelve rows in groups of 4: the fewest episodes that a preflight samples."""
CUT, FOOTHOLD = "context-fits", "foothold"
UNTRAINABLE: dict[str, Any] = {"agent": {"builtin": {"maxTurns": 1}}, "schedule": {"maxSteps": 1}}
"""The task needs four turns, and the job allows one: every episode is truncated."""


def only(check: str, **preflight: Any) -> dict[str, Any]:
    """A preflight with this check alone: the scripts of the others would take a sandbox each."""
    others = dict.fromkeys((each for each in CHECK_IDS if each != check), "Off")
    return {"episodes": EPISODES, "checks": others, **preflight}


@pytest.fixture
def jobs(bench: Any) -> Iterator[list[str]]:
    """Names of jobs to delete afterwards."""
    made: list[str] = []
    yield made
    bench.delete(*made)


def watched(bench: Any, name: str, kind: str, deadline_s: float = 400) -> set[str]:
    """Wait for a condition, and return the roles that had pods in the meantime."""
    roles: set[str] = set()

    def over() -> bool:
        roles.update(bench.pods(name))
        return is_true(bench.get(name), kind)

    bench.kube.wait(f"{name} {kind}", over, deadline_s=deadline_s, explain=lambda: why(bench.get(name)))
    return roles


def events(bench: Any, name: str) -> dict[str, str]:
    """Reason -> message of the job's events."""
    selector = f"involvedObject.name={name},involvedObject.kind=RLTrainingJob"
    found = bench.kube.get("events", "-n", NAMESPACE, "--field-selector", selector)["items"]
    return {event["reason"]: event["message"] for event in found}


@pytest.mark.long
def test_enforce_stops_before_any_learner_pod(bench: Any, jobs: list[str]) -> None:
    name = "no-turns"
    jobs.append(name)
    bench.kube.apply(bench.job(name, UNTRAINABLE | {"preflight": only(CUT)}))
    roles = watched(bench, name, "Failed")
    assert "rollout" in roles
    assert "learner" not in roles
    job = bench.get(name)
    failed, passed = condition(job, "Failed"), condition(job, "PreflightPassed")
    assert failed is not None
    assert passed is not None
    assert failed["reason"] == "PreflightFailed"
    assert CUT in failed["message"]
    assert (passed["status"], passed["reason"]) == ("False", "CheckFailed")
    assert CUT in passed["message"]
    preflight = job["status"]["preflight"]
    assert preflight["state"] == "Failed"
    [line] = preflight["findings"]
    assert (line["check"], line["verdict"]) == (CUT, "Fail")
    assert line["field"] == "spec.agent.builtin.maxTurns"
    assert line["value"].startswith("1 ("), "all of them, with an interval"
    assert job["status"]["usage"]["evaluationTokens"] > 0, "its tokens are on the bill"
    assert CUT in events(bench, name)["PreflightFailed"]
    assert "learner" not in {role["name"] for role in job["status"].get("roles", [])}


@pytest.mark.long
@pytest.mark.chaos  # more than a minute: `make test-long` alone runs it
def test_policy_warn_goes_on_and_reports_the_failure(bench: Any, jobs: list[str]) -> None:
    name = "few-turns"
    jobs.append(name)
    bench.kube.apply(bench.job(name, UNTRAINABLE | {"preflight": only(CUT, policy="Warn")}))
    bench.wait_condition(name, "Progressing", deadline_s=400)
    assert "learner" in bench.pods(name)
    job = bench.get(name)
    passed = condition(job, "PreflightPassed")
    assert passed is not None
    assert (passed["status"], passed["reason"]) == ("False", "Warned")
    assert CUT in passed["message"]
    assert job["status"]["preflight"]["episodes"] == EPISODES
    assert CUT in events(bench, name)["PreflightWarned"]


@pytest.mark.long
@pytest.mark.chaos  # two minutes: `make test-long` alone runs it
def test_an_equal_job_of_an_unpinned_image_samples_for_itself(bench: Any, jobs: list[str]) -> None:
    changes = {"schedule": {"maxSteps": 1}, "preflight": only(FOOTHOLD)}
    for name in ("sound", "sound-again"):
        jobs.append(name)
        bench.kube.apply(bench.job(name, changes))
        bench.wait_condition(name, "PreflightPassed", deadline_s=400)
    first, second = (bench.get(name)["status"] for name in ("sound", "sound-again"))
    assert "read back" not in first["preflight"]["summary"]
    assert "read back" not in second["preflight"]["summary"], "the tag may name another image by now"
    assert second["preflight"]["episodes"] == first["preflight"]["episodes"] == EPISODES
    assert first["usage"]["evaluationTokens"] > 0
    assert second["usage"]["evaluationTokens"] > 0
