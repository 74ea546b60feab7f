"""Any one process may be killed: the job goes on, loses no acknowledged group and bills nothing twice.

One job, and while it trains each of its processes is killed in turn, without notice; then its books are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway_demo.bill import recount, status_tokens
from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE, SYSTEM_NAMESPACE

NAME = "survival"
STEPS = 16
VICTIMS = ("sandbox", "rollout", "learner", "coordinator", "broker", "operator")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def survivor(bench: Any) -> Iterator[str]:
    """A job that trains."""
    bench.kube.apply(bench.job(NAME, {"schedule": {"maxSteps": STEPS}}))
    bench.wait_step(NAME, 1)
    yield NAME
    bench.delete(NAME)


def pods(bench: Any, role: str) -> list[dict[str, Any]]:
    """Running pods of a role, oldest first."""
    where = SYSTEM_NAMESPACE if role == "operator" else NAMESPACE
    label = "app.kubernetes.io/component=" + role
    if role != "operator":
        label += f",headway.dev/job-name={NAME}"
    items = bench.kube.get("pods", "-n", where, "-l", label)["items"]
    running = [p for p in items if p["status"].get("phase") == "Running"]
    return sorted(running, key=lambda p: str(p["metadata"]["creationTimestamp"]))


@pytest.mark.parametrize("role", VICTIMS)
def test_a_killed_process_is_replaced_and_training_goes_on(bench: Any, survivor: str, role: str) -> None:
    bench.kube.wait(f"a running {role}", lambda: bool(pods(bench, role)), deadline_s=120)
    victim = pods(bench, role)[0]["metadata"]
    before = bench.step(NAME)
    assert before < STEPS, "the job ended before this process could be killed; raise STEPS"
    bench.kube.run("delete", "pod", victim["name"], "-n", victim["namespace"], "--grace-period=0", "--force")
    bench.kube.wait(
        f"another {role}",
        lambda: (
            bench.step(NAME) == STEPS or any(p["metadata"]["uid"] != victim["uid"] for p in pods(bench, role))
        ),
        deadline_s=120,
    )
    bench.wait_step(NAME, min(before + 2, STEPS))


def test_the_books_balance_afterwards(bench: Any, survivor: str, tmp_path: Path) -> None:
    bench.wait_condition(NAME, "Complete", deadline_s=400)
    job = bench.get(NAME)
    with bench.platform.bucket() as bucket:
        bucket.download(job["status"]["artifacts"]["uri"], tmp_path)

    reports = [json.loads(p.read_text()) for p in sorted((tmp_path / "steps").glob("*.json"))]
    assert [r["step"] for r in reports] == list(range(STEPS + 1))
    acknowledged = [group for report in reports for group in report["groups"]]
    assert len(acknowledged) == len(set(acknowledged)), "a group was trained twice"

    stored = {
        p.name.removesuffix(".json.gz"): read_group(p) for p in (tmp_path / "trajectories/train").iterdir()
    }
    assert set(acknowledged) <= set(stored), "an acknowledged group was lost"
    for group in stored.values():
        for episode in group["episodes"]:
            assert (episode["reward"] is None) == (episode["outcome"] == "InfraError"), "a fault was scored"

    counted = recount(tmp_path).tokens
    assert counted == status_tokens(job, counted)
    assert not [o for o in bench.owned(NAME) if o.startswith("pod/")], "pods leaked"
