"""`headway` against a real API server: it applies, follows and stops jobs, and explains errors."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway_api import names
from headway_cli import newer_fields

pytestmark = pytest.mark.integration

JOB: dict[str, Any] = {
    "apiVersion": "headway.dev/v1alpha1",
    "kind": "RLTrainingJob",
    "metadata": {"name": "refund-desk"},
    "spec": {
        "managedBy": "example.com/nobody",
        "model": {"base": "s3://b/m"},
        "data": {"train": {"uri": "s3://b/t.jsonl"}, "validation": {"uri": "s3://b/v.jsonl"}},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "output": {"uri": "s3://b/o"},
    },
}
Run = Callable[..., subprocess.CompletedProcess[str]]


def command(kubeconfig: Path, *words: str) -> dict[str, Any]:
    return {
        "args": [sys.executable, "-m", "headway_cli", *words],
        "text": True,
        "env": {"KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    }


@pytest.fixture
def run(served: Any) -> Run:
    def run(*words: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        made = command(kubeconfig or served.kubeconfig, *words)
        return subprocess.run(**made, capture_output=True, timeout=60)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return path


@contextmanager
def watching(served: Any, namespace: str) -> Iterator[subprocess.Popen[str]]:
    """`headway watch` on the job; killed at the end, and after a minute."""
    made = command(served.kubeconfig, "watch", "refund-desk", "-n", namespace)
    process = subprocess.Popen(**made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    late = threading.Timer(60, process.kill)
    late.start()
    try:
        yield process
    finally:
        late.cancel()
        process.kill()
        process.wait()


def found(served: Any, namespace: str) -> dict[str, Any]:
    text = served.kubectl("get", "rltj", "refund-desk", "-n", namespace, "-o", "json")
    job: dict[str, Any] = json.loads(text)
    return job


def say(served: Any, namespace: str, status: dict[str, Any]) -> None:
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    served.kubectl("patch", "rltj", "refund-desk", "-n", namespace, *patch)


def condition(kind: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True",
        "reason": "Because",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }


def test_a_job_is_applied_changed_suspended_and_resumed(
    served: Any, namespace: str, run: Run, file: Path
) -> None:
    done = run("submit", str(file), "-n", namespace, "--set", "spec.schedule.maxSteps=7")
    assert (done.returncode, done.stdout) == (0, f"RLTrainingJob {namespace}/refund-desk\n"), done.stderr
    assert found(served, namespace)["spec"]["schedule"]["maxSteps"] == 7

    assert run("suspend", "refund-desk", "-n", namespace).returncode == 0
    assert found(served, namespace)["spec"]["suspend"] is True
    pause = {"time": "2026-01-01T00:00:00Z", "signal": "GradientSpiking", "step": 3}
    say(served, namespace, {"pause": pause})
    done = run("resume", "refund-desk", "-n", namespace)
    assert done.returncode == 0, done.stderr
    resumed = found(served, namespace)
    assert resumed["spec"]["suspend"] is False
    assert resumed["metadata"]["annotations"][names.ANNOTATION_RESUME] == pause["time"]


@pytest.mark.parametrize(("end", "code"), [("Complete", 0), ("Failed", 1)])
def test_a_job_is_followed_to_its_end(
    served: Any, namespace: str, run: Run, file: Path, end: str, code: int
) -> None:
    assert run("submit", str(file), "-n", namespace).returncode == 0
    with watching(served, namespace) as process:
        assert process.stdout is not None
        assert "state Pending" in process.stdout.readline()
        say(served, namespace, {"state": "Training", "progress": {"step": 2, "maxSteps": 9}})
        assert "state Training  step 2/9" in process.stdout.readline()
        say(served, namespace, {"state": end, "conditions": [condition(end, "the reason of it")]})
        rest = process.stdout.read()
        assert process.wait(10) == code, rest
        assert f"state {end}" in rest
        assert ("the reason of it" in rest) == (end == "Failed")


def test_deleting_a_job_ends_its_watch(served: Any, namespace: str, run: Run, file: Path) -> None:
    assert run("submit", str(file), "-n", namespace).returncode == 0
    with watching(served, namespace) as process:
        assert process.stdout is not None
        assert "state Pending" in process.stdout.readline()
        served.kubectl("delete", "rltj", "refund-desk", "-n", namespace)
        assert "RLTrainingJob refund-desk was deleted" in process.stdout.read()
        assert process.wait(10) == 1


def test_an_unknown_name_is_answered_with_the_nearest_name(namespace: str, run: Run, file: Path) -> None:
    assert run("submit", str(file), "-n", namespace).returncode == 0
    done = run("watch", "refnd-desk", "-n", namespace)
    assert done.returncode == 2
    assert done.stderr == (
        f"headway: namespace {namespace} has no RLTrainingJob refnd-desk; did you mean refund-desk?\n"
    )


def test_a_wrong_field_is_refused_in_the_servers_words(namespace: str, run: Run, file: Path) -> None:
    done = run("submit", str(file), "-n", namespace, "--set", "spec.algorithm.groupSize=0")
    assert done.returncode == 2
    assert "spec.algorithm.groupSize" in done.stderr
    done = run("submit", str(file), "-n", namespace, "--set", "spec.algoritm.groupSize=4")
    assert done.returncode == 2
    assert "spec.algoritm" in done.stderr
    assert newer_fields.unknown(done.stderr) == ["spec.algoritm"]
    assert "older Headway" not in done.stderr, "no version has this field"


def test_a_missing_cluster_is_reported_with_its_cause(
    tmp_path: Path, run: Run, served: Any, file: Path
) -> None:
    done = run("watch", "a", kubeconfig=tmp_path / "absent")
    assert done.returncode == 2
    assert "no cluster is configured" in done.stderr
    assert "headway run --local" in done.stderr
    done = run("watch", "a", "--context", "elsewhere")
    assert done.returncode == 2
    assert "--context elsewhere: the kubeconfig has no such context; it has " in done.stderr
    gone = yaml.safe_load(Path(served.kubeconfig).read_text())
    gone["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (tmp_path / "gone").write_text(yaml.safe_dump(gone))
    done = run("submit", str(file), kubeconfig=tmp_path / "gone")
    assert done.returncode == 2
    assert "https://127.0.0.1:9" in done.stderr
    assert "does not answer: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_forbidden_command_names_the_role_to_ask_for(
    served: Any, namespace: str, tmp_path: Path, run: Run
) -> None:
    token = served.kubectl("create", "token", "default", "-n", namespace).strip()
    config = yaml.safe_load(Path(served.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": token}
    (tmp_path / "nobody").write_text(yaml.safe_dump(config))
    done = run("suspend", "refund-desk", "-n", namespace, kubeconfig=tmp_path / "nobody")
    assert done.returncode == 2
    assert "forbidden" in done.stderr
    assert f"ask for the role `edit` in namespace {namespace}" in done.stderr
