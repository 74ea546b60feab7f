"""Weights published from memory: what is offered, what is also stored, and what a restart does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import learner_rig
import pytest
import torch
from role_keys import TO_LEARNER
from tiny_model import write_model
from torch import Tensor

from headway_api import names
from headway_api.exits import JobError
from headway_api.records import Canary, PolicyVersion, TensorDigests, WeightsManifest
from headway_api.spec.model import ModelSpec
from headway_api.spec.weights import WeightsSpec
from headway_api.store import FileStore
from headway_api.weights_format import DIGESTS_FILE, MODEL_FILE
from headway_trainer import model as models
from headway_trainer.learner import Learner
from headway_trainer.publish import full
from headway_trainer.publish.backends import DirectPublisher, Published, write_whole
from headway_trainer.publish.sender import Sender, describe, sender_of
from headway_trainer.ranks import Ranks


def version(step: int) -> PolicyVersion:
    return PolicyVersion(incarnation=0, step=step)


class Trained:
    """A tiny model that is published from memory. Every third step is also stored."""

    def __init__(self, folder: Path, *, tied: bool = True) -> None:
        self.folder = folder
        self.base = write_model(folder / "base", seed=0, tied=tied)
        spec = ModelSpec.model_validate({"base": f"file://{self.base}", "dtype": "bfloat16", "full": {}})
        self.model: Any = models.load(self.base, spec, seed=0)
        self.sender = Sender("learner-0", 0, TO_LEARNER, torch.device("cpu"))
        self.publisher = DirectPublisher(
            self.model, self.base, folder / "scratch", self.sender, whole=lambda step: step % 3 == 0
        )

    def tensors(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(torch.int16).flatten()[::100] += 1

    def at(self, step: int) -> Path:
        return self.folder / "store" / f"{step:06d}"

    def publish(self, step: int) -> Published:
        return self.publisher.publish(FileStore(), f"file://{self.at(step)}", version(step), self.tensors())

    def manifest(self, step: int, published: Published) -> WeightsManifest:
        canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1.0)
        return published.manifest(f"file://{self.at(step)}", version(step), canary)


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[Trained]:
    made = Trained(tmp_path)
    yield made
    made.sender.close(0)


@pytest.mark.parametrize("tied", [True, False])
def test_offered_weights_equal_those_a_file_would_hold(tmp_path: Path, tied: bool) -> None:
    """Otherwise a job's servers would hold other weights than its checkpoints."""
    trained = Trained(tmp_path, tied=tied)
    folder = tmp_path / "whole"
    write_whole(trained.model, trained.tensors(), folder, trained.base)
    written = TensorDigests.model_validate_json((folder / DIGESTS_FILE).read_bytes())
    header = describe(full.tensors(trained.model, trained.tensors()))
    assert {tensor.name: tensor.sha256 for tensor in header.tensors} == written.tensors
    assert ("lm_head.weight" in written.tensors) is not tied
    assert {tensor.dtype for tensor in header.tensors} == {"BF16"}
    trained.sender.close(0)


def test_most_versions_are_only_in_memory(trained: Trained) -> None:
    found = []
    for step in range(5):
        published = trained.publish(step)
        manifest = trained.manifest(step, published)
        assert manifest.direct is not None
        assert (manifest.direct.host, manifest.direct.port) == ("learner-0", trained.sender.port)
        assert manifest.direct.header == describe(full.tensors(trained.model, trained.tensors())).sha256
        found.append(published.kind)
        trained.step()
    assert found == ["full", "direct", "direct", "full", "direct"]
    assert [trained.at(step).exists() for step in range(5)] == [True, False, False, True, False]
    assert {file.name for file in trained.at(3).iterdir()} >= {MODEL_FILE, DIGESTS_FILE, "config.json"}


def test_previous_version_is_offered_until_the_next_is_announced(trained: Trained) -> None:
    learner = object.__new__(Learner)
    learner._sender = trained.sender
    headers = []
    for step in (1, 2):
        published = trained.publish(step)
        assert published.direct is not None
        headers.append(f"/v1/weights/{published.direct.header}")
        trained.step()
    assert all(map(trained.sender.offered, headers))
    learner.announced()
    assert [trained.sender.offered(path) is not None for path in headers] == [False, True]


def test_further_training_does_not_change_offered_weights(trained: Trained) -> None:
    published = trained.publish(1)
    trained.step()
    assert published.direct is not None
    offer = trained.sender.offered(f"/v1/weights/{published.direct.header}")
    assert offer is not None
    names = [tensor.name for tensor in offer.header.tensors]
    assert describe(dict(zip(names, offer.tensors, strict=True))) == offer.header


def test_a_resumed_learner_reoffers_the_same_weights_or_fails(trained: Trained) -> None:
    manifest = trained.manifest(1, trained.publish(1))
    assert manifest.direct is not None
    trained.publisher.offer_again(trained.tensors(), manifest)
    assert trained.sender.offered(f"/v1/weights/{manifest.direct.header}") is not None
    trained.step()
    with pytest.raises(JobError) as raised:
        trained.publisher.offer_again(trained.tensors(), manifest)
    assert raised.value.termination.reason == "WeightsDiffer"


def test_only_the_first_rank_sends_weights_at_a_stable_address(tmp_path: Path) -> None:
    config = learner_rig.job(tmp_path, tmp_path, dtype="bfloat16")
    given: dict[str, Any] = {"environ": {"HEADWAY_DIRECT_ADDRESS": "learner.test:0"}, "key": TO_LEARNER}
    first, second = Ranks(0, 0, 2, None), Ranks(1, 1, 2, None)
    assert sender_of(config, ranks=first, **given) is None, "its weights travel as a delta"
    weights = WeightsSpec.model_validate({"backend": "nccl"})
    learner = config.spec.learner.model_copy(update={"weights": weights})
    config = config.model_copy(update={"spec": config.spec.model_copy(update={"learner": learner})})
    assert sender_of(config, ranks=second, **given) is None
    made = sender_of(config, ranks=first, **given)
    assert made is not None
    assert (made.host, made.port > 0) == ("learner.test", True)
    made.close(0)
    assert names.learner_host("refunds", "rl") == "refunds-learner-0.refunds-learner.rl.svc"


@pytest.mark.parametrize(
    ("backend", "model", "expected"),
    [
        ("nccl", {"full": {}}, True),
        ("delta", {"full": {}}, False),
        ("auto", {"full": {}}, False),
        ("nccl", {"lora": {"rank": 4}}, False),
    ],
)
def test_only_full_weights_are_published_from_memory(
    backend: str, model: dict[str, Any], expected: bool
) -> None:
    spec = WeightsSpec.model_validate({"backend": backend})
    assert spec.direct(ModelSpec.model_validate({"base": "hf://a/b", **model})) is expected
