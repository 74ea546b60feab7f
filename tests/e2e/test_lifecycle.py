"""A running job that is deleted, and one that an earlier operator began. `test_survival` suspends one and
resumes it."""

from __future__ import annotations

from typing import Any

import pytest
from live_job import keys_in, pods

from headway_api import names
from headway_demo.settings import NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.mark.ci
def test_deleting_a_running_job_leaves_nothing(bench: Any) -> None:
    name = "short-lived"
    bench.kube.apply(bench.job(name))
    roles = {"coordinator", "broker", "sandbox", "learner", "rollout"}
    bench.kube.wait("pods of every role", lambda: roles <= set(bench.pods(name)), deadline_s=180)
    bench.delete(name)
    assert bench.owned(name) == []


@pytest.mark.long
@pytest.mark.chaos  # two minutes: `make test-long` alone runs it
def test_a_job_begun_with_one_token_for_all_goes_on(bench: Any) -> None:
    """A job begun when all roles shared one token resumes from its checkpoint.

    Its deletion removes that token too.
    """
    name = "older"
    job, held = ({"suspend": suspend, "schedule": {"maxSteps": 40}} for suspend in (False, True))
    bench.kube.apply(bench.job(name, held))
    token = names.token_secret(name, bench.get(name)["metadata"]["uid"])
    literal = "--from-literal=token=the-token-of-all-its-pods"
    bench.kube.run("create", "secret", "generic", token, "-n", NAMESPACE, literal)
    for step in (1, 3):
        bench.kube.apply(bench.job(name, job))
        bench.wait_step(name, step)
        for role in ("coordinator", "broker", "learner", "rollout"):
            assert names.TOKEN_KEY in keys_in(bench.kube, pods(bench.kube, name, role)[0], role)
        bench.kube.apply(bench.job(name, held))
        bench.kube.wait("its pods to go", lambda: not bench.pods(name), deadline_s=120)
    bench.delete(name)
    assert bench.kube.run("get", "secret", token, "-n", NAMESPACE, "--ignore-not-found") == ""
