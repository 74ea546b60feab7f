"""A judge that a real vLLM serves on the cluster, killed while a job asks it: no reward is a zero by that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway_demo import quickstart
from headway_demo.bill import recount, status_tokens
from headway_demo.evaluation import start_reference
from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE, Settings

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.chaos, pytest.mark.timeout(900)]
"""Five minutes: `make test-long IN=tests/e2e/test_judge.py` runs it, and `.ci/run` does not."""

SERVICE = "reference"
"""The demo's vLLM, with a model as small as the one that is trained."""
JUDGE = {
    "name": "clerk",
    "endpoint": {"url": f"http://{SERVICE}.{NAMESPACE}.svc:8000/v1", "model": SERVICE},
    "maxTokens": 32,
    "timeoutSeconds": 20,
    "cache": False,
}
CHANGES: dict[str, Any] = {
    "judges": [JUDGE],
    "algorithm": {"batchSize": 2, "groupSize": 4},
    "evaluation": {"everySteps": 0, "atStart": False},
    "preflight": {"episodes": 0},
    "schedule": {"maxSteps": 4},
}


def document(bench: Any) -> dict[str, Any]:
    """The example's job, small, with this cluster's judge."""
    text = (quickstart.EXAMPLE / "job-judged.yaml").read_text()
    [found] = [each for each in yaml.safe_load_all(text) if each["kind"] == "RLTrainingJob"]
    image = {"environment": {"image": bench.platform.environment_image}}
    found["spec"] = quickstart.merged(found["spec"], quickstart.merged(image, CHANGES))
    return dict(found)


@contextmanager
def judge_served(bench: Any) -> Iterator[None]:
    """vLLM behind a Service, for as long as the block runs."""
    start_reference(bench.kube, bench.platform.refs, Settings.from_environ({}))
    try:
        bench.kube.wait_available(NAMESPACE, SERVICE)
        yield
    finally:
        bench.kube.run("delete", "deployment,service", SERVICE, "-n", NAMESPACE, "--ignore-not-found")


@pytest.fixture
def job(bench: Any) -> Iterator[str]:
    found = document(bench)
    name = found["metadata"]["name"]
    with judge_served(bench):
        bench.kube.apply(found)
        yield name
        bench.delete(name)


def kill(bench: Any) -> None:
    """The judge's pod is gone at once; its Deployment makes another."""
    target = ("pod", "-n", NAMESPACE, "-l", f"app={SERVICE}")
    bench.kube.run("delete", *target, "--grace-period=0", "--force")


def usage(bench: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = bench.get(name).get("status", {}).get("usage", {})
    return found


def test_a_judge_killed_in_the_middle_costs_no_zero(bench: Any, job: str, tmp_path: Path) -> None:
    bench.wait_step(job, 1)
    before = usage(bench, job)["judgeTokens"]
    assert before > 0
    kill(bench)
    bench.wait_condition(job, "Complete", deadline_s=400)
    status = bench.get(job)
    with bench.platform.bucket() as bucket:
        bucket.download(status["status"]["artifacts"]["uri"], tmp_path)
    groups = [read_group(path) for path in (tmp_path / "trajectories/train").iterdir()]
    episodes = [episode for group in groups for episode in group["episodes"]]
    assert status["status"]["progress"]["step"] == CHANGES["schedule"]["maxSteps"]
    for episode in episodes:
        assert (episode["reward"] is None) == (episode["outcome"] == "InfraError"), "a fault was scored"
        if episode["metrics"].get("well_formed"):
            assert episode["metrics"]["clear"] in (0.0, 1.0), "paid without the judge's word"
            assert len(episode["judgements"]) == 1
    lost = [each for group in groups for each in group["discarded"] if "judge clerk" in str(each["error"])]
    assert all(each["reward"] is None for each in lost)
    counted = recount(tmp_path).tokens
    assert counted == status_tokens(status, counted)
    assert counted["judge"] > before, "it was asked after it was killed too"
