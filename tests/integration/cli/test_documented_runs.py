"""Every documented command that reads a job's folder, run beside a job of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib import request

import pytest
import yaml
from chaos import EXAMPLE, ROOT
from doc_runs import CommandRunner, Entry, run_by
from doc_shell import DocShell
from ports import free_port

from headway_api.model_names import BASE_MODEL
from headway_cli.commands.common import INTERRUPTED

sys.path.insert(0, str(ROOT / "hack" / "demo"))

import tiered_rows

from headway_demo import quickstart
from headway_demo.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(900)]
STEPS, VALIDATED = 6, 5
JOB = ".headway/my-job"
SHORTER, RUN = "--set spec.schedule.maxSteps=3", "headway run "


def in_order(entry: Entry) -> int:
    """The sort key of a command: the job of three steps, the whole job that replaces it, then readers."""
    return (SHORTER, RUN, "").index(next(each for each in (SHORTER, RUN, "") if each in entry.texts[0]))


def slow(entry: Entry) -> bool:
    """Whether a command takes minutes."""
    return "check_learnable" in entry.texts[0]


ENTRIES = [
    pytest.param(entry, id=str(entry), marks=[pytest.mark.long] if slow(entry) else [])
    for entry in sorted(run_by(CommandRunner.RUN), key=in_order)
]


def spec(folder: Path, inputs: Path) -> dict[str, Any]:
    """The reader's changes to the spec of the example's job."""
    rows = {
        split: {"uri": f"file://{folder}/{split}.jsonl", "taskColumn": tiered_rows.COLUMN}
        for split in tiered_rows.SPLITS
    }
    return {
        "model": {"base": f"file://{inputs}/model"},
        "data": rows,
        "algorithm": {"batchSize": 2, "groupSize": 4},
        "schedule": {"maxSteps": STEPS},
        "checkpoints": {"everySteps": 1},
        "evaluation": {"everySteps": VALIDATED, "atStart": False, "maxRows": 4},
        "preflight": {"episodes": 0},
    }


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> DocShell:
    """A shell in a copy of the example, with a small job that the reader began."""
    folder = tmp_path_factory.mktemp("reader") / "desk"
    shutil.copytree(EXAMPLE, folder)
    inputs = quickstart.inputs(Settings.from_environ({}).cache, 0)
    tiered_rows.write(inputs, folder)
    document = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    document["metadata"]["name"] = "my-job"
    document["spec"] = quickstart.merged(document["spec"], spec(folder, inputs))
    (folder / "my-job.yaml").write_text(yaml.safe_dump(document))
    (folder / "base-model").symlink_to(inputs / "model")
    names = {
        r"--local$": "--local --fresh",
        r"--row 3\b": "--row 0",
        r"--task refunds": "--task gold",
        r"--step 57\b": f"--step {STEPS}",
    }
    return DocShell(folder, names)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_command_of_a_page_succeeds(shell: DocShell, entry: Entry) -> None:
    if "/one" in entry.texts[0]:
        for name in ("one", "two"):
            shutil.copytree(shell.folder / JOB, shell.folder / ".headway" / name)
    shown = shell.type(*entry.texts)
    assert (shown.output + shown.errors).strip(), "it shows nothing"


def test_the_jobs_weights_are_served_beside_their_base(shell: DocShell, tmp_path: Path) -> None:
    """A real vLLM serves them until Ctrl-C. The commands above have trained the job."""
    log, port = tmp_path / "log", free_port()
    command = [sys.executable, "-m", "headway_cli", "serve", JOB, "--port", str(port)]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=shell.folder, env=environ, stdout=output, stderr=output)
    try:
        until_served(process, port, log)
        answers = {name: asked(port, name) for name in ("my-job", BASE_MODEL)}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == INTERRUPTED, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert [answers[name]["model"] for name in answers] == ["my-job", BASE_MODEL]
    trained, before = (
        [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]
        for answer in answers.values()
    )
    assert trained != before, "the adapter changes nothing"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "something still listens"


def until_served(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until vLLM serves. The test's own timeout bounds the wait."""
    while True:
        assert process.poll() is None, log.read_text()
        with suppress(OSError), request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
            names = {each["id"] for each in json.load(answer)["data"]}
            assert names == {"my-job", BASE_MODEL}
            return
        time.sleep(0.2)


def asked(port: int, model: str) -> dict[str, Any]:
    """A model's greedy answer, with the log-probabilities of its tokens."""
    body = {"model": model, "messages": [{"role": "user", "content": "Refund order 7."}]}
    body |= {"max_tokens": 8, "temperature": 0, "logprobs": True}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    with request.urlopen(request.Request(url, json.dumps(body).encode(), headers)) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
