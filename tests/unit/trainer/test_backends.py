"""What each way of publishing writes to the store, and when full weights replace a delta."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import learner_rig
import pytest
import torch
from tiny_model import write_model

from headway_api.records import Canary, PolicyVersion, WeightsLink, WeightsManifest
from headway_api.spec.model import ModelSpec
from headway_api.spec.weights import WeightsSpec
from headway_api.store import FileStore, digest
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE, EXPORT_FILE, MODEL_FILE
from headway_rollout.weights import delta
from headway_trainer import model as models
from headway_trainer.publish.backends import (
    DeltaPublisher,
    FilePublisher,
    LoraPublisher,
    Published,
    builds_on,
    served,
)
from headway_trainer.publish.publisher import Publisher
from headway_trainer.ranks import Ranks

NEVER = -1


def version(step: int, incarnation: int = 0) -> PolicyVersion:
    return PolicyVersion(incarnation=incarnation, step=step)


class Trained:
    """A tiny model in bfloat16 that is published at each step."""

    def __init__(self, folder: Path, **lora: Any) -> None:
        self.folder = folder
        self.base = write_model(folder / "base")
        spec = {"base": f"file://{self.base}", "dtype": "bfloat16"} | (lora or {"full": {}})
        self.model: Any = models.load(self.base, ModelSpec.model_validate(spec), seed=0)

    def delta(self, whole: Callable[[int], bool] = lambda step: False, full_every: int = 4) -> DeltaPublisher:
        scratch = self.folder / "scratch"
        return DeltaPublisher(self.model, self.base, scratch, full_every=full_every, whole=whole)

    def step(self, share: float = 0.01) -> None:
        """Change this share of the elements, as an optimizer step would."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += (torch.rand_like(parameter, dtype=torch.float32) < share) * 0.05

    def publish(self, by: Any, step: int, incarnation: int = 0) -> Published:
        tensors = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        published: Published = by.publish(FileStore(), self.uri(step), version(step, incarnation), tensors)
        for file in published.files:
            assert digest(self.at(step) / file.name) == file, "told of before it lies there"
        return published

    def publisher(self) -> Publisher:
        """A publisher as a newly started learner has it. It does not know what was published before."""
        spec = learner_rig.job(self.folder, self.base, dtype="bfloat16").spec
        engine: Any = SimpleNamespace(model=self.model, tensors=lambda **_: self.model.named_parameters())
        policy: Any = None
        return Publisher(engine, policy, spec, self.base, self.folder / "served", Ranks(0, 0, 1, None))

    def manifest(self, step: int, published: Published) -> WeightsManifest:
        canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1.0)
        return published.manifest(self.uri(step), version(step), canary)

    def uri(self, step: int) -> str:
        return f"file://{self.at(step)}"

    def at(self, step: int) -> Path:
        return self.folder / "store" / f"{step:06d}"


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


