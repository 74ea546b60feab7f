"""A wider adapter gives the same outputs as the narrow one, under every PEFT option with two matrices."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_model import write_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from headway_trainer.adapter import FIRST, SECOND, Trained, TrainedState, fill, scales, widened
from headway_trainer.model import ADAPTER

TOKENS = torch.arange(5, 25)[None]
NARROW, WIDE = 4, 8
OPTIONS: dict[str, dict[str, Any]] = {
    "as the product has it": {"target_modules": ["q_proj", "down_proj"]},
    "rsLoRA": {"target_modules": ["q_proj"], "use_rslora": True},
    "DoRA": {"target_modules": ["q_proj", "up_proj"], "use_dora": True},
    "gaussian": {"target_modules": ["v_proj"], "init_lora_weights": "gaussian"},
    "output head": {"target_modules": ["lm_head"]},
    "ranks of modules": {"target_modules": ["q_proj", "v_proj"], "alpha_pattern": {"v_proj": 3}},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    folder = write_model(tmp_path_factory.mktemp("base"), tied=False)
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model


def adapted(base: nn.Module, rank: int, alpha: int, seed: int, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, **options)
    model: nn.Module = get_peft_model(copy.deepcopy(base), config, adapter_name=ADAPTER)  # type: ignore[arg-type]
    return model


def trained(model: nn.Module) -> TrainedState:
    """A training state in which every matrix of the adapter affects the outputs."""
    found = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
                moments = {FIRST: torch.randn_like(parameter), SECOND: torch.rand_like(parameter)}
                found[name] = Trained(parameter.detach().clone(), moments)
    return TrainedState(found, steps=7.0, updates=7)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(TOKENS).logits
        return found


def wider(narrow: nn.Module, wide: nn.Module) -> tuple[TrainedState, TrainedState]:
    before = trained(narrow)
    after = widened(before, scales(narrow), wide)
    fill(wide, after)
    return before, after


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("alpha", [16, 8, 24], ids=lambda alpha: f"alpha {alpha}")
def test_a_wider_adapter_gives_equal_logits(base: nn.Module, options: dict[str, Any], alpha: int) -> None:
    narrow, wide = adapted(base, NARROW, 8, 0, **options), adapted(base, WIDE, alpha, 1, **options)
    wider(narrow, wide)
    torch.testing.assert_close(logits(wide), logits(narrow), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits(narrow), logits(base), atol=1e-2), "the adapter does nothing"


def test_logits_are_equal_where_linear_layers_are_transposed() -> None:
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=32)).eval()
    options = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
    narrow, wide = adapted(base, NARROW, 8, 0, **options), adapted(base, WIDE, 16, 1, **options)
    wider(narrow, wide)
    torch.testing.assert_close(logits(wide), logits(narrow))


def test_widening_keeps_weights_and_initializes_new_ones_as_peft(base: nn.Module) -> None:
    options = OPTIONS["as the product has it"]
    narrow, wide = adapted(base, NARROW, 8, 0, **options), adapted(base, WIDE, 16, 1, **options)
    begun = {name: p.detach().clone() for name, p in wide.named_parameters()}
    before, after = wider(narrow, wide)
    assert (after.steps, after.updates) == (7.0, 7)
    assert before.parameters.keys() == after.parameters.keys()
    for name, old in before.parameters.items():
        new, rows = after.parameters[name], "lora_A" in name
        there = (slice(NARROW),) if rows else (slice(None), slice(NARROW))
        rest = (slice(NARROW, None),) if rows else (slice(None), slice(NARROW, None))
        assert torch.equal(new.weight[there], old.weight), "alpha / rank is what it was"
        assert torch.equal(new.weight[rest], begun[name][rest])
        assert bool(new.weight[rest].any()) == rows
        for moment, values in new.moments.items():
            assert torch.equal(values[there], old.moments[moment])
            assert not values[rest].any()


def test_moments_are_scaled_with_their_weights(base: nn.Module) -> None:
    """A step of Adam changes the module's output equally with the wider and the narrow adapter."""
    options = OPTIONS["rsLoRA"]
    narrow, wide = adapted(base, NARROW, 8, 0, **options), adapted(base, WIDE, 16, 1, **options)
    before, after = wider(narrow, wide)
    by = 2**-0.5  # 8 / sqrt(4) over 16 / sqrt(8)
    for name, old in before.parameters.items():
        if "lora_B" in name:
            new = after.parameters[name]
            torch.testing.assert_close(new.weight[:, :NARROW], old.weight * by)
            torch.testing.assert_close(new.moments[FIRST][:, :NARROW], old.moments[FIRST] / by)
            torch.testing.assert_close(new.moments[SECOND][:, :NARROW], old.moments[SECOND] / by**2)


def test_before_the_first_step_there_are_no_moments(base: nn.Module) -> None:
    options = OPTIONS["as the product has it"]
    narrow, wide = adapted(base, NARROW, 8, 0, **options), adapted(base, WIDE, 16, 1, **options)
    weights = {name: Trained(p.detach()) for name, p in narrow.named_parameters() if p.requires_grad}
    after = widened(TrainedState(weights, 0.0, 0), scales(narrow), wide)
    assert all(not parameter.moments for parameter in after.parameters.values())


def test_the_scale_of_each_module_is_known(base: nn.Module, tmp_path: Path) -> None:
    model = adapted(base, NARROW, 8, 0, **OPTIONS["ranks of modules"])
    found = scales(model)
    assert {value for path, value in found.items() if path.endswith("q_proj")} == {2.0}
    assert {value for path, value in found.items() if path.endswith("v_proj")} == {0.75}
