"""`headway logs`, `cost`, `eval` and `estimate` against a real cluster: API server and kubelet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway_api import names
from headway_api.artifacts import Layout
from headway_api.store import FileStore

pytestmark = [pytest.mark.integration, pytest.mark.ci]

NAME = "refund-desk"
IMAGE = "localhost/headway/testbox:1"
"""An image that every local cluster has."""
JOB: dict[str, Any] = {
    "apiVersion": "headway.dev/v1alpha1",
    "kind": "RLTrainingJob",
    "metadata": {"name": NAME},
    "spec": {
        "managedBy": "example.com/nobody",
        "model": {"base": "s3://b/m"},
        "data": {"train": {"uri": "s3://b/t.jsonl"}, "validation": {"uri": "s3://b/v.jsonl"}},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "output": {"uri": "s3://b/o"},
    },
}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(served: Any, namespace: str, tmp_path: Path) -> Run:
    """Run `headway` in the namespace, from an empty folder."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {"KUBECONFIG": str(served.kubeconfig), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
        command = [sys.executable, "-m", "headway_cli", *words, "-n", namespace]
        return subprocess.run(command, env=env, cwd=tmp_path, text=True, capture_output=True, timeout=60)

    return run


@pytest.fixture
def job(served: Any, namespace: str) -> dict[str, Any]:
    """A job that no operator runs."""
    served.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(JOB))
    found: dict[str, Any] = json.loads(served.kubectl("get", "rltj", NAME, "-n", namespace, "-o", "json"))
    return found


def say(served: Any, namespace: str, status: dict[str, Any]) -> None:
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    served.kubectl("patch", "rltj", NAME, "-n", namespace, *patch)


