"""A published adapter is a folder that PEFT loads without changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import write_model

from headway_api.spec.model import ModelSpec
from headway_trainer import model as models
from headway_trainer.publish import lora


def adapted(base: Path) -> Any:
    """The tiny model with an adapter that changes its outputs."""
    spec = ModelSpec.model_validate({"base": f"file://{base}", "dtype": "float32", "lora": {"rank": 4}})
    model: Any = models.load(base, spec, seed=0)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_B" in name:
                tensor.normal_()
    return model


def test_a_written_adapter_loads_with_equal_logits(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, folder = write_model(tmp_path / "base"), tmp_path / "adapter"
    folder.mkdir()
    model = adapted(base).eval()
    lora.write(model, dict(model.named_parameters()), folder, f"file://{base}")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    loaded: Any = PeftModel.from_pretrained(plain, str(folder)).eval()
    tokens = torch.arange(5, 15)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize(
    ("base", "named"), [("hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B"), ("s3://b/qwen", "s3://b/qwen")]
)
def test_a_written_adapter_names_its_base_as_other_tools_do(tmp_path: Path, base: str, named: str) -> None:
    model = adapted(write_model(tmp_path / "base"))
    lora.write(model, dict(model.named_parameters()), tmp_path, base)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == named
