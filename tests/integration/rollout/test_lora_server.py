"""The rollout server with adapters, on the real vLLM: tokens in and out, versions, proofs and refusals.

The tests of this module share one server and run in order; the last one makes it fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from role_keys import TO_LEARNER, TO_ROLLOUT
from rollout_server import (
    CANARY_TOKENS,
    RolloutServer,
    publish_adapter,
    request,
    score,
    version,
)

from headway_api.exits import RETRIABLE
from headway_api.model_names import adapter_name
from headway_api.records import Canary, WeightsManifest
from headway_api.store import digest
from headway_coordinator.engines import vllm
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Endpoint
from headway_rollout import hang
from headway_rollout.engine import Engine
from headway_rollout.launch import KEEP_ADAPTERS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LORA = {"lora": {"rank": 8, "alpha": 16}}
HELD_OUT = {"train": {"uri": "file:///train.jsonl"}, "validation": {"uri": "file:///held-out.jsonl"}}
"""Data with held-out rows, for which the engine reserves a place for another adapter."""
PROMPTS = [[3 + (7 * n + at) % 90 for at in range(40)] for n in range(6)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[RolloutServer]:
    with RolloutServer(tmp_path_factory.mktemp("server"), tiny, model=LORA, data=HELD_OUT) as server:
        assert server.status("/healthz") in (0, 200)
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def first(server: RolloutServer, store: Path, tiny: Path) -> WeightsManifest:
    """The manifest of version 0.1, which is loaded."""
    manifest = publish_adapter(store, tiny, version(1), seed=1)
    state = server.post(manifest)
    assert state.ready, state.error
    assert state.version == version(1)
    assert state.canary_error is not None
    assert state.canary_error < 1e-4
    return manifest


def with_file(manifest: WeightsManifest, store: Path, at: int, name: str, content: bytes) -> WeightsManifest:
    """The manifest again as version `at`, with other content in one file, and with digests that match."""
    source = Path(manifest.uri.removeprefix("file://"))
    folder = store / "changed" / f"{at}"
    shutil.copytree(source, folder)
    (folder / name).write_bytes(content)
    files = [digest(folder / file.name) for file in manifest.files]
    return manifest.model_copy(update={"version": version(at), "uri": f"file://{folder}", "files": files})


def until(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def sampled(choice: dict[str, Any]) -> list[float]:
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


def test_before_a_manifest_a_server_has_only_the_base_model(server: RolloutServer, tiny: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    assert server.state().version is None
    assert not server.state().ready
    [choice] = server.generate("base", CANARY_TOKENS, max_tokens=16, ignore_eos=True)["choices"]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    expected = score(model, CANARY_TOKENS + choice["token_ids"])[-16:]
    assert sampled(choice) == pytest.approx(expected, abs=1e-4)


def test_log_probabilities_are_those_after_the_temperature(server: RolloutServer, tiny: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    [choice] = server.generate("base", CANARY_TOKENS, max_tokens=1, temperature=0.5)["choices"]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([CANARY_TOKENS])).logits[0, -1] / 0.5
    expected = torch.log_softmax(logits, -1)[choice["token_ids"][0]].item()
    assert sampled(choice) == pytest.approx([expected], abs=1e-4)


def test_prompt_tokens_from_the_prefix_cache_are_counted(server: RolloutServer) -> None:
    prompt = CANARY_TOKENS + [77] * 60
    server.generate("base", prompt)
    usage = server.generate("base", prompt)["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < len(prompt)


def test_scrapers_reach_the_engines_metrics_and_nothing_else(server: RolloutServer) -> None:
    code, text = request("GET", f"{server.metrics_url}/metrics")
    assert code == 200
    found = hang.read(text)
    assert found is not None
    assert found.tokens > 0
    reached = {path: request("GET", server.metrics_url + path)[0] for path in ("/health", "/v1/models")}
    changing = ("/pause", "/update_weights", "/collective_rpc", "/v1/load_lora_adapter", "/metrics")
    reached |= {path: request("POST", server.metrics_url + path, "{}")[0] for path in changing}
    assert reached == {**dict.fromkeys(reached, 404), "/metrics": 405}
    assert request("GET", f"{server.url}/health")[0] == 200, "it is there, where the coordinator asks"


def test_no_route_of_vllm_answers_without_a_key(server: RolloutServer, first: WeightsManifest) -> None:
    """The test tries every route that vLLM documents, with its development endpoints, and some others."""
    before = server.state()
    assert before.version is not None, first
    code, text = request("GET", f"{server.url}/openapi.json", token=TO_ROLLOUT)
    assert code == 200
    documented = {
        (method.upper(), re.sub(r"{[^}]*}", "x", path))
        for path, methods in json.loads(text)["paths"].items()
        for method in methods
    }
    changing = {"/pause", "/resume", "/collective_rpc", "/update_weights", "/v1/load_lora_adapter"}
    assert {path for method, path in documented if method == "POST"} >= changing | {"/inference/v1/generate"}
    others = {
        ("GET", path) for path in ("/metrics", "/metrics/", "/docs", "/openapi.json", "/no-such", "/health/")
    }
    preflights = {("OPTIONS", path) for _, path in documented}
    routes = (documented | others | preflights) - {("GET", "/health")}
    for token in (None, "wrong", TO_LEARNER):
        answers = {
            (method, path): request(method, server.url + path, "{}" if method == "POST" else None, token)
            for method, path in routes
        }
        assert {status for status, _ in answers.values()} == {401}
    assert request("GET", f"{server.url}/health") == (200, "")
    assert server.state() == before
    server.generate("base", CANARY_TOKENS)


def test_an_adapter_arrives_and_changes_the_model(server: RolloutServer, first: WeightsManifest) -> None:
    found = server.score(adapter_name(first.version), CANARY_TOKENS[:9])
    assert found == pytest.approx(first.canary.logprobs[:8], abs=1e-4)
    assert server.score("base", CANARY_TOKENS[:9]) != pytest.approx(first.canary.logprobs[:8], abs=0.01)


def test_the_same_manifest_again_changes_nothing(server: RolloutServer, first: WeightsManifest) -> None:
    assert server.post(first) == server.state()


def test_without_the_token_no_weights_are_taken(server: RolloutServer, first: WeightsManifest) -> None:
    assert request("POST", f"{server.agent_url}/v1/weights", first.model_dump_json(), "wrong")[0] == 401
    assert request("POST", f"{server.agent_url}/v1/weights", "{}", TO_ROLLOUT)[0] == 400


def test_five_versions_while_generating(
    server: RolloutServer, first: WeightsManifest, store: Path, tiny: Path
) -> None:
    """Each version is proven while others are sampled. Versions that are still loaded keep their answers."""
    stop, done, broken = threading.Event(), [], []
    newest = [adapter_name(first.version)]

    def generate() -> None:
        while not stop.is_set():
            name = newest[0]
            try:
                done.append((name, server.generate(name, CANARY_TOKENS, max_tokens=40, ignore_eos=True)))
            except AssertionError as error:
                broken.append((name, str(error)))

    manifests = [publish_adapter(store, tiny, version(step), seed=step) for step in range(2, 7)]
    threads = [threading.Thread(target=generate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for manifest in manifests:
        state = server.post(manifest)
        assert state.ready, state.error
        newest[0] = adapter_name(manifest.version)
        until(lambda: broken or newest[0] in {name for name, _ in done})
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not broken
    assert all(answer["model"] == name for name, answer in done)
    held = sorted(path.name for path in (server.cache / "weights").iterdir())
    assert [f"0.{step}" for step in range(7 - KEEP_ADAPTERS, 7)] == held[-KEEP_ADAPTERS:]
    assert len(held) <= KEEP_ADAPTERS + 2
    for manifest in manifests[-KEEP_ADAPTERS:]:
        found = server.score(adapter_name(manifest.version), CANARY_TOKENS[:9])
        assert found == pytest.approx(manifest.canary.logprobs[:8], abs=1e-4)


def test_a_version_that_was_dropped_is_refused_by_name(server: RolloutServer) -> None:
    body = {"model": "policy-0.1", "token_ids": [5, 6], "sampling_params": {"max_tokens": 1}}
    code, text = request("POST", f"{server.url}/inference/v1/generate", json.dumps(body), TO_ROLLOUT)
    assert code == 404, text


def test_a_corrupted_file_is_reported_and_the_engine_stays(
    server: RolloutServer, store: Path, tiny: Path
) -> None:
    manifest = publish_adapter(store, tiny, version(10), seed=10)
    path = Path(manifest.uri.removeprefix("file://")) / "adapter_model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + bytes(4 if whole[-4:] != bytes(4) else 3))
    state = server.post(manifest)
    assert state.error is not None
    assert state.error.startswith("CorruptFileError")
    assert (state.version, state.ready) == (version(6), True)
    assert server.status("/readyz") == 200
    path.write_bytes(whole)
    state = server.post(manifest)
    assert (state.version, state.ready, state.error) == (version(10), True, None)


def test_an_adapter_of_another_rank_is_refused_before_the_engine(
    server: RolloutServer, store: Path, tiny: Path
) -> None:
    state = server.post(publish_adapter(store, tiny, version(11), seed=11, rank=16))
    assert state.error is not None
    assert "rank is 16" in state.error
    assert (state.version, state.ready) == (version(10), True)


def test_missing_weights_are_reported(server: RolloutServer, first: WeightsManifest) -> None:
    gone = first.model_copy(update={"version": version(12), "uri": first.uri + "-nowhere"})
    state = server.post(gone)
    assert state.error is not None
    assert state.error.startswith("ObjectNotFoundError")
    assert server.status("/readyz") == 200


def a_base(canary: Canary | None = None) -> WeightsManifest:
    return WeightsManifest(version=version(0), kind="base", uri="file:///base", files=[], canary=canary)


def greedy(prompt: list[int], tokens: int = 24) -> vllm.Request:
    return vllm.Request(prompt, max_tokens=tokens, temperature=0.0, top_p=1.0, seed=1, stop_token_ids=[])


@asynccontextmanager
async def fleets(server: RolloutServer, **wanted: WeightsManifest) -> AsyncIterator[dict[str, Fleet]]:
    """A fleet for each slot, all over the same server. Each fleet has the server in rotation."""

    async def discover() -> set[Endpoint]:
        return {Endpoint(server.url, server.agent_url)}

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
        found = {slot: Fleet(http, TO_ROLLOUT, discover, slot=slot) for slot in wanted}
        running = [tasks.create_task(fleet.run()) for fleet in found.values()]
        for slot, fleet in found.items():
            await fleet.want(wanted[slot])
            async with asyncio.timeout(60):
                await fleet.ready()
        try:
            yield found
        finally:
            for task in running:
                task.cancel()


@pytest.fixture(scope="module")
def beside(store: Path, tiny: Path) -> WeightsManifest:
    """An adapter for another slot, of the same version as the trained policy."""
    return publish_adapter(store / "beside", tiny, version(10), seed=20)


async def test_slots_and_the_base_sampled_at_once_match_each_alone(
    server: RolloutServer, store: Path, tiny: Path, beside: WeightsManifest
) -> None:
    """By now as many adapters were loaded as the engine has places, so each place holds one."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = publish_adapter(store, tiny, version(10), seed=10)
    wanted = {"policy": policy, "validation": beside, "plain": a_base()}
    alone: dict[str, list[vllm.Sampled]] = {}
    for slot, manifest in wanted.items():
        async with fleets(server, **{slot: manifest}) as found:
            asked = (found[slot].generate(f"{n}", greedy(prompt), 120) for n, prompt in enumerate(PROMPTS))
            alone[slot] = [await one for one in asked]
    tokens = {slot: [sampled.tokens for sampled in found] for slot, found in alone.items()}
    assert tokens["policy"] != tokens["validation"] != tokens["plain"] != tokens["policy"]
    assert all(sampled.cached_tokens == 0 for found in alone.values() for sampled in found)
    model, plain = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32), alone["plain"][0]
    expected = score(model, PROMPTS[0] + plain.tokens)[-len(plain.tokens) :]
    assert plain.logprobs == pytest.approx(expected, abs=1e-4)
    async with fleets(server, **wanted) as found:
        asked_at_once = {
            (slot, n): asyncio.create_task(found[slot].generate(f"{n}", greedy(prompt), 120))
            for n, prompt in enumerate(PROMPTS)
            for slot in wanted
        }
        for (slot, n), one in asked_at_once.items():
            sampled = await one
            assert sampled.tokens == alone[slot][n].tokens
            assert sampled.logprobs == pytest.approx(alone[slot][n].logprobs, abs=1e-4)
            assert [span.version for span in sampled.versions] == [wanted[slot].version]
        assert [fleet.reroutes for fleet in found.values()] == [0, 0, 0]


