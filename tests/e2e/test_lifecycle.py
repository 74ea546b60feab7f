"""A job that is deleted at work. `test_survival` suspends one and resumes it."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def test_deleting_a_job_at_work_leaves_nothing(bench: Any) -> None:
    name = "short-lived"
    bench.kube.apply(bench.job(name))
    roles = {"coordinator", "broker", "sandbox", "learner", "rollout"}
    bench.kube.wait("pods of every role", lambda: roles <= set(bench.pods(name)), deadline_s=180)
    bench.delete(name)
    assert bench.owned(name) == []
