"""Each template of `headway init` is checked, gets a tiny model, and trains without a change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from first_answer import until_it_answers
from ports import free_port

from headway_api.job_folder import JobFolder
from headway_cli import scaffold
from headway_cli.scaffold import Template

SECONDS = 600
TAUGHT_SECONDS = "40"
STEPS = 2
SMALL = {"schedule.maxSteps": STEPS, "evaluation.everySteps": STEPS}
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(4 * SECONDS)]


def headway(project: Path, *words: str) -> str:
    """What a command printed in the project's folder. The command must succeed."""
    command = [sys.executable, "-m", "headway_cli", *words]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def agent(project: Path, template: Template) -> Iterator[list[str]]:
    """Start the project's agent in another process, if it has one. Yields the options that name its port."""
    if template is not Template.AGENT_HTTP:
        yield []
        return
    port, log = free_port(), project.parent / "agent.log"
    with log.open("wb") as written:
        running = subprocess.Popen(
            [sys.executable, "agent.py"],
            cwd=project,
            env={**os.environ, "PORT": str(port)},
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        until_it_answers(running, f"http://127.0.0.1:{port}/", log)
        yield ["--set", f"spec.agent.http.service.port={port}"]
    finally:
        running.terminate()
        running.wait(timeout=10)


@pytest.mark.parametrize("template", Template)
def test_a_template_trains_as_it_is_written(template: Template, tmp_path: Path) -> None:
    project = tmp_path / "desk"
    scaffold.write(project, template)
    made = json.loads(headway(project, "tiny-model", "--seconds", TAUGHT_SECONDS, "--output", "json"))
    assert made["success"]["greedy"]["rows"] > 0
    headway(project, "check")
    small = [word for path, value in SMALL.items() for word in ("--set", f"spec.{path}={value}")]
    with agent(project, template) as options:
        output = headway(project, "run", "job.yaml", "--local", *small, *options)
    status = JobFolder(project / ".headway" / "desk").whole()["status"]
    assert (status["state"], status["progress"]["step"]) == ("Complete", STEPS), output
    assert status["preflight"]["state"] in ("Passed", "Warned"), output
    run = Path(status["artifacts"]["uri"].removeprefix("file://"))
    assert {int(step.name) for step in (run / "trajectories" / "validation").iterdir()} == {0, STEPS}
