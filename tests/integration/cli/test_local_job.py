"""A real job without a cluster: it is stopped, killed, resumed, and billed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from chaos import EXAMPLE, ROOT

from headway_analysis.report.page import reading
from headway_api.job_folder import JobFolder
from headway_cli import stored_run
from headway_cli.local import manifest
from headway_cli.local.pod import left_over
from headway_cli.where import LocalJob

sys.path.insert(0, str(ROOT / "hack" / "demo"))
from headway_demo import bill, quickstart
from headway_demo.settings import Settings

PATIENCE_SECONDS = 300.0
STEPS = 16
pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def inputs() -> Path:
    """The example's base model and rows."""
    return quickstart.inputs(Settings.from_environ({}).cache, 0)


@contextmanager
def running(inputs: Path, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`headway run --local` on the example, small."""
    settings = {
        "model.base": f"file://{inputs}/model",
        "data.train.uri": f"file://{inputs}/train.jsonl",
        "data.validation.uri": f"file://{inputs}/validation.jsonl",
        "schedule.maxSteps": STEPS,
        "preflight.episodes": 0,
        "evaluation.everySteps": 0,
        "evaluation.atStart": "false",
        "algorithm.batchSize": 2,
        "algorithm.groupSize": 4,
    }
    command = [sys.executable, "-m", "headway_cli", "run", str(EXAMPLE / "job.yaml"), "--local"]
    command += ["--folder", str(folder), *more]
    command += [word for path, value in settings.items() for word in ("--set", f"spec.{path}={value}")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pid in left_over(folder):
            psutil.Process(pid).kill()


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = JobFolder(folder).whole()["status"] if JobFolder(folder).exists() else {}
    return found


def until_step(process: subprocess.Popen[str], folder: Path, step: int) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while status(folder).get("progress", {}).get("step", 0) < step:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        assert time.monotonic() < ends, why(folder)
        time.sleep(0.2)


def why(folder: Path) -> str:
    logs = [f"{log.name}: {log.read_text()[-1500:]}" for log in (folder / "logs").glob("*.log")]
    return "\n".join([json.dumps(status(folder).get("conditions", []), indent=1), *logs])


@pytest.mark.long
def test_a_job_is_stopped_killed_and_resumed(inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with running(inputs, folder) as process:
        until_step(process, folder, 1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
        assert "run it again to continue" in output
    assert left_over(folder) == [], "Ctrl-C leaves nothing"

    before = status(folder)["progress"]["step"]
    with running(inputs, folder) as process:
        until_step(process, folder, before + 1)
        below = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert left_over(folder), "nobody could end what it had started"
        with running(inputs, folder) as again:
            output, _ = again.communicate(timeout=PATIENCE_SECONDS)
            assert again.returncode == 0, f"{output}\n{why(folder)}"
    assert left_over(folder) == []
    assert [each for each in below if each.is_running()] == [], (
        "vLLM's engine renames itself, and is ended too"
    )

    job = JobFolder(folder).whole()
    assert job["status"]["state"] == "Complete"
    assert job["status"]["progress"]["step"] == STEPS
    run = Path(job["status"]["artifacts"]["uri"].removeprefix("file://"))
    bill.verified(job, run)  # raises if a token was billed twice, or not at all
    assert job["status"]["artifacts"]["page"] == f"file://{run}/report.html"
    page = (run / "report.html").read_text()
    assert f"finished: MaxSteps, step {STEPS}" in page
    assert '<i class="p' in page, "tokens are shown by the job's own tokenizer"
    assert "no job.json" not in page

    run_files = stored_run.opened(LocalJob(folder)).files
    every = range(1, STEPS + 1)
    times = [each for step in every for each in reading.timed(run_files, [step]).times() if each.step == step]
    assert [each.step for each in times] == [*every], "also those that a process was killed in"
    assert any("learner: start" in each.parts for each in times), "a step that was taken anew has one of two"
    for each in times:  # steps are shorter than a second here, so a few milliseconds are more than 1 %
        missing = each.seconds * (1 - each.known)
        assert missing <= max(0.01 * each.seconds, 0.1), f"{missing} s are not accounted for: {each}"


def test_a_folder_with_another_job_is_refused(inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    document = manifest.read(EXAMPLE / "job.yaml")
    made, _ = manifest.local(document, folder, manifest.utc_now())
    JobFolder(folder).write(made)
    with running(inputs, folder) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "a job that has begun keeps spec.model" in output
    assert "write --fresh to delete it" in output


def test_a_job_that_is_suspended_is_idle_and_says_so(inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with running(inputs, folder, "--set", "spec.suspend=true") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    assert "the job is not running: Suspended: " in output
    assert left_over(folder) == []


def test_a_job_that_fails_says_why(inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with running(inputs, folder, "--environment", str(tmp_path)) as process:
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1, output
    assert "EnvironmentNotImportable: spec.environment.entrypoint: " in output
    assert "No module named 'environment'" in output
    assert left_over(folder) == []
