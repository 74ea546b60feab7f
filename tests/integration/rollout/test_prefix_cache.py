"""The prefix cache of the real vLLM across versions, and its metrics, with full weights and adapters.

All requests are made by the coordinator's own client.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
from role_keys import TO_ROLLOUT
from rollout_server import RolloutServer, publish_adapter, publish_full, version

from headway_api.exits import RETRIABLE
from headway_api.model_names import BASE_MODEL, name_of
from headway_api.records import WeightsManifest
from headway_coordinator.engines import vllm
from headway_coordinator.engines.concurrency import read

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

PROMPT = [3 + n % 50 for n in range(200)]
MODELS = {"full": {"full": {}}, "lora": {"lora": {"rank": 8, "alpha": 16}}}


@pytest.fixture(scope="module", params=sorted(MODELS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny: Path, kind: str) -> Iterator[RolloutServer]:
    with RolloutServer(tmp_path_factory.mktemp("server"), tiny, model=MODELS[kind]) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory, tiny: Path, kind: str) -> list[WeightsManifest]:
    """Manifests of six versions."""
    store = tmp_path_factory.mktemp("store")
    if kind == "full":
        return [publish_full(store, version(step), seed=step, tied=True) for step in range(6)]
    return [publish_adapter(store, tiny, version(step), seed=step) for step in range(6)]


def cached(server: RolloutServer, model: WeightsManifest, asked: WeightsManifest | None = None) -> int:
    """How many tokens of the prompt the engine found in its cache, for version `asked` of `model`."""
    request = vllm.Request(PROMPT, max_tokens=4, temperature=1.0, top_p=1.0, seed=1, stop_token_ids=[])

    async def ask() -> vllm.Sampled:
        at = (asked or model).version
        async with aiohttp.ClientSession() as http:
            return await vllm.generate(http, server.url, name_of(model), at, request, 120, key=TO_ROLLOUT)

    return asyncio.run(ask()).cached_tokens


def test_a_version_finds_only_its_own_prefix(server: RolloutServer, manifests: list[WeightsManifest]) -> None:
    for manifest in manifests[:2]:
        assert server.post(manifest).ready
        assert cached(server, manifest) == 0, "the first of its version"
        assert cached(server, manifest) > len(PROMPT) // 2


def test_the_version_alone_keeps_prefixes_apart(
    server: RolloutServer, manifests: list[WeightsManifest]
) -> None:
    """The weights are the same, and nothing is swapped in between. Only the requested version differs."""
    manifest = manifests[1]
    assert cached(server, manifest) > 0
    again = manifest.model_copy(update={"version": version(1, incarnation=1)})
    assert cached(server, manifest, asked=again) == 0
    assert cached(server, manifest, asked=again) > 0


def test_the_engine_says_how_full_it_is(server: RolloutServer) -> None:
    found = read(server.metrics())
    assert found is not None
    kv_use, preemptions, waiting = found
    assert 0 <= kv_use < 0.5
    assert (preemptions, waiting) == (0, 0)


def test_full_weights_preempt_running_requests_adapters_do_not(
    server: RolloutServer, manifests: list[WeightsManifest], kind: str
) -> None:
    """So preemptions at an update are distinguished from those of a full cache."""
    assert server.post(manifests[2]).ready
    long = {"max_tokens": 800, "ignore_eos": True}
    for old, new in pairwise(manifests[2:]):
        before = read(server.metrics())
        model = BASE_MODEL if kind == "full" else name_of(old)
        asked = threading.Thread(target=server.generate, args=(model, PROMPT), kwargs=long)
        asked.start()
        deadline = time.monotonic() + 60
        while asked.is_alive() and not ((found := read(server.metrics())) and found[0] > 0):
            assert time.monotonic() < deadline, "the request never ran"
            time.sleep(0.05)
        assert server.post(new).ready
        after = read(server.metrics())
        still_runs = asked.is_alive()
        asked.join(120)
        if still_runs:
            break
    assert still_runs, "the model was always done before the weights were there"
    assert before is not None
    assert after is not None
    assert after[1] - before[1] == (1 if kind == "full" else 0)


def test_an_engine_killed_while_loading_names_signal_and_call(
    server: RolloutServer, manifests: list[WeightsManifest], kind: str
) -> None:
    """This is the last test of the module, because it ends the server."""
    # A library of vLLM's replaces faulthandler's handler of SIGSEGV.
    number, words = (
        (signal.SIGILL, "illegal instruction") if kind == "full" else (signal.SIGSEGV, "segmentation fault")
    )
    core = server.core_process()
    os.kill(core, signal.SIGSTOP)
    answers = []
    load = threading.Thread(target=lambda: answers.append(server.post(manifests[0])))
    load.start()
    time.sleep(1)
    assert load.is_alive(), "the engine stands still"
    os.kill(core, number)
    os.kill(core, signal.SIGCONT)
    load.join(60)
    [state] = answers
    assert (state.ready, state.version, state.reason) == (False, None, "UpdateFailed")
    pattern = (
        rf"EngineDied: vLLM's EngineCore died of {number.name} \({words}\) "
        rf"in \w+ \(\S+\.py:\d+\)"
    )
    taking = rf"; it was loading weights {manifests[0].version}"
    assert re.fullmatch(pattern + taking, state.error or ""), state.error
    assert server.process.wait(60) == RETRIABLE
    assert re.fullmatch(f"{pattern}({taking})?", server.tail().splitlines()[-1])
    assert server.engine_processes() == []
