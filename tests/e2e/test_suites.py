"""An evaluation measures a suite on a cluster, with the suite's own image and broker.

The broker is killed once. The suite's pods reach only the gateway. Every sample is measured, and no pod is
left.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from live_job import look, pods

from headway_api import names
from headway_cli.progress import is_true
from headway_demo import quickstart
from headway_demo.bill import recount, status_tokens
from headway_demo.images import BUILD, SYSTEM_PYTHON
from headway_demo.kube import KubeError
from headway_demo.settings import NAMESPACE, ROOT, Settings
from headway_demo.watch import why

NAME, SUITE = "kept", "sums"
ROWS, SAMPLES = 2, 16
"""Enough samples that the job still runs when the suite's new broker has started a sandbox."""
GATE = {
    "candidate": "base",
    "task": SUITE,
    "metric": "success",
    "minimum": "1",
    "minimumOf": "Value",
}
"""It asks that every sum is right. The model learned the desk's procedure and no arithmetic, so it cannot
pass."""

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def image(bench: Any) -> str:
    """The name of the example's image, loaded on the cluster's nodes.

    On a cluster other than this machine's it must be in the registry: see examples/suites/README.md.
    """
    settings = Settings.from_environ({})
    prefix, tag = settings.image_prefix, settings.image_tag
    if not settings.current_cluster:
        command = [SYSTEM_PYTHON, str(BUILD), "--load", "--prefix", prefix, "--tag", tag]
        subprocess.run([*command, str(ROOT / "examples" / "suites")], check=True, timeout=1200)
    return f"{prefix}/suites:{tag}"


