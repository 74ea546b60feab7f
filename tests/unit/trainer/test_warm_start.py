"""The model that a job starts from: an adapter that continues, an adapter that is merged, or full weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_model import write_model
from torch import nn

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_api.store import FileStore
from headway_trainer import model as models
from headway_trainer import warm_start
from headway_trainer.publish import backends, full, lora
from headway_trainer.ranks import Ranks

TOKENS = torch.arange(5, 25)[None]
ALONE = Ranks(0, 0, 1, None)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits
        return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """A model whose adapter changes its outputs, and the folder of the published adapter."""
    spec = ModelSpec.model_validate(
        {"base": f"file://{base}", "dtype": "float32", "lora": {"rank": 4, "alpha": 8}}
    )
    model = models.load(base, spec, seed=0)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_B" in name:
                tensor.normal_(std=0.1)
    folder = tmp_path_factory.mktemp("adapter")
    lora.write(model, dict(model.named_parameters()), folder, spec.base)
    return model, folder


@pytest.fixture
def begin(base: Path, tmp_path: Path) -> Callable[..., nn.Module]:
    def load(folder: Path, adapter: dict[str, Any] | None = None) -> nn.Module:
        config = started_from(rig.job(tmp_path, base, lora=adapter), folder)
        return warm_start.load(config, FileStore(), base, tmp_path / "cache", ALONE)

    return load


def started_from(config: JobConfig, folder: Path) -> JobConfig:
    content = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    content["spec"]["model"]["warmStart"] = {"uri": f"file://{folder}"}
    return JobConfig.model_validate(content)


LORA = {"rank": 4, "alpha": 8}


def test_an_adapter_continues_unchanged(
    trained: tuple[nn.Module, Path], begin: Callable[..., nn.Module], tmp_path: Path
) -> None:
    model, folder = trained
    begun = begin(folder, LORA)
    assert torch.equal(logits(begun), logits(model))
    again = tmp_path / "again"
    again.mkdir()
    lora.write(begun, dict(begun.named_parameters()), again, "x")
    written, read = load_file(again / lora.WEIGHTS), load_file(folder / lora.WEIGHTS)
    assert written.keys() == read.keys()
    assert all(torch.equal(written[name], read[name]) for name in read)
    training = {name for name, tensor in begun.named_parameters() if tensor.requires_grad}
    assert training == {name for name, _ in begun.named_parameters() if "lora_" in name}


def test_an_adapter_is_merged_where_every_weight_trains(
    trained: tuple[nn.Module, Path], begin: Callable[..., nn.Module], base: Path
) -> None:
    model, folder = trained
    begun = begin(folder)
    torch.testing.assert_close(logits(begun), logits(model))
    spec = {"base": f"file://{base}", "dtype": "float32", "full": {}}
    plain = models.load(base, ModelSpec.model_validate(spec), 0)
    assert not torch.allclose(logits(begun), logits(plain), atol=1e-3)
    assert begun.state_dict().keys() == plain.state_dict().keys()
    assert all(tensor.requires_grad for tensor in begun.parameters())


def test_full_weights_are_loaded_unchanged(
    trained: tuple[nn.Module, Path], begin: Callable[..., nn.Module], base: Path, tmp_path: Path
) -> None:
    whole = begin(trained[1])
    exported = tmp_path / "exported"
    exported.mkdir()
    full.write(whole, dict(whole.state_dict()), exported, base)
    begun = begin(exported)
    assert all(torch.equal(tensor, begun.state_dict()[name]) for name, tensor in whole.state_dict().items())


def test_full_weights_that_contradict_their_report_are_refused(
    begin: Callable[..., nn.Module], base: Path, tmp_path: Path
) -> None:
    exported = tmp_path / "exported"
    exported.mkdir()
    spec = {"base": f"file://{base}", "dtype": "float32", "full": {}}
    model = models.load(base, ModelSpec.model_validate(spec), 0)
    backends.write_whole(model, dict(model.state_dict()), exported, base)
    begin(exported)
    changed = load_file(exported / "model.safetensors")
    changed[min(changed)] += 1
    other = tmp_path / "other"
    shutil.copytree(exported, other)
    save_file(changed, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(JobError, match="does not have the tensors that") as refused:
        begin(other)
    assert refused.value.termination.field == "spec.model.warmStart"


def test_without_a_warm_start_the_base_model_is_loaded(base: Path, tmp_path: Path) -> None:
    model = warm_start.load(rig.job(tmp_path, base), FileStore(), base, tmp_path / "cache", ALONE)
    stored = load_file(base / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in stored.items())


def test_a_job_that_has_begun_ignores_its_warm_start(base: Path, tmp_path: Path) -> None:
    config = started_from(rig.job(tmp_path, base, lora=LORA), tmp_path / "deleted since")
    layout = Layout(config.spec.output.uri, config.namespace, config.name, config.uid)
    FileStore().put(layout.latest, b'{"step": 0}')
    model = warm_start.load(config, FileStore(), base, tmp_path / "cache", ALONE)
    assert any("lora_" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("adapter", [LORA, None], ids=["taken up", "merged"])
def test_tensors_that_do_not_fit_are_named(
    trained: tuple[nn.Module, Path],
    begin: Callable[..., nn.Module],
    tmp_path: Path,
    adapter: dict[str, Any] | None,
) -> None:
    tensors = load_file(trained[1] / lora.WEIGHTS)
    first = min(tensors)
    del tensors[first]
    save_file(tensors, tmp_path / lora.WEIGHTS)
    (tmp_path / "adapter_config.json").write_text((trained[1] / "adapter_config.json").read_text())
    with pytest.raises(JobError, match="1 tensors of the adapter") as refused:
        begin(tmp_path, adapter)
    assert first in refused.value.termination.message
    assert refused.value.termination.field == "spec.model.warmStart"
    assert refused.value.permanent


def test_an_adapter_on_other_modules_is_refused(
    trained: tuple[nn.Module, Path], begin: Callable[..., nn.Module]
) -> None:
    with pytest.raises(JobError, match=r"give spec\.model\.lora the rank and targets"):
        begin(trained[1], LORA | {"targets": ["q_proj"]})


@pytest.mark.parametrize("adapter", [LORA, None], ids=["taken up", "merged"])
def test_an_adapter_without_weights_is_refused(
    trained: tuple[nn.Module, Path],
    begin: Callable[..., nn.Module],
    tmp_path: Path,
    adapter: dict[str, Any] | None,
) -> None:
    (tmp_path / "adapter_config.json").write_text((trained[1] / "adapter_config.json").read_text())
    with pytest.raises(JobError, match=r"adapter_model\.safetensors cannot be read"):
        begin(tmp_path, adapter)
