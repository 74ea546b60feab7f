"""Suspend, resume and delete, as a user does them."""

from __future__ import annotations

from typing import Any

import pytest

from headway_demo.settings import NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]


def patch(bench: Any, name: str, spec: str) -> None:
    bench.kube.run(
        "patch", "rltrainingjob", name, "-n", NAMESPACE, "--type=merge", "-p", f'{{"spec": {spec}}}'
    )


def test_suspend_stops_every_pod_and_resume_goes_on_where_it_was(bench: Any) -> None:
    name = "pausing"
    bench.kube.apply(bench.job(name, {"schedule": {"maxSteps": 4}}))
    try:
        step = lambda: bench.get(name).get("status", {}).get("progress", {}).get("step", 0)  # noqa: E731
        bench.kube.wait(
            "the first step", lambda: step() >= 1, deadline_s=240, explain=lambda: str(bench.get(name))
        )
        patch(bench, name, '{"suspend": true}')
        bench.wait_condition(name, "Suspended")
        bench.kube.wait(
            "no pods", lambda: not any(o.startswith("pod/") for o in bench.owned(name)), deadline_s=90
        )
        held = step()
        patch(bench, name, '{"suspend": false}')
        bench.wait_condition(name, "Complete", deadline_s=300)
        assert held >= 1
        assert step() == 4
    finally:
        bench.delete(name)


def test_deleting_a_job_at_work_leaves_nothing(bench: Any) -> None:
    name = "short-lived"
    bench.kube.apply(bench.job(name))
    bench.kube.wait(
        "pods of every role",
        lambda: {"coordinator", "broker"} <= {o.split("/")[1].split("-")[-2] for o in bench.owned(name)} or len(
            [o for o in bench.owned(name) if o.startswith("pod/")]) >= 4,
        deadline_s=120,
    )  # fmt: skip
    bench.delete(name)
    assert bench.owned(name) == []
