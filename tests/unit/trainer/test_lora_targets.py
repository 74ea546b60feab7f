"""The modules that get an adapter: learner and preflight find the same ones and refuse the same names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file
from tiny_model import write_model

from headway_api import lora_targets, warm_start
from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_rollout.weights.checks import check_lora, read_headers
from headway_trainer import model as models
from headway_trainer.publish import lora

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 8, "decoder_sparse_step": 1}


def modules(folder: Path) -> list[str]:
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
    return lora_targets.adaptable(shapes)


def wanting(folder: Path, *targets: str) -> ModelSpec:
    adapter = {"rank": 4, "alpha": 8, "targets": list(targets)}
    return ModelSpec.model_validate({"base": f"file://{folder}", "dtype": "float32", "lora": adapter})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"), tied=False)


@pytest.mark.parametrize("family", ["Qwen2", "Llama", "Qwen2Moe", "Qwen3Moe", "Mixtral", "GptOss"])
def test_the_checkpoint_tells_which_modules_an_adapter_goes_on(family: str, tmp_path: Path) -> None:
    """Without named targets these are all linear modules.

    In a mixture of experts they are only those of attention.
    """
    config = getattr(transformers, f"{family}Config")(**SMALL, **(EXPERTS if family != "Llama" else {}))
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(tmp_path)
    model: Any = models.load(tmp_path, wanting(tmp_path), seed=0)
    on = {name.removeprefix("base_model.model.") for name, _ in model.named_modules()}
    found = sorted(name.removesuffix(".lora_A") for name in on if name.endswith(".lora_A"))
    assert modules(tmp_path) == found
    assert all("self_attn" in name for name in found) == ("M" in family or family == "GptOss")
    (tmp_path / "adapter").mkdir()
    lora.write(model, dict(model.named_parameters()), tmp_path / "adapter", "s3://b/m")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    check_lora(config, read_headers(tmp_path / "adapter"), max_rank=4)


@pytest.mark.parametrize("wrong", ["no_such", "embed_tokens", "norm", "proj"])
def test_a_non_linear_module_name_is_refused_beside_a_valid_one(folder: Path, wrong: str) -> None:
    with pytest.raises(JobError) as refused:
        models.load(folder, wanting(folder, "q_proj", wrong), seed=0)
    found = refused.value.termination
    assert (found.reason, found.field) == ("LoraTargetsUnusable", "spec.model.lora.targets")
    assert found.message.startswith(f"{wrong}: ")
    assert "q_proj" in found.message
    assert refused.value.permanent


@pytest.mark.parametrize("targets", [(), ("q_proj", "mlp.up_proj")])
def test_a_jobs_adapter_only_starts_jobs_with_the_same_targets(
    folder: Path, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    spec = wanting(folder, *targets)
    model = models.load(folder, spec, seed=0)
    lora.write(model, dict(model.named_parameters()), tmp_path, spec.base)
    assert warm_start.judge(tmp_path, spec, folder, modules(folder)).adapter
    adapted = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert warm_start.judge(tmp_path, wanting(folder, *adapted), folder, modules(folder)).adapter
    with pytest.raises(JobError, match=r"the adapter targets modules .*q_proj.*, the job v_proj;"):
        warm_start.judge(tmp_path, wanting(folder, "v_proj"), folder, modules(folder))