def test_a_slot_more_than_the_engine_has_places_for_is_refused(
    server: RolloutServer, beside: WeightsManifest
) -> None:
    where = f"{server.agent_url}/v1/weights?slot=third"
    code, text = request("POST", where, beside.model_dump_json(), TO_ROLLOUT)
    assert code == 409, text
    assert "room for 2 adapters" in text


def test_the_wrong_adapter_in_a_slot_leaves_the_others_serving(
    server: RolloutServer, first: WeightsManifest, store: Path, tiny: Path, beside: WeightsManifest
) -> None:
    other = publish_adapter(store / "beside", tiny, version(11), seed=21)
    wrong = Path(other.uri.removeprefix("file://")) / "adapter_model.safetensors"
    state = server.post(with_file(first, store, 12, wrong.name, wrong.read_bytes()), "validation")
    assert (state.version, state.ready, state.reason) == (None, False, "VerificationFailed")
    assert server.state("validation") == state
    assert refused(server, "validation-0.12")
    assert server.status("/readyz") == 200
    assert server.state().ready
    assert server.state("plain").ready
    server.generate("policy-0.10", CANARY_TOKENS)
    state = server.post(a_base(first.canary), "impostor")
    assert (state.ready, state.reason) == (False, "VerificationFailed")
    assert server.post(beside, "validation").ready


