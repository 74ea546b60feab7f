"""rsLoRA and dropout of an adapter: servers use the trained scale, and dropout acts only in training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models import CPU, rows_of
from safetensors.torch import load_file
from tiny_model import write_model
from torch import Tensor

from headway_api.spec.algorithm import AlgorithmSpec
from headway_api.spec.model import ModelSpec
from headway_trainer import model as models
from headway_trainer.adapter import scales
from headway_trainer.engine import Update
from headway_trainer.objective.presets import Objective
from headway_trainer.policy import Policy, micro_batch
from headway_trainer.publish.lora import WEIGHTS, write
from headway_trainer.ranks import Ranks
from headway_trainer.step import optimizer_step

RANK, ALPHA = 9, 6
TOKENS = torch.arange(5, 25)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"))


def adapted(base: Path, *, trained: bool = True, **lora: Any) -> Any:
    given = {"rank": RANK, "alpha": ALPHA, "targets": ["q_proj", "down_proj"]} | lora
    spec = ModelSpec.model_validate({"base": f"file://{base}", "dtype": "float32", "lora": given})
    model = models.load(base, spec, seed=0)
    if trained:
        numbers = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.data.normal_(0, 0.2, generator=numbers)
    return model


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(TOKENS).logits
        return found


@pytest.mark.parametrize(("rs_lora", "scale"), [(False, ALPHA / RANK), (True, ALPHA / math.sqrt(RANK))])
def test_the_adapter_has_the_scale_of_its_paper(base: Path, rs_lora: bool, scale: float) -> None:
    """The scale is alpha / r (arXiv 2106.09685) or alpha / sqrt(r) (arXiv 2312.03732).

    Checks W + scale B A by hand.
    """
    model = adapted(base, rsLora=rs_lora)
    assert set(scales(model).values()) == {scale}
    merged = models.load(base, ModelSpec(base=f"file://{base}", dtype="float32", full={}), seed=0)
    own, parameters = dict(merged.named_parameters()), dict(model.named_parameters())
    for name, a in parameters.items():
        if ".lora_A." in name:
            b = parameters[name.replace(".lora_A.", ".lora_B.")]
            target = name.removeprefix("base_model.model.").replace(".lora_A.default", "")
            own[target].data += scale * (b @ a).detach()
    torch.testing.assert_close(logits(model), logits(merged), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rs_lora", [False, True])
def test_servers_use_the_scale_that_is_trained(base: Path, tmp_path: Path, rs_lora: bool) -> None:
    """vLLM reads `use_rslora` from adapter_config.json. The test repeats vLLM's formula."""
    helper = pytest.importorskip("vllm.lora.peft_helper", reason="the learner's image has no vLLM")
    model = adapted(base, rsLora=rs_lora, dropout=0.1)
    write(model, {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}, tmp_path, "b")
    served = helper.PEFTHelper.from_local_dir(str(tmp_path), max_position_embeddings=4096)
    assert {served.vllm_lora_scaling_factor} == set(scales(model).values())
    assert served._validate_features() == []
    assert json.loads((tmp_path / "adapter_config.json").read_text())["use_rslora"] is rs_lora
    assert len(load_file(tmp_path / WEIGHTS)) == 8


class Recording:
    """An engine that records the gradient of each optimizer step, and changes no weight."""

    def __init__(self, model: Any, updates: int = 0) -> None:
        self.model, self.updates = model, updates
        self.gradients: list[Tensor] = []

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> Update:
        found = [p.grad.flatten() for p in self.model.parameters() if p.grad is not None]
        self.gradients.append(torch.cat(found))
        self.model.zero_grad()
        self.updates += 1
        return Update(1.0, 0.0)


def gradients(model: Any, *, steps: int = 1, first: int = 0, seed: int = 0) -> list[Tensor]:
    engine, policy = Recording(model, first), Policy(model, model, temperature=1.0)
    objective = Objective.of(AlgorithmSpec(loss="importance_sampling"))
    for _ in range(steps):
        optimizer_step(
            engine,  # type: ignore[arg-type]
            policy,
            objective,
            rows_of(),
            ranks=Ranks(0, 0, 1, None),
            max_tokens=60,
            seed=seed,
        )
    return engine.gradients


def test_dropout_acts_only_while_gradients_are_computed(base: Path) -> None:
    plain, dropped = adapted(base), adapted(base, dropout=0.5)
    torch.testing.assert_close(logits(dropped), logits(plain), atol=0, rtol=0)
    policies = [Policy(model, model, temperature=1.0) for model in (plain, dropped)]
    batch = micro_batch(rows_of(), CPU)
    without, alike = (policy(batch).logprob_T.detach() for policy in policies)
    torch.testing.assert_close(alike, without, atol=0, rtol=0)
    [expected], [found] = gradients(plain), gradients(dropped)
    assert not torch.allclose(found, expected, rtol=1e-2)
    torch.testing.assert_close(policies[1](batch).logprob_T.detach(), without, atol=0, rtol=0)


def test_dropout_depends_only_on_seed_step_and_micro_batch(base: Path) -> None:
    model = adapted(base, dropout=0.5)
    first, second, third = gradients(model, steps=3)
    torch.manual_seed(99)
    again = gradients(model, steps=2, first=1)  # an engine that resumed after the first step
    torch.testing.assert_close(torch.stack(again), torch.stack([second, third]), atol=0, rtol=0)
    assert not torch.allclose(first, second, rtol=1e-2)
    assert not torch.allclose(gradients(model, seed=1)[0], first, rtol=1e-2)


def test_without_dropout_no_random_number_is_drawn(base: Path) -> None:
    model = adapted(base)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with models.dropping(model, 1, 2):
        assert torch.equal(torch.get_rng_state(), before)


def test_dropout_keeps_the_mean_of_the_adapter(base: Path) -> None:
    """Each input of a module is kept with probability 1 - p, and then divided by 1 - p."""
    model = adapted(base, dropout=0.25)
    [layer, *_] = [m for path, m in model.named_modules() if path.endswith("q_proj")]
    inputs = torch.randn(1, layer.in_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = layer(inputs), []
        for draw in range(3000):
            with models.dropping(model, draw):
                found.append(layer(inputs))
        spread = torch.stack(found)
    error = spread.std(0) / math.sqrt(len(found))
    assert bool(((spread.mean(0) - expected).abs() < 6 * error + 1e-6).all())
    assert float(spread.std()) > 0


def test_a_new_adapter_changes_no_output(base: Path) -> None:
    begun = adapted(base, trained=False, rsLora=True, dropout=0.3)
    whole = models.load(base, ModelSpec(base=f"file://{base}", dtype="float32", full={}), seed=0)
    np.testing.assert_allclose(logits(begun), logits(whole), atol=1e-6)
