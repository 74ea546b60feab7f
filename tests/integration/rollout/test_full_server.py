"""The rollout server with full weights: a reload must also replace the output head."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rollout_server import CANARY_TOKENS, RolloutServer, publish_full, score, version
from tiny_model import write_model

from headway_api.exits import RETRIABLE
from headway_api.records import Canary, WeightsManifest
from headway_api.store import digest

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=["tied", "untied"])
def tied(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tied")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tied: bool) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tied: bool) -> Iterator[RolloutServer]:
    base = write_model(tmp_path_factory.mktemp("base"), seed=0, tied=tied)
    with RolloutServer(tmp_path_factory.mktemp("server"), base, model={"full": {}}) as server:
        server.wait_ready()
        yield server


def expected(folder: str, tokens: list[int]) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    return score(
        AutoModelForCausalLM.from_pretrained(folder.removeprefix("file://"), dtype=torch.float32), tokens
    )


def base_model(step: int) -> WeightsManifest:
    return WeightsManifest(version=version(step, 10**9), kind="base", uri="file:///base", files=[])


def test_a_server_is_the_base_model_until_it_takes_weights(
    server: RolloutServer, store: Path, tied: bool
) -> None:
    state = server.post(base_model(0))
    assert (state.ready, state.version, state.error) == (True, version(0, 10**9), None)
    assert server.post(publish_full(store, version(0), seed=9, tied=tied)).version == version(0)
    refused = server.post(base_model(1))
    assert refused.version == version(0), "what it holds stays"
    assert "replaced the base model" in (refused.error or "")


def test_new_weights_give_a_plain_forwards_log_probabilities(
    server: RolloutServer, store: Path, tied: bool
) -> None:
    for step in (1, 2):
        manifest = publish_full(store, version(step), seed=step, tied=tied)
        state = server.post(manifest)
        assert (state.ready, state.version, state.error) == (True, version(step), None)
        [choice] = server.generate("base", CANARY_TOKENS, max_tokens=20, ignore_eos=True)["choices"]
        found = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert found == pytest.approx(
            expected(manifest.uri, CANARY_TOKENS + choice["token_ids"])[-20:], abs=1e-4
        )
        assert choice["weight_versions"] == [{"version": f"0.{step}", "start": 0, "end": 20}]


def in_flight(server: RolloutServer, prompt: list[int], length: int, manifest: WeightsManifest) -> Any:
    """A turn that is sampled while the server takes other weights."""
    answers = []
    asked = threading.Thread(
        target=lambda: answers.append(server.generate("base", prompt, max_tokens=length, ignore_eos=True))
    )
    asked.start()
    deadline = time.monotonic() + 60
    running = 'vllm:num_requests_running{engine="0",model_name="base"} 1.0'
    while asked.is_alive() and running not in server.metrics():
        assert time.monotonic() < deadline, "the request never ran"
        time.sleep(0.05)
    assert server.post(manifest).ready
    asked.join(120)
    [choice] = answers[0]["choices"]
    return choice


def test_a_request_in_flight_goes_on_and_marks_the_new_weights(
    server: RolloutServer, store: Path, tied: bool
) -> None:
    steps = range(3, 7)
    manifests = {step: publish_full(store, version(step), seed=step, tied=tied) for step in steps}
    assert server.post(manifests[3]).ready
    prompt, length = [5, 6, 7] * 20, 900
    for old, new in pairwise(steps):
        choice = in_flight(server, prompt, length, manifests[new])
        spans = choice["weight_versions"]
        if [span["version"] for span in spans] != [f"0.{old}"]:
            break  # if not, the turn ended before the new weights arrived
    assert [span["version"] for span in spans] == [f"0.{old}", f"0.{new}"]
    assert [span["start"] for span in spans[1:]] == [span["end"] for span in spans[:-1]]
    assert (spans[0]["start"], spans[-1]["end"]) == (0, length)
    found = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    for span in spans:
        step = int(span["version"].partition(".")[2])
        by_forward = expected(manifests[step].uri, prompt + choice["token_ids"])[-length:]
        at = slice(span["start"], span["end"])
        assert found[at] == pytest.approx(by_forward[at], abs=1e-3)


def test_a_tensor_of_another_shape_is_refused_before_the_engine(
    server: RolloutServer, store: Path, tied: bool
) -> None:
    from safetensors.torch import load_file, save_file

    held = server.state().version
    manifest = publish_full(store, version(8), seed=8, tied=tied)
    path = Path(manifest.uri.removeprefix("file://")) / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.norm.weight": tensors["model.norm.weight"][:64].clone()}, path)
    files = [digest(path) if file.name == path.name else file for file in manifest.files]
    state = server.post(manifest.model_copy(update={"files": files}))
    assert state.error is not None
    assert "model.norm.weight has shape [64]" in state.error
    assert (state.version, state.ready) == (held, True)
    assert server.generate("base", [5], max_tokens=1)["choices"][0]["weight_versions"][0]["version"] == str(
        held
    )


def test_a_canary_of_other_weights_ends_the_server(server: RolloutServer, store: Path, tied: bool) -> None:
    manifest = publish_full(store, version(9), seed=9, tied=tied)
    wrong = [value - 0.5 for value in manifest.canary.logprobs]
    canary = Canary(tokens=manifest.canary.tokens, logprobs=wrong, tolerance=manifest.canary.tolerance)
    state = server.post(manifest.model_copy(update={"canary": canary}))
    assert not state.ready
    assert state.canary_error == pytest.approx(0.5, abs=1e-3)
    assert server.process.wait(60) == RETRIABLE
    assert server.engine_processes() == []
