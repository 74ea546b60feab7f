"""How the coordinator's process ends: on a mistake that a person must correct, and on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from role_keys import written
from rollout_server import job_config
from toy_tokenizer import tokenizer

from headway_api import names
from headway_api.exits import PERMANENT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def start(folder: Path) -> subprocess.Popen[str]:
    """Start `python -m headway_coordinator` over a folder, at a free port."""
    port = free_port()
    config = job_config(folder, folder / "model", data={"train": {"uri": f"file://{folder}/train.jsonl"}})
    (folder / "job.json").write_text(config.model_dump_json(by_alias=True))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")} | {
        names.ENV_CONFIG: str(folder / "job.json"),
        names.ENV_KEYS: str(written(folder, names.COORDINATOR)),
        names.ENV_CACHE: str(folder / "cache"),
        names.ENV_COORDINATOR_PORT: str(port),
    }
    command = [sys.executable, "-m", "headway_coordinator"]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def events(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def test_missing_data_is_reported_and_ends_the_coordinator(tmp_path: Path) -> None:
    out, err = (process := start(tmp_path)).communicate(timeout=120)
    assert process.returncode == PERMANENT, err
    assert "DatasetNotFound: spec.data.train.uri" in err
    last = [event["status"] for event in events(out) if event["event"] == "status"][-1]
    assert last["preflight"]["state"] == "Failed"
    assert last["preflight"]["checks"][-1]["field"] == "spec.data.train.uri"


def test_sigterm_ends_the_coordinator_at_once_without_success(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n' * 200)
    tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 4096}')
    process = start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if '"Tokenizer"' in line:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert any(event["event"] == "stopped" for event in events(out))
