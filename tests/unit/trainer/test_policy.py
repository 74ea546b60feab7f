"""Log-probabilities of action tokens. Packing, padding and splitting by turns must not change them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import learner_rig as rig
import numpy as np
import pytest
import torch
from tiny_model import write_model
from torch import Tensor

from headway_api.records import Batch
from headway_api.spec.algorithm import AlgorithmSpec
from headway_api.spec.model import ModelSpec
from headway_trainer import model as models
from headway_trainer.batch import LearnerRow, training_batch, weighted
from headway_trainer.head import output_head
from headway_trainer.objective.presets import Objective
from headway_trainer.packing import plan
from headway_trainer.policy import Policy, micro_batch

CPU = torch.device("cpu")
OBJECTIVE = Objective.of(AlgorithmSpec())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def model(folder: Path) -> Any:
    spec = ModelSpec.model_validate({"base": f"file://{folder}", "dtype": "float32", "full": {}})
    return models.load(folder, spec, seed=0)


def policy_of(model: Any, temperature: float = 1.0) -> Policy:
    return Policy(model, model, temperature)


def rows_of(groups: int = 3, size: int = 4) -> list[LearnerRow]:
    made = [rig.group(f"g{n}", [float(i % 2) for i in range(size)]) for n in range(groups)]
    batch = training_batch(Batch(step=1, epoch=0, groups=made), OBJECTIVE)
    return [row for group in batch.groups for row in group.rows]


def naive(model: Any, row: LearnerRow, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of a row's action tokens, from all logits of the row alone."""
    logits_LV = model(torch.from_numpy(row.tokens)[None]).logits[0].double() / temperature
    log_LV = logits_LV.log_softmax(-1)
    return torch.stack([log_LV[t - 1, row.tokens[t]] for t in np.flatnonzero(row.mask)])


def gradient(model: Any, rows: Sequence[LearnerRow], parts: Sequence[Sequence[int]]) -> tuple[float, Tensor]:
    """Loss of one optimizer step over `rows` divided into micro-batches, and its gradient as one vector."""
    policy, rows = policy_of(model), weighted(rows, OBJECTIVE)
    model.zero_grad()
    loss_sum = 0.0
    for part in parts:
        batch = micro_batch([rows[i] for i in part], CPU)
        loss, _ = OBJECTIVE.token_loss(
            policy(batch).logprob_T, batch.sampler_T, batch.advantage_T, batch.weight_T
        )
        loss.backward()
        loss_sum += loss.item()
    return loss_sum, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_log_probabilities_are_those_of_each_row_alone(model: Any, temperature: float) -> None:
    rows = rows_of()
    found = policy_of(model, temperature)(micro_batch(rows, CPU)).logprob_T
    expected = torch.cat([naive(model, row, temperature) for row in rows])
    np.testing.assert_allclose(found.detach(), expected.detach(), atol=2e-5)


def test_the_head_sees_only_positions_predicting_action_tokens(model: Any) -> None:
    seen: list[int] = []
    policy = policy_of(model)
    output_head(model).register_forward_pre_hook(lambda head, x: seen.append(x[0].shape[1]))
    rows = rows_of()
    policy(micro_batch(rows, CPU))
    assert seen == [sum(row.action_tokens for row in rows)]


def test_entropy_is_that_of_the_distribution_at_the_temperature(model: Any) -> None:
    row = rows_of()[0]
    found = policy_of(model, 0.5)(micro_batch([row], CPU)).entropy_T
    logits_LV = model(torch.from_numpy(row.tokens)[None]).logits[0].double() / 0.5
    expected = torch.distributions.Categorical(logits=logits_LV).entropy()[np.flatnonzero(row.mask) - 1]
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-5)


@pytest.mark.parametrize(("bound", "ranks"), [(40, 1), (100, 1), (100, 3), (10_000, 1), (10_000, 2)])
def test_packing_does_not_change_loss_or_gradient(model: Any, bound: int, ranks: int) -> None:
    rows = rows_of()
    loss, vector = gradient(model, rows, [[i] for i in range(len(rows))])
    planned = [part for rank in plan([row.length for row in rows], bound, ranks) for part in rank if part]
    packed_loss, packed = gradient(model, rows, planned)
    assert packed_loss == pytest.approx(loss, rel=1e-5)
    assert relative(packed, vector) < 1e-5