def start(served: Any, namespace: str, job: dict[str, Any], name: str, role: str, script: str) -> None:
    """Start a pod labelled as the job's own, whose container runs a script."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": names.job_labels(job["kind"], NAME, job["metadata"]["uid"], role),
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": role, "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
            ],
        },
    }
    served.kubectl("create", "-f", "-", input=json.dumps(pod))
    phase = ("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.phase}")
    served.wait_until(f"pod {name}", lambda: served.kubectl(*phase) in ("Running", "Succeeded"))


def test_logs_of_the_jobs_pods_are_read_by_role(
    served: Any, namespace: str, run: Run, job: dict[str, Any]
) -> None:
    start(served, namespace, job, f"{NAME}-learner-0", names.LEARNER, "echo one; echo two; sleep 600")
    start(served, namespace, job, f"{NAME}-coordinator-x", names.COORDINATOR, "echo three")
    served.wait_until("the coordinator's line", lambda: "three" in run("logs", NAME).stdout)
    done = run("logs", NAME)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"{NAME}-coordinator-x: three",
        f"{NAME}-learner-0: one",
        f"{NAME}-learner-0: two",
    ]
    assert run("logs", NAME, "--role", "learner", "--tail", "1").stdout == f"{NAME}-learner-0: two\n"


def test_a_job_that_ends_is_followed_to_the_end_of_its_pods(
    served: Any, namespace: str, run: Run, job: dict[str, Any]
) -> None:
    script = "for n in 1 2 3; do echo line $n; sleep 1; done"
    start(served, namespace, job, f"{NAME}-learner-0", names.LEARNER, script)
    complete = {
        "type": "Complete",
        "status": "True",
        "reason": "Done",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    say(served, namespace, {"conditions": [complete]})
    done = run("logs", NAME, "--follow")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{NAME}-learner-0: line {n}" for n in (1, 2, 3)]


def test_where_pods_are_gone_the_kept_logs_are_read(
    served: Any, namespace: str, run: Run, job: dict[str, Any], tmp_path: Path
) -> None:
    layout = Layout(f"file://{tmp_path}/store", namespace, NAME, job["metadata"]["uid"])
    FileStore().put(layout.last_log(f"{NAME}-learner-0", names.LEARNER), b"kept\n")
    say(served, namespace, {"artifacts": {"uri": layout.root}})
    done = run("logs", NAME)
    assert (done.returncode, done.stdout) == (0, f"{NAME}-learner-0: kept\n"), done.stderr
    assert "these are the last logs that its processes kept" in done.stderr


def test_what_a_job_wrote_is_read_by_its_name(
    served: Any, namespace: str, run: Run, job: dict[str, Any], tmp_path: Path
) -> None:
    done = run("artifacts", NAME)
    assert (done.returncode, done.stderr) == (2, f"headway: {NAME}: the job has written nothing yet\n")
    layout = Layout(f"file://{tmp_path}/store", namespace, NAME, job["metadata"]["uid"])
    FileStore().put(layout.report, b"{}")
    FileStore().put(layout.last_log(f"{NAME}-learner-0", names.LEARNER), b"kept\n")
    say(served, namespace, {"artifacts": {"uri": layout.root}})
    done = run("artifacts", NAME, "--output", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["uri"] == layout.root
    done = run("timeline", "refnd-desk")
    assert done.returncode == 2
    assert "did you mean refund-desk?" in done.stderr


def test_what_a_job_costs_is_read_from_its_status(
    served: Any, namespace: str, run: Run, job: dict[str, Any]
) -> None:
    assert run("cost", NAME).returncode == 2
    usage = {"prefillTokens": 7, "totalTokens": 7, "cost": "0.12", "currency": "USD"}
    usage["priceBook"] = "b@2026-01-01"
    say(served, namespace, {"usage": usage})
    done = run("cost", NAME, "--output", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["used"] == [{"class": "prefillTokens", "quantity": 7.0, "cost": None}]
    assert (found["cost"], found["priceBook"]) == ("0.12", "b@2026-01-01")


def test_the_api_server_accepts_an_evaluation_of_an_existing_job(
    served: Any, namespace: str, run: Run, job: dict[str, Any]
) -> None:
    printed = run("eval", "--job", NAME, "--must-beat", "tuned-base", "--margin", "0.05", "--print")
    assert printed.returncode == 0, printed.stderr
    assert served.attempt("get", "rlev", f"{NAME}-eval", "-n", namespace).returncode != 0
    done = run("eval", "--job", NAME, "--must-beat", "tuned-base", "--margin", "0.05")
    assert (done.returncode, done.stdout) == (0, f"RLEvalJob {namespace}/{NAME}-eval\n"), done.stderr
    found = json.loads(served.kubectl("get", "rlev", f"{NAME}-eval", "-n", namespace, "-o", "json"))
    asked = yaml.safe_load(printed.stdout)["spec"]
    assert found["spec"]["candidates"] == asked["candidates"]
    assert found["spec"]["gate"]["mustBeat"] == "tuned-base"
    done = run("eval", "--job", "refnd-desk")
    assert done.returncode == 2
    assert "did you mean refund-desk?" in done.stderr


def test_an_evaluation_is_estimated_by_the_existing_training_job(
    namespace: str, run: Run, job: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "test.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    data = ("--data", f"file://{tmp_path}/test.jsonl")
    (tmp_path / "eval.yaml").write_text(run("eval", "--job", NAME, *data, "--print").stdout)
    done = run("estimate", "eval.yaml", "--output", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["plays"] == "4 episodes: 2 rows by each of tuned, tuned-base"
    assert found["message"] == "the first messages of an episode are not known"


def test_kubectl_itself_completes_headway(served: Any) -> None:
    """The cluster's own kubectl finds `kubectl_complete-headway` on the PATH."""
    programs = Path(sys.executable).parent
    env = {"KUBECONFIG": str(served.kubeconfig), "PATH": f"{programs}:/usr/bin:/bin"}
    command = [served.programs / "kubectl", "__complete", "headway", "tra"]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=60)
    first, *_, directive = done.stdout.splitlines()
    assert (first.split("\t")[0], directive) == ("trajectories", ":4"), done
