"""The rollout server takes weights from a learner's memory, into real vLLM on a CPU, over gloo."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moving_model import EMBEDDING, MovingModel, engine_digests
from role_keys import TO_LEARNER, TO_ROLLOUT
from rollout_server import RolloutServer, request, version
from tiny_model import write_model

from headway_api.exits import RETRIABLE
from headway_api.records import WeightsManifest
from headway_api.weights_direct import DirectPlace

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE = 30.0
"""Seconds that the learner waits for a server. The last server here dies in the middle of a transfer."""


class Trained(MovingModel):
    """A learner's model in this process, with senders of its weights."""

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder, base)
        self._base, self._scratch = base, folder / "scratch"
        self._senders: list[Any] = []
        self.sender = self.begun(0)

    def begun(self, port: int) -> Any:
        import torch

        from headway_trainer.publish.handover import Handover
        from headway_trainer.publish.sender import Sender

        handover: Any = partial(Handover, step_seconds=PATIENCE, go_seconds=PATIENCE)
        self._senders.append(Sender("127.0.0.1", port, TO_LEARNER, torch.device("cpu"), handover))
        return self._senders[-1]

    def end(self) -> None:
        """Wait until all transfers have ended; see `weight_senders.sending`."""
        for sender in self._senders:
            sender.close(4 * PATIENCE)
            assert not sender._under_way

    def sent(self, step: int, *, whole: bool = False) -> WeightsManifest:
        from headway_trainer.publish.backends import DirectPublisher

        by = DirectPublisher(self.model, self._base, self._scratch, self.sender, whole=lambda step: whole)
        return self.publish(by, step)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"), seed=0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Trained]:
    made = Trained(tmp_path_factory.mktemp("trained"), base)
    yield made
    made.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[RolloutServer]:
    spec = {"full": {}, "dtype": "bfloat16"}
    weights = {"weights": {"backend": "nccl"}}
    with RolloutServer(tmp_path_factory.mktemp("server"), base, model=spec, learner=weights) as server:
        server.wait_ready()
        yield server


def test_weights_go_from_memory_to_the_engines_own_tensors(server: RolloutServer, trained: Trained) -> None:
    from headway_trainer.publish.sender import describe

    before = ""
    for step in (1, 2, 3):
        trained.step()
        manifest = trained.sent(step)
        assert (manifest.kind, manifest.files) == ("direct", [])
        state = server.post(manifest)
        assert (state.ready, state.version, state.error) == (True, version(step), None)
        found = engine_digests(server)
        expected = {tensor.name: tensor.sha256 for tensor in describe(trained.tensors()).tensors}
        assert {EMBEDDING, "model.norm.weight"} <= found.keys() & expected.keys()
        assert found[EMBEDDING] == expected[EMBEDDING] != before
        assert found["model.norm.weight"] == expected["model.norm.weight"]
        before = expected[EMBEDDING]
    assert not list((server.cache / "weights").rglob("*.safetensors")), "no model on the disk"
    assert not trained.store.exists(), "and none in the store"


def test_every_worker_of_an_engine_takes_weights_from_memory(
    tmp_path: Path, base: Path, trained: Trained
) -> None:
    spec = {"full": {}, "dtype": "bfloat16"}
    split = {"replicas": 1, "engine": {"tensorParallelSize": 2}, "sampling": {"maxTokens": 32}}
    with RolloutServer(tmp_path, base, model=spec, rollout=split | {"maxConcurrency": 16}) as server:
        server.wait_ready()
        manifest = trained.sent(3)
        trained.sender.close(0)
        state = server.post(manifest)
        assert (state.version, state.ready, state.reason) == (None, False, "UpdateFailed"), state.error
        trained.sender = trained.begun(trained.sender.port)
        for step in (3, 4):
            state = server.post(trained.sent(step))
            assert (state.version, state.ready, state.error) == (version(step), True, None)
            trained.step()


def test_a_server_keeps_serving_without_the_learner(server: RolloutServer, trained: Trained) -> None:
    trained.step()
    manifest = trained.sent(4)
    trained.sender.close(0)
    state = server.post(manifest)
    assert (state.version, state.ready, state.reason) == (version(3), True, "UpdateFailed")
    assert server.generate("base", [5, 6, 7], max_tokens=4)["choices"]
    trained.sender = trained.begun(trained.sender.port)
    assert trained.sent(4) == manifest
    state = server.post(manifest)
    assert (state.version, state.ready, state.error) == (version(4), True, None)


def test_a_failed_meeting_in_the_worker_leaves_the_engine_as_is(server: RolloutServer) -> None:
    """The learner answered the server, and was gone when the workers tried to connect."""
    place = DirectPlace(port=1, key="none", transport="gloo").model_dump_json()
    asked = {"method": "meet_learner", "kwargs": {"host": "127.0.0.1", "place": place}}
    code, text = request("POST", f"{server.url}/collective_rpc", json.dumps(asked), TO_ROLLOUT)
    assert (code, len(json.loads(text)["results"])) == (200, 1)
    assert "timed out" in json.loads(text)["results"][0]
    assert server.generate("base", [5, 6, 7], max_tokens=4)["choices"]
    assert server.status("/readyz") == 200


def test_stored_weights_are_taken_if_the_learner_sends_none(server: RolloutServer, trained: Trained) -> None:
    trained.step()
    both = trained.sent(5, whole=True)
    assert (both.kind, both.direct is not None) == ("full", True)
    trained.sender.close(0)
    state = server.post(both)
    assert (state.version, state.ready, state.error) == (version(5), True, None)
    trained.sender = trained.begun(trained.sender.port)


def test_a_tensor_that_differs_from_its_header_ends_the_server(
    server: RolloutServer, trained: Trained
) -> None:
    """One element differs in its last bit, which the canary of bfloat16 would not notice."""
    from headway_trainer.publish import full
    from headway_trainer.publish.sender import Offer, describe

    manifest = trained.sent(6)
    header = describe(full.tensors(trained.model, trained.tensors()))
    trained.step()
    others = list(full.tensors(trained.model, trained.tensors()).values())
    trained.sender._offers = (Offer(header, header.sha256, others),)
    state = server.post(manifest)
    assert (state.version, state.ready, state.reason) == (None, False, "VerificationFailed"), state.error
    assert "the learner published" in (state.error or "")
    assert server.process.wait(60) == RETRIABLE