@pytest.mark.parametrize("turns", [2, 4, 8])
def test_one_row_has_the_gradient_of_a_row_for_each_turn(model: Any, turns: int) -> None:
    rng = random.Random(turns)
    tokens, mask, cuts = [], [], []
    for _ in range(turns):
        for given, size in ((0, rng.randint(3, 9)), (1, rng.randint(2, 6))):
            tokens += [rng.randrange(rig.VOCABULARY) for _ in range(size)]
            mask += [given] * size
        cuts.append(len(tokens))

    def row(end: int, kept: range) -> LearnerRow:
        chosen = [bool(m) and i in kept for i, m in enumerate(mask[:end])]
        return LearnerRow(
            group_id="g",
            tokens=np.array(tokens[:end]),
            mask=np.array(chosen),
            logprobs=np.full(end, -6.0, dtype=np.float32),
            advantages=np.full(end, 0.7, dtype=np.float32),
            episode=0,
        )

    merged = [row(len(tokens), range(len(tokens)))]
    by_turn = [row(end, range(start, end)) for start, end in zip([0, *cuts], cuts, strict=False)]
    assert sum(r.action_tokens for r in by_turn) == merged[0].action_tokens
    loss, vector = gradient(model, merged, [[0]])
    split_loss, split = gradient(model, by_turn, [list(range(turns))])
    assert split_loss == pytest.approx(loss, rel=1e-5)
    assert relative(split, vector) < 1e-5


def test_every_ratio_is_1_on_the_weights_that_sampled(model: Any) -> None:
    rows = rows_of()
    batch = micro_batch(rows, CPU)
    policy = policy_of(model)
    sampled = torch.cat([naive(model, row) for row in rows]).float().detach()
    _, tokens = OBJECTIVE.token_loss(policy(batch).logprob_T, sampled, batch.advantage_T, batch.weight_T)
    np.testing.assert_allclose(tokens.ratio_T, 1.0, atol=1e-5)
    assert not tokens.clipped_T.any()


def test_an_empty_micro_batch_gives_every_weight_a_zero_gradient(model: Any) -> None:
    (policy_of(model)(micro_batch([], CPU)).logprob_T.sum() * 0.0).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(g is not None and not g.any() for g in gradients)


def test_a_new_adapter_changes_nothing_and_depends_on_the_seed(folder: Path) -> None:
    spec = ModelSpec.model_validate(
        {"base": f"file://{folder}", "dtype": "float32", "lora": {"rank": 4, "alpha": 8}}
    )
    bare = ModelSpec.model_validate({"base": f"file://{folder}", "dtype": "float32", "full": {}})
    rows = rows_of()
    first, second, other = (models.load(folder, spec, seed) for seed in (7, 7, 8))
    plain = policy_of(models.load(folder, bare, 0))(micro_batch(rows, CPU)).logprob_T
    adapted = policy_of(first)(micro_batch(rows, CPU)).logprob_T
    np.testing.assert_allclose(adapted.detach(), plain.detach(), atol=1e-6)

    def trained(model: Any) -> Tensor:
        return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])

    assert torch.equal(trained(first), trained(second))
    assert not torch.equal(trained(first), trained(other))


def test_recomputing_activations_changes_no_gradient(model: Any) -> None:
    rows = rows_of()
    loss, vector = gradient(model, rows, [list(range(len(rows)))])
    models.save_memory(model)
    recomputed_loss, recomputed = gradient(model, rows, [list(range(len(rows)))])
    assert recomputed_loss == loss
    assert relative(recomputed, vector) < 1e-6


def test_recomputed_activations_are_deterministic(tmp_path: Path) -> None:
    """In training mode, phimoe adds random noise to its inputs and chooses experts at random."""
    from transformers import AutoModelForCausalLM, PhimoeConfig

    config = PhimoeConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        router_jitter_noise=0.01,
        input_jitter_noise=0.01,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    spec = ModelSpec.model_validate({"base": f"file://{tmp_path}", "dtype": "float32", "full": {}})
    model: Any = models.load(tmp_path, spec, seed=0)
    tokens_BL = torch.arange(24)[None]
    with torch.no_grad():
        evaluated = model(tokens_BL).logits
    models.save_memory(model)
    recomputed = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: recomputed.append(True))
    found = model(tokens_BL).logits
    assert torch.equal(found.detach(), evaluated)
    found.sum().backward()
    assert len(recomputed) == 2


def test_dropout_is_off_in_every_part_of_a_model() -> None:
    from transformers import Gemma3Config, Gemma3TextConfig, OPTConfig

    several = Gemma3Config(text_config=Gemma3TextConfig(attention_dropout=0.1))
    one = OPTConfig(dropout=0.1, layerdrop=0.1)
    for config in (several, one):
        models._no_dropout(config)
    assert several.text_config.attention_dropout == 0
    assert (one.dropout, one.layerdrop) == (0, 0)