class Writes(FileStore):
    """A store that records the order in which objects are written."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def put(self, uri: str, data: bytes) -> None:
        super().put(uri, data)
        self.written.append(uri)


def names(published: Published) -> set[str]:
    return {file.name for file in published.files}


def test_an_adapter_is_published_whole(tmp_path: Path) -> None:
    trained = Trained(tmp_path, lora={"rank": 4})
    published = trained.publish(LoraPublisher(trained.model, "s3://b/base", tmp_path / "scratch"), 1)
    assert (published.kind, published.chain) == ("lora", [])
    assert names(published) == {"adapter_model.safetensors", "adapter_config.json"}


def test_full_weights_are_a_servable_model_with_tensor_digests(trained: Trained) -> None:
    published = trained.publish(FilePublisher(trained.model, trained.base, trained.folder / "scratch"), 1)
    assert (published.kind, published.chain) == ("full", [])
    assert names(published) >= {MODEL_FILE, DIGESTS_FILE, "config.json", "tokenizer.json"}


def test_a_delta_on_the_previous_version_yields_exact_weights(trained: Trained) -> None:
    publisher = trained.delta()
    first = trained.publish(publisher, 0)
    trained.step()
    second = trained.publish(publisher, 1)
    assert (first.kind, second.kind) == ("full", "delta")
    assert names(second) == {DELTA_FILE, DIGESTS_FILE}
    assert second.chain == [WeightsLink(version=version(0), uri=trained.uri(0), files=first.files)]
    before, change = trained.at(0) / MODEL_FILE, trained.at(1) / DELTA_FILE
    assert change.stat().st_size < before.stat().st_size / 10
    made, same = trained.folder / "made", FilePublisher(trained.model, trained.base, trained.folder / "other")
    delta.apply(before, change, trained.at(1) / DIGESTS_FILE, made)
    trained.publish(same, 9)
    assert made.read_bytes() == (trained.at(9) / MODEL_FILE).read_bytes()


def test_a_chain_has_a_maximum_length(trained: Trained) -> None:
    publisher, found = trained.delta(full_every=3), []
    for step in range(7):
        trained.step()
        found.append(trained.publish(publisher, step))
    assert [one.kind for one in found] == ["full", "delta", "delta", "full", "delta", "delta", "full"]
    assert [[link.version.step for link in one.chain] for one in found[3:6]] == [[], [3], [3, 4]]


def test_versions_that_people_may_serve_are_published_whole(trained: Trained) -> None:
    publisher = trained.delta(whole=lambda step: served(step, evaluated_every=2, checkpoint_every=1))
    found = []
    for step in range(6):
        trained.step()
        found.append(trained.publish(publisher, step))
    assert [one.kind for one in found] == ["full", "delta", "full", "delta", "full", "delta"]
    trained.publisher().complete(FileStore(), trained.manifest(4, found[4]))
    assert not (trained.folder / "served").exists(), "what is whole is not written again"
    store = Writes()
    trained.publisher().complete(store, trained.manifest(5, found[5]))
    assert {file.name for file in trained.at(5).iterdir()} >= {MODEL_FILE, DELTA_FILE, "config.json"}
    assert store.written[-1] == trained.uri(5) + f"/{EXPORT_FILE}", "a reader that sees it sees all the rest"
    assert PolicyVersion.model_validate_json(store.get(store.written[-1])) == version(5)
    assert {file.name for file in trained.at(3).iterdir()} == {DELTA_FILE, DIGESTS_FILE}
    plain = FilePublisher(trained.model, trained.base, trained.folder / "other")
    trained.publish(plain, 9)
    assert (trained.at(5) / MODEL_FILE).read_bytes() == (trained.at(9) / MODEL_FILE).read_bytes()
    assert not served(3, evaluated_every=0, checkpoint_every=1)
    assert [served(step, evaluated_every=0, checkpoint_every=2) for step in (2, 3)] == [True, False]


def test_full_weights_are_published_if_a_delta_is_larger(trained: Trained) -> None:
    publisher = trained.delta()
    trained.publish(publisher, 0)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            bits = parameter.view(torch.int16)
            bits.copy_(torch.randint(-(1 << 15), 1 << 15, bits.shape, dtype=torch.int16))
    assert trained.publish(publisher, 1).kind == "full"


def test_a_new_learner_publishes_full_weights_despite_scratch(trained: Trained) -> None:
    earlier = trained.delta()
    trained.publish(earlier, 0)
    trained.publish(earlier, 1)
    assert trained.publish(trained.delta(), 2, incarnation=1).kind == "full"


def test_full_weights_are_published_after_a_failed_upload(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = trained.delta()
    trained.publish(publisher, 0)

    def unavailable(self: FileStore, path: Path, uri: str) -> None:
        raise OSError("the store is unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "upload", unavailable)
        with pytest.raises(OSError, match="unavailable"):
            trained.publish(publisher, 1)
    assert trained.publish(publisher, 1).kind == "full"


@pytest.mark.parametrize(
    ("chain", "at", "expected"),
    [
        ([], version(1), False),
        ([0], version(1), True),
        ([0, 1, 2], version(3), False),
        ([0], version(2), False),
        ([1], version(1), False),
        ([0], version(1, incarnation=1), False),
    ],
)
def test_a_delta_needs_the_step_before_in_the_same_incarnation(
    chain: list[int], at: PolicyVersion, expected: bool
) -> None:
    links = [WeightsLink(version=version(step), uri="", files=[]) for step in chain]
    assert builds_on(links, at, full_every=3) is expected


@pytest.mark.parametrize(
    ("backend", "dtype", "expected"),
    [
        ("auto", "bfloat16", "delta"),
        ("auto", "float32", "file"),
        ("file", "bfloat16", "file"),
        ("delta", "float32", "delta"),
    ],
)
def test_auto_means_delta_if_few_elements_change(backend: str, dtype: str, expected: str) -> None:
    assert WeightsSpec.model_validate({"backend": backend}).chosen(dtype) == expected
