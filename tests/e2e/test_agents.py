"""Users' agents on a cluster: the example's service, redeployed while it serves episodes, and its program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from live_job import Sandbox, look, pods, sandbox_in_use
from neighbours import targets

from headway_api import names
from headway_demo import quickstart
from headway_demo.bill import recount, status_tokens
from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE

STEPS = 3
SMALL: dict[str, Any] = {
    "algorithm": {"batchSize": 2, "groupSize": 4},
    "evaluation": {"everySteps": 0, "atStart": False},
    "preflight": {"episodes": 0},
    "schedule": {"maxSteps": STEPS},
}
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]


def documents(bench: Any, file: str, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The example's objects, with this run's image and a small job."""
    image = bench.platform.environment_image
    found = list(yaml.safe_load_all((quickstart.EXAMPLE / file).read_text()))
    for document in found:
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                container |= {"image": image, "imagePullPolicy": "IfNotPresent"}
        if document["kind"] == "RLTrainingJob":
            environment = {"environment": {"image": image}}
            spec = quickstart.merged(document["spec"], quickstart.merged(environment, SMALL))
            document["spec"] = quickstart.merged(spec, changes)
    return found


@contextmanager
def applied(bench: Any, file: str, changes: dict[str, Any] | None = None) -> Iterator[str]:
    """Apply the example's objects to the cluster, yield the job's name, and delete everything afterwards."""
    objects = documents(bench, file, changes or {})
    [name] = [o["metadata"]["name"] for o in objects if o["kind"] == "RLTrainingJob"]
    try:
        bench.kube.apply(*objects)
        yield name
    finally:
        bench.delete(name)
        for kind in ("deployment", "service"):
            bench.kube.run("delete", kind, "desk-agent", "-n", NAMESPACE, "--ignore-not-found")


def trained(bench: Any, name: str, folder: Path) -> list[dict[str, Any]]:
    """Episodes of a complete job, after a check that its bill equals a recount."""
    job = bench.get(name)
    with bench.platform.bucket() as bucket:
        bucket.download(job["status"]["artifacts"]["uri"], folder)
    counted = recount(folder).tokens
    assert counted == status_tokens(job, counted)
    groups = [read_group(path) for path in (folder / "trajectories/train").iterdir()]
    return [episode for group in groups for episode in group["episodes"]]


def token_true(episode: dict[str, Any]) -> bool:
    """The episode is one row that ends where the last turn ended, and every sampled token is trained once."""
    turns = [turn for turn in episode["turns"] if turn["delivered"]]
    [row], last = episode["rows"], turns[-1]
    whole = len(row["tokens"]) == last["prompt_tokens"] + last["sampled_tokens"]
    return whole and sum(row["mask"]) == sum(turn["sampled_tokens"] for turn in turns)


@pytest.mark.chaos  # two minutes: `make test-long` alone runs it
def test_a_service_works_the_desk_and_is_redeployed_meanwhile(bench: Any, tmp_path: Path) -> None:
    with applied(bench, "job-http.yaml") as name:
        bench.wait_step(name, 1)
        bench.kube.run("rollout", "restart", "deployment/desk-agent", "-n", NAMESPACE)
        bench.wait_condition(name, "Complete", deadline_s=400)
        assert bench.step(name) == STEPS
        episodes = trained(bench, name, tmp_path)
    scored = [e for e in episodes if e["outcome"] != "InfraError"]
    assert {e["outcome"] for e in scored} <= {"Completed", "Truncated"}
    assert all(token_true(e) for e in scored)
    assert max(len(e["turns"]) for e in scored) >= 3, "the agent's tools were never used"
    assert all("well_formed" in e["metrics"] for e in scored), "the agent's own metrics came along"
    assert all(e["score"] == e["reward"] for e in scored), "what it reported was judged"
    assert all(e["reward"] is None for e in episodes if e["outcome"] == "InfraError")


@dataclass(frozen=True)
class Programmed:
    """A finished job whose agent is a program in the sandbox, and what was seen from one of its sandboxes."""

    episodes: list[dict[str, Any]]
    seen: dict[str, Any]
    sandbox: Sandbox
    gateway: set[str]
    """Addresses of the coordinator's gateway, as the sandbox was to look for them."""


@pytest.fixture(scope="module")
def programmed(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Programmed:
    with applied(bench, "job-sandboxed.yaml", {"schedule": {"maxSteps": 6}}) as name:
        bench.wait_step(name, 1)
        with sandbox_in_use(bench.kube, name) as sandbox:
            around = targets(bench.kube, sandbox.pod["metadata"]["name"])
            seen = look(bench.kube, sandbox.pod, around, names.RUNNER)
            [coordinator] = pods(bench.kube, name, "coordinator")
        bench.wait_condition(name, "Complete", deadline_s=400)
        episodes = trained(bench, name, tmp_path_factory.mktemp("run"))
    port = names.PORT_GATEWAY
    gateway = {f"coordinator/{coordinator['metadata']['name']}:{port}", f"service/{name}-coordinator:{port}"}
    return Programmed(episodes, seen, sandbox, gateway)


def test_a_program_works_the_desk(programmed: Programmed) -> None:
    scored = [e for e in programmed.episodes if e["outcome"] != "InfraError"]
    assert {e["outcome"] for e in scored} <= {"Completed", "Truncated"}
    assert all(token_true(e) for e in scored)
    assert max(e["metrics"]["procedure"] for e in scored) == 1.0, "the environment saw its tools used"


def test_a_program_can_reach_its_gateway_but_not_read_its_server(programmed: Programmed) -> None:
    seen = programmed.seen
    assert seen["lease"] == programmed.sandbox.episode, "the sandbox changed hands while it was looked into"
    assert [found for found in seen["reached"] if found.startswith("coordinator/")]
    assert set(seen["reached"]) <= programmed.gateway
    assert not seen["resolves"]
    assert seen["readable"] == []
    assert seen["writable"] == [names.EPISODE_DIR]
    assert seen["rights"]["Uid"] == "65533 65533 65533 65533", "the program's user, and not the server's"
