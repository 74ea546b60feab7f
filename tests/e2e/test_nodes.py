"""A learner of two nodes: its pods connect, send weights from memory, and survive the loss of a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_job import pods

from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE
from headway_demo.watch import why

NAME, NODES, STEPS = "two-nodes", 2, 8
INDEX = "batch.kubernetes.io/job-completion-index"

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def name(bench: Any) -> Iterator[str]:
    job = bench.job(
        NAME,
        {
            "learner": {"nodes": NODES, "weights": {"backend": "nccl"}},
            "optimizer": {"learningRate": 1e-5},
            "schedule": {"maxSteps": STEPS},
        },
    )
    del job["spec"]["model"]["lora"]
    job["spec"]["model"]["full"] = {}
    bench.kube.apply(job)
    yield NAME
    bench.delete(NAME)


def learners(bench: Any) -> dict[str, dict[str, Any]]:
    """The learner's running pods by the number of their node."""
    return {pod["metadata"]["annotations"][INDEX]: pod for pod in pods(bench.kube, NAME, "learner")}


def test_a_job_of_two_nodes_trains_and_goes_on_when_it_loses_one(
    bench: Any, name: str, tmp_path: Path
) -> None:
    bench.wait_step(name, 2, deadline_s=400)
    before = {index: pod["metadata"]["uid"] for index, pod in learners(bench).items()}
    assert sorted(before) == ["0", "1"]
    lost = learners(bench)["1"]["metadata"]["name"]
    bench.kube.run("delete", "pod", lost, "-n", NAMESPACE, "--grace-period=0", "--force")

    def replaced() -> bool:
        now = {index: pod["metadata"]["uid"] for index, pod in learners(bench).items()}
        return now.keys() == before.keys() and all(now[index] != before[index] for index in before)

    bench.kube.wait("both nodes anew", replaced, deadline_s=300, explain=lambda: why(bench.get(name)))
    bench.wait_condition(name, "Complete", deadline_s=400)

    run = tmp_path / "run"
    with bench.platform.bucket() as bucket:
        for folder in ("steps", "checkpoints", "trajectories/train"):
            bucket.download(f"{bench.get(name)['status']['artifacts']['uri']}/{folder}", run / folder)
    reports = [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]
    assert [report["step"] for report in reports] == list(range(STEPS + 1))
    assert "direct" in {report["weights"]["kind"] for report in reports}, "weights went from memory to memory"
    acknowledged = [group for report in reports for group in report["groups"]]
    assert len(acknowledged) == len(set(acknowledged)), "a group was trained twice"
    stored = {path.name.removesuffix(".json.gz") for path in (run / "trajectories/train").iterdir()}
    assert set(acknowledged) <= stored
    sizes = {json.loads(path.read_text())["state"]["world_size"] for path in run.rglob("report.json")}
    assert sizes == {NODES}
    versions = {
        span["version"]["step"]
        for path in (run / "trajectories/train").iterdir()
        for episode in read_group(path)["episodes"]
        for row in episode["rows"]
        for span in row["versions"]
    }
    assert max(versions) >= STEPS - 2, "the servers took the weights"
