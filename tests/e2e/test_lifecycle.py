"""Suspend, resume and delete, as a user does them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway_demo.settings import NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def patch(bench: Any, name: str, spec: dict[str, Any]) -> None:
    change = json.dumps({"spec": spec})
    bench.kube.run("patch", "rltrainingjob", name, "-n", NAMESPACE, "--type=merge", "-p", change)


@pytest.mark.long
def test_suspend_stops_every_pod_and_resume_goes_on_where_it_was(bench: Any) -> None:
    name = "pausing"
    bench.kube.apply(bench.job(name, {"schedule": {"maxSteps": 4}}))
    try:
        bench.wait_step(name, 1)
        patch(bench, name, {"suspend": True})
        bench.wait_condition(name, "Suspended")
        bench.kube.wait("no pods", lambda: not bench.pods(name), deadline_s=90)
        held = bench.step(name)
        patch(bench, name, {"suspend": False})
        bench.wait_condition(name, "Complete", deadline_s=300)
        assert 1 <= held <= bench.step(name) == 4
    finally:
        bench.delete(name)


def test_deleting_a_job_at_work_leaves_nothing(bench: Any) -> None:
    name = "short-lived"
    bench.kube.apply(bench.job(name))
    roles = {"coordinator", "broker", "sandbox", "learner", "rollout"}
    bench.kube.wait("pods of every role", lambda: roles <= set(bench.pods(name)), deadline_s=180)
    bench.delete(name)
    assert bench.owned(name) == []
