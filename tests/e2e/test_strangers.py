"""What a stranger tries against a running job: each try is refused by name, and no neighbour notices.

The table in `docs/security.md` lists all tries. Tests of operator and broker cover those that need no running
job. `make test-hostile` runs all of them.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from hostile_code import HOSTILE
from live_job import look, pod_without_policy, pods
from neighbours import Target, targets
from outside_host import outside_host
from provoked.provocation import LITTLE, merged
from tries import objects
from tries.planted import Planted, rewritten

from headway_api import names
from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE
from headway_demo.watch import condition, why

TRIED, NEIGHBOUR, PROBING, FETCHING = JOBS = ("tried", "neighbour", "probing", "fetching")
METADATA, API, OUTSIDE = "metadata", "api/service", "outside"
STRANGERS = f"headway-e2e-strangers-{uuid4().hex[:8]}"
"""A new name for each run: an earlier run's namespace may still be terminating."""
MIB = 1 << 20
TIMES, SIZE = 20, 16 * MIB
MAX_MEMORY = 64 * MIB
"""Bytes by which a coordinator's memory may grow."""
AGENT_PORT, STORE_PORT = 8080, 7070
HEAP = """
with open("/proc/1/status") as status:
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""
REASON = "PlantedCodeRan"
"""The reason in the termination message of a learner that ran the planted code."""
WORDS = json.dumps({"reason": REASON, "message": "it ran", "field": None})
PLANTED = Planted(os.system, f"echo '{WORDS}' > /dev/termination-log; kill -9 $PPID")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.hostile,
    pytest.mark.chaos,  # minutes: `make test-hostile` alone runs it
    pytest.mark.timeout(1200),
]


@dataclass(frozen=True)
class Scene:
    """A running job beside a neighbour, and a stranger's pod."""

    bench: Any
    stranger: dict[str, Any]
    targets: dict[str, Target]
    """Addresses that the sandboxes try to reach."""

    def job(self, name: str, changes: dict[str, Any]) -> None:
        """Apply the example's job under a name, with these changes. A value of None removes a field.

        Each job requests few resources, so that all of them fit on a node.
        """
        little = {
            "learner": {"resources": LITTLE},
            "rollout": {"maxConcurrency": 8, "resources": LITTLE},
            "environment": {"sandbox": {"warmPool": {"min": 0, "max": 8}}},
        }
        found = self.bench.job(name, little)
        found["spec"] = merged(found["spec"], changes)
        self.bench.kube.apply(found)

    def patch(self, spec: dict[str, Any]) -> None:
        """Change the job that is attacked."""
        change = ("--type=merge", "-p", json.dumps({"spec": spec}))
        self.bench.kube.run("patch", "rltrainingjob", TRIED, "-n", NAMESPACE, *change)


@pytest.fixture(scope="module")
def scene(bench: Any) -> Iterator[Scene]:
    """Both jobs, the stranger, and a malicious agent and store."""
    kube, image = bench.kube, bench.platform.environment_image
    with ExitStack() as stack:
        outside = stack.enter_context(outside_host()) if os.geteuid() == 0 else None
        stranger = stack.enter_context(pod_without_policy(kube, image, STRANGERS))
        around: dict[str, Target] = {METADATA: ("tcp", "169.254.169.254", 80), API: targets(kube, "")[API]}
        if outside:
            around[OUTSIDE] = ("tcp", *outside)
        addresses = [(address, port) for _, address, port in around.values()]
        made = [
            objects.module(
                NAMESPACE,
                "knocking",
                {
                    "[tuple[str, int]] = []": f"[tuple[str, int]] = {addresses}",
                    'CODE = ""': f"CODE = {HOSTILE!r}",
                },
            ),
            *(objects.module(NAMESPACE, name) for name in ("reporter", "store")),
            *objects.served(NAMESPACE, "reporter", image, AGENT_PORT),
            *objects.served(NAMESPACE, "store", image, STORE_PORT),
        ]
        volume, mount = objects.mounted("knocking")
        template = {"volumes": [volume], "containers": [{"name": "sandbox", "volumeMounts": [mount]}]}
        found = Scene(bench, stranger, around)
        try:
            kube.apply(*made)
            found.job(NEIGHBOUR, {"schedule": {"maxSteps": 8}})
            changes = {
                "schedule": {"maxSteps": 60},
                "checkpoints": {"everySteps": 1, "keepLast": 2},
                "agent": {
                    "builtin": None,
                    "http": {"service": {"name": "tried-reporter", "port": AGENT_PORT}},
                },
                "environment": {
                    "entrypoint": "knocking:Knocking",
                    "sandbox": {"podTemplate": {"spec": template}},
                },
            }
            found.job(TRIED, changes)
            yield found
        finally:
            bench.delete(*JOBS)
            for kind, name in ((each["kind"], each["metadata"]["name"]) for each in made):
                kube.run("delete", kind, name, "-n", NAMESPACE, "--ignore-not-found")