def evaluation(bench: Any, image: str) -> dict[str, Any]:
    """The document of an evaluation of the untrained model, on a few rows and a few sums."""
    document = quickstart.evaluation(bench.platform.environment_image, name=NAME)
    model = {"base": "s3://headway/quickstart/model", "dtype": "float32", "contextLength": 512}
    pod = {"requests": {"cpu": "50m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
    suite = {
        "name": SUITE,
        "image": image,
        "task": "arithmetic.py@arithmetic",
        "limit": SAMPLES,
        "sandbox": {"resources": pod, "warmPool": {"min": 1, "max": 2}},
    }
    document["spec"] |= {
        "candidates": [{"name": "base", "model": model}],
        "gate": GATE,
        "evaluation": {"maxRows": ROWS, "sampling": {"maxTokens": 32}},
        "rollout": {"maxConcurrency": 2, "timeoutSeconds": 240},
        "suites": [suite],
    }
    return document


def get(bench: Any) -> dict[str, Any]:
    found: dict[str, Any] = bench.kube.get("rlevaljob", NAME, "-n", NAMESPACE)
    return found


def groups_done(bench: Any) -> int:
    """How many rows and samples have been measured."""
    return int(get(bench).get("status", {}).get("progress", {}).get("groups", 0))


def sandboxes(bench: Any, *, suite: bool) -> list[dict[str, Any]]:
    """Running sandboxes of the suite, or those of the job's own rows."""
    return [
        pod
        for pod in pods(bench.kube, NAME, "sandbox")
        if (pod["metadata"]["labels"].get(names.LABEL_SUITE) == SUITE) is suite
    ]


def kill_the_suites_broker(bench: Any) -> None:
    """Kill it without notice, and wait until another one is ready and has a sandbox."""
    killed = pods(bench.kube, NAME, names.SUITE_BROKER)[0]["metadata"]["name"]
    bench.kube.run("delete", "pod", killed, "-n", NAMESPACE, "--grace-period=0", "--force")

    def replaced() -> bool:
        others = [p for p in pods(bench.kube, NAME, names.SUITE_BROKER) if p["metadata"]["name"] != killed]
        return any(is_true(pod, "Ready") for pod in others)

    bench.kube.wait(
        f"another broker of the suite {SUITE}, and a sandbox",
        lambda: replaced() and bool(sandboxes(bench, suite=True)),
        deadline_s=120,
        explain=lambda: why(get(bench)),
    )


def seen_from(bench: Any, *, suite: bool) -> set[str]:
    """What a sandbox reaches of its job and the cluster. A sandbox that ends during the look is replaced."""
    api = bench.kube.get("service", "kubernetes", "-n", "default")["spec"]["clusterIP"]
    coordinator = pods(bench.kube, NAME, "coordinator")[0]["status"]["podIP"]
    server = pods(bench.kube, NAME, "rollout")[0]["status"]["podIP"]
    targets = {
        "gateway": ("tcp", coordinator, names.PORT_GATEWAY),
        "coordinator": ("tcp", coordinator, names.PORT_COORDINATOR),
        "engine": ("tcp", server, names.PORT_ENGINE),
        "api": ("tcp", api, 443),
    }
    for name in ("broker", "suite-broker"):
        targets[name] = ("tcp", pods(bench.kube, NAME, name)[0]["status"]["podIP"], names.PORT_BROKER)
    for _ in range(20):
        for pod in sandboxes(bench, suite=suite):
            try:
                inside = look(bench.kube, pod, targets)
            except KubeError:
                continue  # its episode has ended
            assert not inside["resolves"]
            return set(inside["reached"])
    raise AssertionError("no sandbox stayed for long enough to be looked into")


@dataclass(frozen=True)
class Scene:
    """What was seen while the job ran."""

    of_suite: set[str]
    """What a sandbox of the suite reached."""
    own: set[str]
    """What a sandbox of the job's own rows reached."""
    brokers: int
    done: int
    """Rows and samples that were measured when the suite's broker was killed."""


@pytest.fixture(scope="module")
def scene(bench: Any, image: str) -> Iterator[Scene]:
    """What sandboxes of a running job reached: one of its own rows, and then one of its suite.

    The suite's broker is killed between the two looks.
    """
    bench.kube.apply(evaluation(bench, image))
    try:
        bench.kube.wait(
            f"the first {ROWS} rows or samples of {NAME}",
            lambda: groups_done(bench) >= ROWS,
            deadline_s=400,
            explain=lambda: why(get(bench)),
        )
        roles = {role["name"]: role for role in get(bench)["status"]["roles"]}
        done = groups_done(bench)
        own = seen_from(bench, suite=False)
        kill_the_suites_broker(bench)
        of_suite = seen_from(bench, suite=True)
        yield Scene(of_suite, own, roles["broker"]["desired"], done)
    finally:
        bench.kube.run("delete", "rlevaljob", NAME, "-n", NAMESPACE, "--timeout=180s", timeout_s=200)


def test_a_suite_is_measured_beside_the_rows_behind_its_walls(
    bench: Any, scene: Scene, tmp_path: Path
) -> None:
    assert (scene.of_suite, scene.own, scene.brokers) == ({"gateway"}, set(), 2)
    assert scene.done < ROWS + SAMPLES, "the broker was killed when nothing was left to do"
    bench.kube.wait(
        f"the end of {NAME}",
        lambda: is_true(get(bench), "Complete") or is_true(get(bench), "Failed"),
        deadline_s=400,
        explain=lambda: why(get(bench)),
    )
    job = get(bench)
    assert is_true(job, "Failed"), why(job)
    status = job["status"]
    assert (status["reason"], status["gate"]["result"]) == ("GateNotPassed", "Refused"), why(job)
    assert re.search(rf"\bsuccess of base\b.*\b{SAMPLES} rows\b", status["gate"]["message"]), "of other rows"
    [result] = status["results"]
    assert (result["rows"], [each["name"] for each in result["suites"]]) == (ROWS, [SUITE])
    assert status["progress"]["groups"] == ROWS + SAMPLES
    with bench.platform.bucket() as bucket:
        bucket.download(status["artifacts"]["uri"], tmp_path)
    table = pq.read_table(io.BytesIO((tmp_path / "results.parquet").read_bytes())).to_pylist()
    assert sorted((line["suite"], line["row"]) for line in table) == [
        *((False, row) for row in range(ROWS)),
        *((True, row) for row in range(ROWS, ROWS + SAMPLES)),
    ]
    assert all(line["scored"] for line in table), [line["outcome"] for line in table]
    counted = recount(tmp_path).tokens
    assert counted == status_tokens(job, counted)
    script = ROOT / "hack" / "recount_eval.py"
    files = [str(tmp_path / name) for name in ("results.parquet", "report.json")]
    recounted = subprocess.run(
        [sys.executable, str(script), *files], capture_output=True, text=True, check=False
    )
    assert recounted.returncode == 0, recounted.stdout + recounted.stderr
    bench.kube.wait(
        f"the pods of {NAME} to go",
        lambda: (
            not [pod for role in names.ROLES for pod in pods(bench.kube, NAME, role)]
            and not pods(bench.kube, NAME, names.SUITE_BROKER)
        ),
        deadline_s=120,
        explain=lambda: " ".join(bench.owned(NAME)),
    )