def refused(server: RolloutServer, model: str) -> bool:
    body = {"model": model, "token_ids": [5, 6], "sampling_params": {"max_tokens": 1}}
    return request("POST", f"{server.url}/inference/v1/generate", json.dumps(body), TO_ROLLOUT)[0] == 404


async def test_a_slot_is_released_once_no_request_uses_it(
    server: RolloutServer, beside: WeightsManifest
) -> None:
    folder = server.cache / "weights" / "validation" / str(beside.version)
    async with fleets(server, validation=beside) as found:
        long = asyncio.create_task(found["validation"].generate("long", greedy(PROMPTS[0], 800), 120))
        await asyncio.to_thread(until, lambda: 'running_lora_adapters="validation-0.10"' in server.metrics())
        await found["validation"].release()
        assert server.state("validation").version is None
        assert folder.exists()
        assert (await long).versions[0].version == beside.version
        await asyncio.to_thread(until, lambda: not folder.exists())
    assert refused(server, "validation-0.10")
    assert server.state().ready
    server.generate("policy-0.10", CANARY_TOKENS)
    server.generate("base", CANARY_TOKENS)


@pytest.mark.ci
async def test_an_engine_that_hangs_while_it_has_no_requests_is_found(
    server: RolloutServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"LOOK_SECONDS": 0.2, "PROBE_SECONDS": 1.0, "HUNG_SECONDS": 6.0}.items():
        monkeypatch.setattr(hang, name, seconds)
    talking = {server.events("engine starting")[0]["pid"], server.front_process()}
    computing = set(server.engine_processes()) - talking
    async with aiohttp.ClientSession() as http:
        finding = asyncio.create_task(hang.found(Engine(http, server.url, TO_ROLLOUT)))
        await asyncio.wait({finding}, timeout=10)
        assert not finding.done(), "it answers all it is asked for"
        try:
            for pid in computing:
                os.kill(pid, signal.SIGSTOP)
            assert "no token" in await asyncio.wait_for(finding, 60)
            assert server.status("/readyz") == 200, "its own process tells nobody"
        finally:
            for pid in computing:
                os.kill(pid, signal.SIGCONT)
    server.generate("base", CANARY_TOKENS)


def test_the_wrong_adapter_fails_the_canary_and_ends_the_server(
    server: RolloutServer, first: WeightsManifest, store: Path, tiny: Path
) -> None:
    other = publish_adapter(store, tiny, version(13), seed=13)
    wrong = Path(other.uri.removeprefix("file://")) / "adapter_model.safetensors"
    state = server.post(with_file(first, store, 14, wrong.name, wrong.read_bytes()))
    assert not state.ready
    assert state.version is None
    assert state.error is not None
    assert "NotVerifiedError" in state.error
    assert state.canary_error is not None
    assert state.canary_error > 0.1
    assert server.state() == state
    assert server.status("/readyz") == 503
    assert server.process.wait(60) == RETRIABLE
    assert "WeightsNotVerified" in server.tail()
    assert server.engine_processes() == []
