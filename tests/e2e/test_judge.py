"""A judge whose model the job itself serves is killed while the coordinator uses it.

No reward becomes 0 because of that. Only the coordinator reaches the judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from live_job import look, pods

from headway_api import names
from headway_demo import quickstart
from headway_demo.bill import recount, status_tokens
from headway_demo.objects import read_group
from headway_demo.settings import BUCKET, NAMESPACE
from headway_demo.watch import condition, why

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.chaos, pytest.mark.timeout(900)]
"""Five minutes: `make test-long IN=tests/e2e/test_judge.py` runs it, and `.ci/run` does not."""

JUDGE = {
    "name": "clerk",
    # The demo's model that was taught only today's procedure. It is as small as the model that is trained.
    "model": {
        "base": f"s3://{BUCKET}/{quickstart.PREFIX}/reference",
        "dtype": "float32",
        "contextLength": 512,
    },
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


@pytest.fixture
def job(bench: Any) -> Iterator[str]:
    found = document(bench)
    name = found["metadata"]["name"]
    bench.kube.apply(found)
    yield name
    bench.delete(name)


def server(bench: Any, job: str) -> dict[str, Any]:
    """The judge's pod."""
    [found] = pods(bench.kube, job, names.JUDGE)
    return dict(found)


def kill(bench: Any, pod: dict[str, Any]) -> None:
    """Force the deletion of the pod. Its Deployment makes another."""
    target = ("pod", pod["metadata"]["name"], "-n", NAMESPACE)
    bench.kube.run("delete", *target, "--grace-period=0", "--force")


def reached(bench: Any, job: str, role: str, pod: dict[str, Any]) -> list[int]:
    """Ports of `pod` that the job's pod of this role reaches."""
    ports = (names.PORT_ENGINE, names.PORT_WEIGHTS, names.PORT_ENGINE_METRICS)
    targets = {str(port): ("tcp", pod["status"]["podIP"], port) for port in ports}
    found = look(bench.kube, pods(bench.kube, job, role)[0], targets)["reached"]
    return sorted(map(int, found))


def usage(bench: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = bench.get(name).get("status", {}).get("usage", {})
    return found


def test_a_judge_killed_in_the_middle_costs_no_zero(bench: Any, job: str, tmp_path: Path) -> None:
    """While the judge's first server starts, the job's condition names the judge's field."""
    starting = f"spec.judges[{JUDGE['name']}].model: 0 of 1 pods are ready"
    bench.kube.wait(
        "the message that the judge starts",
        lambda: starting in (condition(bench.get(job), "Progressing") or {}).get("message", ""),
        deadline_s=240,
        explain=lambda: why(bench.get(job)),
    )
    assert names.LEARNER not in bench.pods(job), "the preflight asks it first"
    bench.wait_step(job, 1, deadline_s=400)
    pod = server(bench, job)
    assert reached(bench, job, names.COORDINATOR, pod) == [names.PORT_ENGINE]
    assert reached(bench, job, names.ROLLOUT, pod) == []
    before = usage(bench, job)["judgeTokens"]
    assert before > 0
    kill(bench, pod)
    bench.wait_condition(job, "Complete", deadline_s=400)
    status = bench.get(job)
    bench.kube.wait("the judge to be stopped", lambda: not bench.pods(job), deadline_s=90)
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
