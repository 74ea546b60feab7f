"""The rollout server with deltas in bfloat16, where one step is too small for a canary to see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_server import CANARY_TOKENS, RolloutServer, request, score, version
from tiny_model import write_model

from headway_api.exits import RETRIABLE
from headway_api.records import Canary, TensorDigests, WeightsManifest
from headway_api.store import FileStore, digest
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE, MODEL_FILE
from headway_trainer.publish.backends import DeltaPublisher, FilePublisher, WeightPublisher

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

EMBEDDING = "model.embed_tokens.weight"


class Trained:
    """A model in bfloat16 that takes steps of one unit in the last place of a few elements."""

    def __init__(self, folder: Path, base: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.store = folder / "store"
        self.model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()
        self._deltas = DeltaPublisher(
            self.model, base, folder / "deltas", full_every=100, whole=lambda step: False
        )
        self._files = FilePublisher(self.model, base, folder / "files")

    def step(self) -> None:
        import torch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(torch.int16).flatten()[::100] += 1

    def publish(self, step: int) -> WeightsManifest:
        return self._published(self._deltas, step)

    def publish_whole(self, step: int) -> WeightsManifest:
        return self._published(self._files, step)

    def _published(self, by: WeightPublisher, step: int) -> WeightsManifest:
        uri = f"file://{self.store}/{step:06d}"
        tensors = {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}
        published = by.publish(FileStore(), uri, version(step), tensors)
        canary = Canary(tokens=CANARY_TOKENS, logprobs=score(self.model, CANARY_TOKENS), tolerance=0.2)
        return WeightsManifest(
            version=version(step),
            kind=published.kind,
            uri=uri,
            files=published.files,
            chain=published.chain,
            canary=canary,
        )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"), seed=0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"), base)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[RolloutServer]:
    spec = {"full": {}, "dtype": "bfloat16"}
    with RolloutServer(tmp_path_factory.mktemp("server"), base, model=spec) as server:
        server.wait_ready()
        yield server


def engine_digests(server: RolloutServer) -> dict[str, str]:
    """What vLLM says that its own tensors are."""
    code, text = request("POST", f"{server.url}/weight_checker", json.dumps({"action": "checksum"}))
    assert code == 200, text
    return {name.rpartition(":")[2]: found for name, found in json.loads(text)["checksums"].items()}


def published_digests(trained: Trained, step: int) -> dict[str, str]:
    text = (trained.store / f"{step:06d}" / DIGESTS_FILE).read_bytes()
    return TensorDigests.model_validate_json(text).tensors


def test_what_the_engine_keeps_as_it_is_can_be_told_from_the_base_model(
    server: RolloutServer, trained: Trained
) -> None:
    """Or nothing would be read back after an update."""
    trained.publish_whole(0)
    found, base = engine_digests(server), published_digests(trained, 0)
    assert {EMBEDDING, "model.norm.weight"} <= {name for name in base if base[name] == found.get(name)}


def test_deltas_arrive_in_the_engines_own_tensors(server: RolloutServer, trained: Trained) -> None:
    for step in (1, 2, 3):
        trained.step()
        manifest = trained.publish(step)
        assert manifest.kind == ("full" if step == 1 else "delta")
        state = server.post(manifest)
        assert (state.ready, state.version, state.error) == (True, version(step), None)
        found, expected = engine_digests(server), published_digests(trained, step)
        both = found.keys() & expected.keys()
        assert {EMBEDDING, "model.norm.weight"} <= both
        assert found[EMBEDDING] == expected[EMBEDDING]
        before = published_digests(trained, step - 1) if step > 1 else {}
        assert before.get(EMBEDDING) != expected[EMBEDDING], "a step must move it"
    whole = [file.name for file in (server.cache / "weights").rglob("*.safetensors")]
    assert whole == [MODEL_FILE], "one model on the disk, and no delta"
    assert not list((server.cache / "weights").rglob(DELTA_FILE))


def test_one_unit_in_the_last_place_ends_the_server(server: RolloutServer, trained: Trained) -> None:
    """Weights of the step before under this step's digests: the canary of bfloat16 would let them pass."""
    stale = trained.publish_whole(4)
    trained.step()
    trained.publish_whole(5)
    folder = trained.store / "000004"
    (folder / DIGESTS_FILE).write_bytes((trained.store / "000005" / DIGESTS_FILE).read_bytes())
    files = [digest(path) for path in sorted(folder.iterdir())]
    state = server.post(stale.model_copy(update={"files": files}))
    assert (state.version, state.ready, state.reason) == (None, False, "VerificationFailed"), state.error
    assert "the learner published" in (state.error or "")
    assert server.process.wait(60) == RETRIABLE
