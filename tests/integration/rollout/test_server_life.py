"""How the rollout server ends: by SIGTERM, by kill -9 of each of its parts, or by an unloadable model."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rollout_server import CANARY_TOKENS, TOLERANCE, RolloutServer, eval_config, kill, score, version
from tiny_model import write_model
from transformers import AutoModelForCausalLM

from headway_api.exits import PERMANENT, RETRIABLE
from headway_api.records import Canary, WeightsManifest

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(900)]

LORA = {"lora": {"rank": 8, "alpha": 16}}


def a_base(model: Path) -> WeightsManifest:
    """The base model that a server loaded, with the log-probabilities that `model` computes."""
    found = score(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), CANARY_TOKENS)
    canary = Canary(tokens=CANARY_TOKENS, logprobs=found, tolerance=TOLERANCE)
    return WeightsManifest(version=version(7), kind="base", uri=f"file://{model}", files=[], canary=canary)


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@pytest.mark.long
def test_kill_of_the_server_leaves_no_engine_process(tmp_path: Path, tiny: Path) -> None:
    with RolloutServer(tmp_path, tiny, model=LORA) as server:
        server.wait_ready()
        assert len(server.engine_processes()) >= 3
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(30)
        until(lambda: server.engine_processes() == [])


def test_when_the_engine_dies_the_server_says_so_and_ends(tmp_path: Path, tiny: Path) -> None:
    """This server evaluates a plain model, so its engine takes no weights."""
    with RolloutServer(tmp_path, tiny, eval_config(tmp_path, tiny, {"plain": None})) as server:
        server.wait_ready()
        right = a_base(tiny)
        wrong = a_base(write_model(tmp_path / "other", seed=1))
        state = server.post(right, "plain")
        assert (state.ready, state.version) == (True, right.version), state.error
        assert server.post(wrong, "trained").reason == "VerificationFailed"
        assert server.state("plain").ready
        assert server.status("/readyz") == 200
        kill(server.front_process())
        assert server.process.wait(60) == RETRIABLE
        assert "EngineDied: vLLM died of SIGKILL (killed)" in server.tail()
        until(lambda: server.engine_processes() == [])


def test_sigterm_ends_the_server_while_the_model_loads(tmp_path: Path, tiny: Path) -> None:
    with RolloutServer(tmp_path, tiny, model=LORA) as server:
        until(lambda: bool(server.events("engine starting")))
        assert server.status("/healthz") == 200
        assert server.status("/readyz") == 503
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        until(lambda: server.engine_processes() == [])


@pytest.mark.long
def test_a_model_that_vllm_cannot_load_is_a_mistake_of_the_spec(tmp_path: Path, tiny: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"hidden_size": 96, "head_dim": 32}))
    with RolloutServer(tmp_path / "server", broken, model=LORA) as server:
        assert server.process.wait(600) == PERMANENT
        last = server.tail().splitlines()[-1]
        assert last.startswith("ModelNotLoadable: spec.model.base: ")
        assert "Error" in last


def test_a_base_model_that_is_not_there_is_a_mistake_of_the_spec(tmp_path: Path) -> None:
    with RolloutServer(tmp_path, f"file://{tmp_path}/nothing", model=LORA) as server:
        assert server.process.wait(180) == RETRIABLE, "the preflight has seen it"
        assert "ModelUnavailable: spec.model.base: " in server.tail()
