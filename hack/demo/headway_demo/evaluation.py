"""The demo's last part: compares the trained model, the base model and a reference endpoint on the test
rows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml

from headway_cli.progress import is_true
from headway_demo import images, quickstart
from headway_demo.bill import BillMismatchError
from headway_demo.kube import Kube, KubeError
from headway_demo.platform import MANIFESTS, Platform
from headway_demo.settings import BUCKET, NAMESPACE, ROOT, Settings
from headway_demo.watch import why

NAME = "sop-quickstart"
KIND = "rlevaljob"
SHOW_S = 15.0
MLFLOW_PORT, RECOUNT_S = 5000, 120
SERVE = Path(__file__).with_name("serve.py")
Job = dict[str, Any]


def start_reference(kube: Kube, refs: Mapping[str, str], settings: Settings) -> None:
    """Start the reference endpoint without waiting. The evaluation waits until it is ready."""
    mounts, volumes = images.host_mounts(settings)
    python = "python" if settings.current_cluster else images.PYTHON
    values = {
        "namespace": NAMESPACE,
        "reference_image": refs["rollout"],
        "reference_command": json.dumps([python, "-c", SERVE.read_text()]),
        "bucket": BUCKET,
        "prefix": f"{quickstart.PREFIX}/reference",
        "reference_mounts": json.dumps(mounts),
        "reference_volumes": json.dumps(volumes),
    }
    text = Template((MANIFESTS / "reference.yaml").read_text()).substitute(values)
    kube.apply(*yaml.safe_load_all(text))


def run(platform: Platform, *, deadline_s: float) -> Job:
    """Apply the example's evaluation and follow it until it ends, whether or not the gate passes.

    Raises:
        KubeError: the evaluation failed for another reason than its gate, or missed the deadline.
    """
    kube = platform.kube
    kube.run("delete", KIND, NAME, "-n", NAMESPACE, "--ignore-not-found")
    kube.apply(quickstart.evaluation(platform.environment_image))
    started, shown, job = time.monotonic(), -SHOW_S, Job()
    for job in kube.changes(KIND, NAME, "-n", NAMESPACE, deadline_s=deadline_s):
        elapsed = time.monotonic() - started
        if elapsed - shown >= SHOW_S:
            print(f"{elapsed:6.0f} s  {progress_line(job)}", flush=True)
            shown = elapsed
        if is_true(job, "Complete") or (is_true(job, "Failed") and judged(job)):
            return job
        if is_true(job, "Failed"):
            raise KubeError(f"evaluation {NAME} failed:\n{why(job)}")
    raise KubeError(f"evaluation {NAME} is not complete after {deadline_s:.0f} s:\n{why(job)}")


def recounted(platform: Platform, job: Job, folder: Path) -> str:
    """Recompute every number of the report, the status and MLflow from the table of results.

    Returns:
        The output of the recounting scripts.
    Raises:
        BillMismatchError: a number differs.
    """
    (folder / "job.json").write_text(json.dumps(job))
    report, table = str(folder / "report.json"), str(folder / "results.parquet")
    outputs = [_script("recount_eval.py", table, report, "--status", str(folder / "job.json"))]
    with platform.kube.forward(NAMESPACE, "service/mlflow", MLFLOW_PORT) as port:
        experiment = f"{NAMESPACE}/{NAME}"
        outputs.append(_script("recount_mlflow.py", report, f"http://127.0.0.1:{port}", experiment))
    return "; ".join(outputs)


def _script(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "hack" / name), *arguments]
    done = subprocess.run(command, text=True, capture_output=True, timeout=RECOUNT_S)
    if done.returncode:
        raise BillMismatchError(f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout.strip()


def judged(job: Job) -> bool:
    """Whether the evaluation ended because its gate did not pass."""
    return job["status"].get("reason") == "GateNotPassed"


def progress_line(job: Job) -> str:
    """The status of an evaluation in one line."""
    status = job.get("status", {})
    progress = status.get("progress", {})
    rows = f"rows {progress.get('groups', 0)}/{progress.get('ofGroups', '-')}"
    scores = (f"{each['name']} {each.get('score', each['state'])}" for each in status.get("results", []))
    return "  ".join([f"state {status.get('state', 'Pending')}", rows, *scores])


def text(job: Job, folder: Path) -> str:
    """The results as the demo prints them. `folder` is a copy of the job's files."""
    status = job["status"]
    lines = [f"{'candidate':<12}{'external score':>26}{'success':>10}{'against base':>30}{'cost':>12}"]
    lines += [_line(each) for each in status["results"]]
    gate, artifacts = status["gate"], status["artifacts"]
    return "\n".join(
        [
            f"Side by side on {status['results'][0]['rows']} test rows that no training has seen",
            *(f"  {line}" for line in lines),
            "",
            f"  gate {gate['result']}: {gate['message']}",
            "",
            f"  report        {folder / 'report.md'}",
            f"  table         {artifacts['results']}",
            f"  Inspect logs  {folder / 'logs'}  (inspect view --log-dir)",
        ]
    )


def _line(result: Mapping[str, Any]) -> str:
    difference = result.get("difference")
    return (
        f"{result['name']:<12}{_interval(result.get('externalScore')):>26}"
        f"{result.get('success', {}).get('value', '-'):>10}"
        f"{_difference(difference) if difference else '-':>30}{result.get('cost', '-'):>12}"
    )


def _interval(found: Mapping[str, str] | None) -> str:
    if found is None:
        return "-"
    if "low" not in found:
        return f"{float(found['value']):.2f} (too few rows)"
    return f"{float(found['value']):.2f} ({float(found['low']):.2f} to {float(found['high']):.2f})"


def _difference(found: Mapping[str, str]) -> str:
    if "low" not in found:
        return "too few rows"
    return f"{float(found['value']):+.2f} ({float(found['low']):+.2f} to {float(found['high']):+.2f})"
