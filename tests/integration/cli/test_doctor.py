"""`headway doctor` with real models: it prints its findings, trains nothing, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import EXAMPLE, ROOT
from role_keys import TO_ROLLOUT
from rollout_server import RolloutServer

from headway_analysis.report.page import reading, training
from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_api.model_names import BASE_MODEL
from headway_cli import stored_run
from headway_cli.local.pod import left_over
from headway_cli.where import LocalJob

sys.path.insert(0, str(ROOT / "hack" / "demo"))
from headway_demo import quickstart
from headway_demo.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

CHECKS = {"foothold", "reward-variance", "scorer-agrees"}


@pytest.fixture(scope="module")
def inputs() -> Path:
    """The quickstart's model and rows."""
    return Path(quickstart.inputs(Settings.from_environ({}).cache, 0))


@pytest.fixture(scope="module")
def endpoint(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutServer]:
    """The quickstart's model behind vLLM's own chat completions."""
    flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    rollout = {"engine": {"extraArgs": flags}, "maxConcurrency": 8, "sampling": {"maxTokens": 64}}
    folder, model = tmp_path_factory.mktemp("endpoint"), {"lora": {"rank": 8, "alpha": 16}}
    with RolloutServer(folder, inputs / "model", model=model, rollout=rollout) as server:
        server.wait_ready()
        yield server


def doctor(folder: Path, inputs: Path, *options: str, **variables: str) -> tuple[Json, str]:
    """The command's output and its notes."""
    settings = {
        "model.base": f"file://{inputs}/model",
        "data.train.uri": f"file://{inputs}/train.jsonl",
        "data.validation.uri": f"file://{inputs}/validation.jsonl",
    }
    command = [sys.executable, "-m", "headway_cli", "doctor", str(EXAMPLE / "job.yaml"), "--episodes", "24"]
    command += [word for path, value in settings.items() for word in ("--set", f"spec.{path}={value}")]
    done = subprocess.run(
        [*command, *options, "--output", "json"],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Json = json.loads(done.stdout)
    return found, done.stderr


def test_findings_are_reported_and_nothing_is_trained(tmp_path: Path, inputs: Path) -> None:
    found, notes = doctor(tmp_path, inputs)
    assert found["state"] == "Passed"
    assert {each["check"] for each in found["findings"]} >= CHECKS
    assert found["episodes"] >= 24
    folder = tmp_path / ".headway" / "sop-quickstart-doctor"
    assert left_over(folder) == []
    assert JobFolder(folder).whole()["status"].get("progress", {}).get("step", 0) == 0
    assert list(folder.glob("artifacts/*/*/*/steps/*")) == [], "no learner took a step"
    assert f"{folder}/artifacts" in notes
    page = training.page(reading.training(stored_run.opened(LocalJob(folder)).files))
    _, section = page.split('aria-label="Preflight"')
    shown = [re.findall("<td[^>]*>(.*?)</td>", row) for row in section.split("</table>")[0].split("<tr>")[2:]]
    assert {check: verdict for verdict, check, *_ in shown} == {
        each["check"]: each["verdict"] for each in found["findings"]
    }


def test_a_model_at_an_endpoint_plays_instead(tmp_path: Path, inputs: Path, endpoint: RolloutServer) -> None:
    found, _ = doctor(
        tmp_path,
        inputs,
        *("--endpoint", f"{endpoint.url}/v1", "--model", BASE_MODEL, "--token-env", "KEY_OF_A_TEST"),
        KEY_OF_A_TEST=TO_ROLLOUT,
    )
    verdicts = {each["check"]: each["verdict"] for each in found["findings"]}
    assert found["state"] == "Passed", found
    assert found["episodes"] >= 24
    assert {check: verdicts[check] for check in CHECKS} == dict.fromkeys(CHECKS, "Pass"), found
    assert (verdicts["tool-calls-parse"], verdicts["throughput"]) == ("Unknown", "Unknown")
    folder = tmp_path / ".headway" / "sop-quickstart-doctor"
    assert left_over(folder) == []
    roles = {path.name.removeprefix("sop-quickstart-").split("-")[0] for path in folder.glob("logs/*.log")}
    assert not {"rollout", "learner"} & roles, "neither starts"
    assert "coordinator" in roles
    usage = JobFolder(folder).whole()["status"]["usage"]
    assert usage["endpointTokens"] > 0
    kept = [path for path in folder.rglob("*") if path.is_file() and TO_ROLLOUT in path.read_text("latin-1")]
    assert kept == [], "the token stays nowhere"
