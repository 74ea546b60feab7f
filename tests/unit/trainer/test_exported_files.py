"""transformers and PEFT read exports without changes: a whole model, and an adapter that is then merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_model import write_model

from headway_api.spec.model import ModelSpec
from headway_trainer import model as models
from headway_trainer.publish import full, lora

TOKENS = torch.arange(5, 15)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(TOKENS).logits
        return found


def changed(base: Path, **training: Any) -> Any:
    """The tiny model with changed weights."""
    spec = {"base": f"file://{base}", "dtype": "float32"} | training
    model: Any = models.load(base, ModelSpec.model_validate(spec), seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += torch.randn_like(parameter) * 0.02
    return model


def test_all_weights_load_as_a_model_with_its_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, folder = write_model(tmp_path / "base"), tmp_path / "model"
    folder.mkdir()
    model = changed(base, full={})
    full.write(model, dict(model.named_parameters()), folder, base)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(model))
    messages = [{"role": "user", "content": "a refund"}]
    ours, theirs = (AutoTokenizer.from_pretrained(place) for place in (folder, base))
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages)


def test_an_adapter_merges_into_a_model_with_equal_outputs(tmp_path: Path) -> None:
    """The test runs the lines that docs/recipes.md shows."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, folder = write_model(tmp_path / "base"), tmp_path / "adapter"
    folder.mkdir()
    model = changed(base, lora={"rank": 4, "alpha": 8})
    lora.write(model, dict(model.named_parameters()), folder, f"file://{base}")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    before = logits(plain)
    merged: Any = PeftModel.from_pretrained(plain, str(folder)).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    torch.testing.assert_close(logits(loaded), logits(model))
    assert not torch.allclose(logits(loaded), before, atol=1e-3)