def condition_of(bench: Any, name: str, kind: str) -> dict[str, Any]:
    """A condition of a job, or an empty one while the job lacks it."""
    return condition(bench.get(name), kind) or {}


def test_a_probe_of_another_host_is_refused_with_its_field(bench: Any, scene: Scene) -> None:
    for host in ("127.0.0.1", "169.254.169.254"):
        probe = {
            "name": "learner",
            "livenessProbe": {"httpGet": {"host": host, "port": 10250, "path": "/pods"}},
        }
        scene.job(PROBING, {"learner": {"podTemplate": {"spec": {"containers": [probe]}}}})
        bench.kube.wait(
            "a refusal", lambda: condition_of(bench, PROBING, "Accepted").get("status"), deadline_s=60
        )
        found = condition_of(bench, PROBING, "Accepted")
        assert (found["status"], found["reason"]) == ("False", "InvalidSpec")
        assert "spec.learner.podTemplate" in found["message"]
        assert "livenessProbe.httpGet.host" in found["message"]
        assert bench.pods(PROBING) == []
        bench.delete(PROBING)


def test_a_key_that_leads_out_of_the_models_folder_is_refused(bench: Any, scene: Scene) -> None:
    """Anyone who can write to a bucket may create such a key.

    A malicious store serves it here, because the demo's own store refuses the key.
    """
    scene.job(FETCHING, {"output": {"endpointUrl": f"http://tried-store.{NAMESPACE}.svc:{STORE_PORT}"}})
    found = bench.wait_condition(FETCHING, "Failed")
    assert found["reason"] == "ModelUnavailable", found
    assert "spec.model.base" in found["message"]
    assert (
        "'../../../../.aws/config' is not the name of a file below a folder; rename the object"
        in found["message"]
    )
    assert not {"learner", "rollout"} & set(bench.pods(FETCHING))


def test_16_mb_without_a_token_are_refused_20_at_once(bench: Any, scene: Scene) -> None:
    bench.wait_step(TRIED, 1, deadline_s=500)
    [coordinator] = pods(bench.kube, TRIED, "coordinator")
    inside = ("exec", coordinator["metadata"]["name"], "-n", NAMESPACE, "--", "python3", "-c", HEAP)
    before = int(bench.kube.run(*inside)) * 1024
    place = ("-n", scene.stranger["metadata"]["namespace"], scene.stranger["metadata"]["name"])
    words = (coordinator["status"]["podIP"], str(names.PORT_GATEWAY), str(TIMES), str(SIZE))
    flood = (objects.HERE / "flood.py").read_text()
    answers = json.loads(
        bench.kube.run("exec", "-i", *place, "--", "python3", "-", *words, stdin=flood, timeout_s=180)
    )
    assert answers == [[413, "request_too_large"]] * TIMES
    assert int(bench.kube.run(*inside)) * 1024 - before < MAX_MEMORY
    step = bench.step(TRIED)
    bench.wait_step(TRIED, step + 1)
    assert [each["metadata"]["uid"] for each in pods(bench.kube, TRIED, "coordinator")] == [
        coordinator["metadata"]["uid"]
    ]


