"""`headway doctor` with a real model: its findings are told, nothing is trained, and nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import EXAMPLE, ROOT

from headway_api.job_folder import JobFolder
from headway_cli.local.pod import left_over

sys.path.insert(0, str(ROOT / "hack" / "demo"))
from headway_demo import quickstart
from headway_demo.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]


def test_the_findings_are_told_and_nothing_is_trained(tmp_path: Path) -> None:
    inputs = quickstart.inputs(Settings.from_environ({}).cache, 0)
    settings = {
        "model.base": f"file://{inputs}/model",
        "data.train.uri": f"file://{inputs}/train.jsonl",
        "data.validation.uri": f"file://{inputs}/validation.jsonl",
    }
    command = [sys.executable, "-m", "headway_cli", "doctor", str(EXAMPLE / "job.yaml"), "--episodes", "24"]
    command += [word for path, value in settings.items() for word in ("--set", f"spec.{path}={value}")]
    done = subprocess.run(
        [*command, "--output", "json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["state"] == "Passed"
    assert {"foothold", "reward-variance", "scorer-agrees"} <= {each["check"] for each in found["findings"]}
    assert found["episodes"] >= 24
    folder = tmp_path / ".headway" / "sop-quickstart-doctor"
    assert left_over(folder) == []
    assert JobFolder(folder).whole()["status"].get("progress", {}).get("step", 0) == 0
    assert list(folder.glob("artifacts/*/*/*/steps/*")) == [], "no learner took a step"
    assert f"{folder}/artifacts" in done.stderr
