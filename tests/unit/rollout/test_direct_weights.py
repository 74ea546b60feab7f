"""A server that gets its weights from the learner's memory. The engine is scripted, and the rest is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from role_keys import TO_LEARNER
from served_weights import Server
from torch import Tensor
from versions import CANARY, tensors, version, whole
from weight_senders import sending

from headway_api.records import DirectSource, WeightsManifest
from headway_api.weights_direct import DirectJoin
from headway_rollout.weights.learner_client import HEADER_FILE, LearnerClient
from headway_trainer.publish.sender import Offer, Sender, describe

SHORT = 5.0
"""Seconds that a learner waits for a server that does not join."""


def offered(step: int) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values) for name, values in tensors(step).items()}


@pytest.fixture
def sender() -> Iterator[Sender]:
    with sending(TO_LEARNER) as made:
        yield made


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with aiohttp.ClientSession() as http:
        join = DirectJoin(workers=1, accelerated=False)
        yield Server(tmp_path, LearnerClient(http, TO_LEARNER, join))


def manifest(sender: Sender, step: int, **more: Any) -> WeightsManifest:
    source = DirectSource(host=sender.host, port=sender.port, header=describe(offered(step)).sha256)
    content: dict[str, Any] = {
        "version": version(step),
        "kind": "direct",
        "uri": f"file:///nothing/{step:06d}",
        "files": [],
        "direct": source,
        "canary": CANARY,
    }
    return WeightsManifest.model_validate(content | more)


def names_and_sums(found: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(tensor.double().sum()) for name, tensor in found.items()}


async def test_the_server_joins_the_learner_before_the_engine_pauses(server: Server, sender: Sender) -> None:
    for step in (1, 2):
        sender.offer(offered(step))
        state = await server.take(manifest(sender, step))
        assert (state.version, state.ready, state.error) == (version(step), True, None)
        assert server.engine.calls[-4:] == ["join", "pause", f"take 0.{step}", "resume"]
        assert names_and_sums(server.engine.taken[-1]) == names_and_sums(offered(step))
    assert server.held() == {"0.2"}
    assert [file.name for file in (server.cache / "0.2").iterdir()] == [HEADER_FILE], "no model on the disk"
    assert not server.store.models()


async def test_the_engine_keeps_its_weights_without_the_learner(server: Server, sender: Sender) -> None:
    sender.offer(offered(1))
    await server.take(manifest(sender, 1))
    sender.close(0)
    calls = list(server.engine.calls)
    wanted = manifest(sender, 2)
    state = await server.take(wanted)
    assert (state.version, state.ready, state.reason) == (version(1), True, "UpdateFailed")
    assert "LearnerNotMetError" in (state.error or "")
    assert server.engine.calls == calls
    assert not server.slots.failed.done()
    assert server.held() == {"0.1"}
    with sending(TO_LEARNER, port=sender.port) as back:
        back.offer(offered(2))
        assert (await server.take(wanted)).version == version(2), "under the very same manifest"


@pytest.mark.parametrize("why", ["newer", "key", "engine"])
async def test_a_failed_join_leaves_the_engine_unchanged(server: Server, why: str) -> None:
    with sending("another-key" if why == "key" else TO_LEARNER, patience=SHORT) as sender:
        sender.offer(offered(2 if why == "newer" else 1))
        server.engine.joins = why != "engine"
        state = await server.take(manifest(sender, 1))
    assert (state.version, state.ready, state.reason) == (None, False, "UpdateFailed")
    assert "pause" not in server.engine.calls
    assert not server.slots.failed.done()
    assert not list(server.cache.glob("*"))


async def test_a_header_that_differs_from_the_manifest_is_refused(server: Server, sender: Sender) -> None:
    """A faulty learner could offer such a header."""
    right = manifest(sender, 1)
    assert right.direct is not None
    sender._offers = (Offer(describe(offered(2)), right.direct.header, list(offered(2).values())),)
    state = await server.take(right)
    assert (state.reason, server.engine.calls) == ("VerificationFailed", [])
    assert "sha256" in (state.error or "")


@pytest.mark.parametrize("fault", ["shape", "missing", "unknown"])
async def test_weights_of_another_model_are_refused(server: Server, sender: Sender, fault: str) -> None:
    other = offered(1)
    if fault == "shape":
        other["w"] = other["w"].t().contiguous()
    elif fault == "missing":
        del other["norm"]
    else:
        other["more"] = torch.ones(2)
    source = DirectSource(host=sender.host, port=sender.port, header=sender.offer(other))
    state = await server.take(manifest(sender, 1, direct=source))
    assert (state.reason, server.engine.calls) == ("VerificationFailed", [])


async def test_a_transfer_that_breaks_off_is_final(server: Server) -> None:
    server.engine.refuses = True
    with sending(TO_LEARNER, patience=SHORT) as sender:
        sender.offer(offered(1))
        state = await server.take(manifest(sender, 1))
    assert (state.version, state.ready, state.reason) == (None, False, "UpdateFailed")
    assert server.slots.failed.done()


@pytest.mark.parametrize("unavailable", [True, False], ids=["away", "not to be met by the engine"])
async def test_stored_weights_are_used_if_joining_the_learner_fails(
    server: Server, tmp_path: Path, unavailable: bool
) -> None:
    files = await asyncio.to_thread(whole, tmp_path / "store", 1)
    server.engine.joins = False
    with sending(TO_LEARNER, patience=SHORT) as sender:
        sender.offer(offered(1))
        if unavailable:
            sender.close(0)
        both = manifest(sender, 1, kind="full", uri=files.uri, files=files.files)
        state = await server.take(both)
    assert (state.version, state.ready, state.error) == (version(1), True, None)
    assert server.engine.calls == ["pause", "update 0.1", "resume"]


def test_a_manifest_says_where_the_learner_is_or_where_files_are(sender: Sender) -> None:
    direct = manifest(sender, 1)
    assert not direct.whole
    for wrong in {"direct": None}, {"kind": "lora"}:
        with pytest.raises(ValueError, match="with direct"):
            WeightsManifest.model_validate(direct.model_dump() | wrong)