@pytest.fixture(scope="module")
def scored(bench: Any, scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Metrics of the episodes that have been trained so far."""
    bench.wait_step(TRIED, 2)
    folder: Path = tmp_path_factory.mktemp("episodes")
    with bench.platform.bucket() as bucket:
        bucket.download(f"{bench.get(TRIED)['status']['artifacts']['uri']}/trajectories/train", folder)
    episodes = [each for path in folder.rglob("*.json.gz") for each in read_group(path)["episodes"]]
    found = [each["metrics"] for each in episodes if each["outcome"] in ("Completed", "Truncated")]
    assert found, [(each["outcome"], each.get("error")) for each in episodes]
    return found


def test_numbers_of_1e200_are_refused_and_the_job_goes_on(scored: list[dict[str, Any]]) -> None:
    assert {(each["sent"], each["refused"]) for each in scored} == {(3, 3)}
    assert not [name for each in scored for name in each if name == "gain"]


def test_a_sandbox_reaches_nothing_from_its_first_moment(
    bench: Any, scene: Scene, scored: list[dict[str, Any]]
) -> None:
    reached = set(look(bench.kube, scene.stranger, scene.targets)["reached"])
    assert scene.targets.keys() - {METADATA} <= reached, "without a policy they are there"
    assert {each["opened"] for each in scored} == {0}
    assert {each["knocked"] for each in scored} == {1}


def test_code_that_a_tool_starts_gets_nothing_of_its_server(scored: list[dict[str, Any]]) -> None:
    """It runs as the server's own user unless the environment sets `runsCode`."""
    assert {(each["seen"], each["got"]) for each in scored} == {(1, 0)}


def test_a_pickle_planted_in_a_checkpoint_never_runs(bench: Any, scene: Scene, tmp_path: Path) -> None:
    scene.patch({"suspend": True})
    bench.wait_condition(TRIED, "Suspended")
    bench.kube.wait("no pods", lambda: not bench.pods(TRIED), deadline_s=90)
    place = f"{bench.get(TRIED)['status']['artifacts']['uri']}/checkpoints"
    file = io.BytesIO()
    torch.save({"module": PLANTED}, file)
    with bench.platform.bucket() as bucket:
        bucket.download(place, tmp_path)
        reports = [*tmp_path.rglob("report.json")]
        assert reports
        for report in reports:
            folder = f"{place}/{report.parent.relative_to(tmp_path)}"
            files = [each["name"] for each in json.loads(report.read_bytes())["state"]["files"]]
            name = next(name for name in files if name.endswith(".pt"))
            bucket.put(f"{folder}/{name}", file.getvalue())
            bucket.put(f"{folder}/report.json", rewritten(report.read_bytes(), name, file.getvalue()))
    scene.patch({"suspend": False})

    def refused() -> bool:
        status = bench.get(TRIED)["status"]
        assert REASON not in json.dumps(status), "what was planted has run"
        return "its signature is not this job's" in condition_of(bench, TRIED, "LearnerReady").get(
            "message", ""
        )

    bench.kube.wait("a refusal", refused, deadline_s=180, explain=lambda: why(bench.get(TRIED)))
    assert "set latest.json in the job's folder" in condition_of(bench, TRIED, "LearnerReady")["message"]


def test_the_neighbour_has_noticed_nothing(bench: Any, scene: Scene) -> None:
    bench.wait_condition(NEIGHBOUR, "Complete", deadline_s=400)
    status = bench.get(NEIGHBOUR)["status"]
    assert {role["name"]: role["restarts"] for role in status["roles"] if role.get("restarts")} == {}
    assert condition_of(bench, NEIGHBOUR, "Accepted")["status"] == "True"
    [operator, *_] = pods(bench.kube, "", "operator")
    assert [each["restartCount"] for each in operator["status"]["containerStatuses"]] == [0]
