"""Events on a real API server show what happens to a job, and metrics come from the job's status."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from operator_rig import PASSED, Rig, wait

from headway_api.conditions import ConditionType, condition
from headway_api.document import Json

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(300)]


def event_reasons(rig: Rig, name: str) -> Counter[str]:
    """Reasons of a job's events, as the operator wrote them."""
    fields = f"involvedObject.name={name},reportingComponent=headway-operator"
    found = json.loads(
        rig.cluster.kubectl("get", "events", "-n", rig.namespace, "--field-selector", fields, "-o", "json")
    )
    return Counter(item["reason"] for item in found["items"])


def wait_for_events(rig: Rig, name: str, *reasons: str) -> None:
    wanted = Counter(reasons)
    wait(
        f"{reasons}",
        lambda: event_reasons(rig, name) == wanted,
        explain=lambda: f"{event_reasons(rig, name)}\n{rig.log()}",
    )


def signals(state: str, step: int, raised: bool) -> Json:
    """The coordinator's part of a status, with a signal."""
    healthy = condition(ConditionType.HEALTHY, not raised, "RewardCollapsed" if raised else "NoSignalRaised")
    return {
        "preflight": PASSED,
        "progress": {"step": step, "maxSteps": 40},
        "reward": {"mean": "0.25"},
        "usage": {"cost": "3.5", "currency": "USD", "totalTokens": 0},
        "signals": [{"name": "RewardCollapsed", "state": state, "since": step}],
        "conditions": [healthy.as_object()],
    }


def test_a_jobs_events_are_recorded_once_if_its_operator_dies(rig: Rig) -> None:
    first = rig.start()
    rig.run("reported")
    begun = ["SpecUnwise", "Accepted", "PreflightPassed", "Started"]
    wait_for_events(rig, "reported", *begun)
    rig.tell("reported", **signals("Raised", 12, True))
    wait_for_events(rig, "reported", *begun, "SignalRaised")
    rig.kill(first)
    rig.tell("reported", **signals("Clear", 20, False))
    rig.start()
    signalled = [*begun, "SignalRaised", "SignalCleared"]
    wait_for_events(rig, "reported", *signalled)
    rig.patch("reported", {"suspend": True})
    rig.wait_true("reported", "Suspended")
    wait_for_events(rig, "reported", *signalled, "Suspended")
    rig.patch("reported", {"suspend": False})
    rig.trains("reported")
    wait_for_events(rig, "reported", *signalled, "Suspended", "Resumed")


def test_a_jobs_metrics_outlive_its_pods_and_go_with_the_job(rig: Rig) -> None:
    rig.settings = {"leaseNamespace": rig.namespace}
    rig.start()
    rig.run("shown")
    rig.tell("shown", **signals("Raised", 12, True))
    of = f'kind="RLTrainingJob",namespace="{rig.namespace}",job_name="shown"'.split(",")

    def shown(name: str, *more: str) -> float:
        labels = ",".join(sorted((*of, *more), key=lambda label: label.partition("=")[0]))
        return rig.metric(f"headway_job_{name}{{{labels}}} ")

    wait("a metric of the signal", lambda: shown("signal", 'signal="RewardCollapsed"') == 2, explain=rig.log)
    assert (shown("step"), shown("max_steps"), shown("reward"), shown("cost")) == (12, 40, 0.25, 3.5)
    assert shown("active") == 1
    rig.patch("shown", {"suspend": True})
    rig.wait_true("shown", "Suspended")
    wait("a suspended job", lambda: shown("active") == 0, explain=rig.log)
    assert shown("step") == 12
    leader = rig.port
    rig.start()
    assert rig.metric("headway_job_") == 0, "a replica that does not lead says nothing of jobs"
    rig.port = leader
    rig.delete("shown")
    wait("a deleted job", lambda: rig.metric("headway_job_") == 0, explain=rig.log)
    assert rig.leads()
