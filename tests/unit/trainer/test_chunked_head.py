"""Log-probabilities in chunks equal those of all logits at once, in memory independent of the length."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import VOCABULARY, write_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headway_api.spec.model import ModelSpec
from headway_trainer import head
from headway_trainer import model as models
from headway_trainer.batch import LearnerRow
from headway_trainer.policy import MicroBatch, Policy, Prediction, micro_batch

CPU = torch.device("cpu")
CHUNK = 8
"""Positions in a chunk."""
LORA = {"rank": 4, "alpha": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"), tied=False)


def model_of(folder: Path, **training: Any) -> Any:
    spec = {"base": f"file://{folder}", "dtype": "float32", **(training or {"full": {}})}
    return models.load(folder, ModelSpec.model_validate(spec), seed=0)


def chunked(model: Any, frozen: Any = None) -> Policy:
    policy = Policy(model, model, temperature=0.7, frozen=frozen)
    policy.finish = head.finish(model)
    assert policy.finish is not None
    return policy


def batch_of(rows: int, length: int = 40) -> MicroBatch:
    draw = np.random.default_rng(5)
    return micro_batch(
        [
            LearnerRow(
                group_id="g",
                tokens=draw.integers(0, VOCABULARY, length),
                mask=np.arange(length) % 2 == 1,
                logprobs=np.zeros(length, dtype=np.float32),
                advantages=draw.normal(size=length).astype(np.float32),
                episode=index,
            )
            for index in range(rows)
        ],
        CPU,
    )


def loss(found: Prediction, batch: MicroBatch) -> Tensor:
    return (found.logprob_T * batch.advantage_T).sum() + 0.3 * found.entropy_T.sum()


def gradient(model: Any, value: Tensor) -> Tensor:
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


class Widest(TorchDispatchMode):
    """Records the largest number of positions of any tensor of logits."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.positions = 0
        self._weights = (tuple(weight.shape), tuple(weight.t().shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if (
                isinstance(tensor, Tensor)
                and VOCABULARY in tensor.shape
                and tensor.shape not in self._weights
            ):
                self.positions = max(self.positions, tensor.numel() // VOCABULARY)
        return out


@contextlib.contextmanager
def saved_logits() -> Iterator[list[int]]:
    """Yields a list of the positions of each tensor of logits that is kept for the backward pass."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.dim() > 1 and tensor.shape[-1] == VOCABULARY:
            kept.append(tensor.numel() // VOCABULARY)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("training", [{"full": {}}, {"lora": LORA}])
def test_chunks_have_the_value_and_gradient_of_all_logits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, entropy_gradient: bool, training: Any
) -> None:
    model, batch = model_of(folder, **training), batch_of(3)
    whole = Policy(model, model, temperature=0.7)
    expected = whole(batch, entropy_gradient)
    expected_gradient = gradient(model, loss(expected, batch))
    monkeypatch.setattr("headway_trainer.policy.CHUNK", CHUNK * VOCABULARY)
    found = chunked(model)(batch, entropy_gradient)
    assert found.entropy_T.requires_grad == expected.entropy_T.requires_grad == entropy_gradient
    torch.testing.assert_close(found.logprob_T, expected.logprob_T, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.entropy_T, expected.entropy_T, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient(model, loss(found, batch)), expected_gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_memory_holds_one_chunk_of_logits_at_any_length(
    folder: Path, monkeypatch: pytest.MonkeyPatch, entropy_gradient: bool
) -> None:
    monkeypatch.setattr("headway_trainer.policy.CHUNK", CHUNK * VOCABULARY)
    model = model_of(folder)
    for rows in (2, 6):
        batch = batch_of(rows)
        assert len(batch.targets_T) > 4 * CHUNK
        with Widest(head.output_head(model).weight) as widest:  # type: ignore[arg-type]
            with saved_logits() as kept:
                value = loss(chunked(model)(batch, entropy_gradient), batch)
            value.backward()
        assert widest.positions == CHUNK
        assert kept == []


def test_the_counters_see_the_logits_of_an_unchunked_head(folder: Path) -> None:
    model, batch = model_of(folder), batch_of(2)
    with Widest(head.output_head(model).weight) as widest, saved_logits() as kept:  # type: ignore[arg-type]
        Policy(model, model, temperature=0.7)(batch)
    assert widest.positions == len(batch.targets_T)
    assert len(batch.targets_T) in kept


def test_entropy_has_a_gradient_if_requested(folder: Path) -> None:
    model, batch = model_of(folder), batch_of(1)
    found = gradient(model, chunked(model)(batch, entropy_gradient=True).entropy_T.sum())
    logits_LV = model(batch.tokens_BL).logits[0, batch.positions_T] / 0.7
    entropy = torch.distributions.Categorical(logits=logits_LV).entropy().sum()
    torch.testing.assert_close(found, gradient(model, entropy), atol=1e-5, rtol=1e-3)


def test_the_reference_is_the_model_without_its_adapter(folder: Path) -> None:
    model, batch = model_of(folder, lora=LORA), batch_of(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1)
    policy = chunked(model)
    expected = chunked(model_of(folder))(batch).logprob_T.detach()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    before = policy(batch).logprob_T.detach()
    torch.testing.assert_close(policy.reference(batch), expected, atol=1e-6, rtol=1e-6)
    assert not policy.reference(batch).requires_grad
    assert (before - expected).abs().max() > 0.01
    torch.testing.assert_close(policy(batch).logprob_T.detach(), before)
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == trained


def test_the_reference_of_full_training_is_a_frozen_copy(folder: Path) -> None:
    model, batch = model_of(folder), batch_of(2)
    policy = chunked(model, frozen=model_of(folder))
    expected = policy(batch).logprob_T.detach()
    for parameter in model.parameters():
        parameter.data.mul_(1.1)
    torch.testing.assert_close(policy.reference(batch), expected, atol=1e-6, rtol=1e-6)
    assert (policy(batch).logprob_T - expected).abs().max() > 0.01


def test_there_is_no_reference_without_adapter_or_copy(folder: Path) -> None:
    with pytest.raises(ValueError, match="neither an adapter nor a frozen copy"):
        chunked(model_of(folder)).reference(batch_of(1))


def test_a_head_with_an_adapter_is_not_chunked(folder: Path) -> None:
    assert head.finish(model_of(folder, lora=LORA | {"targets": ["lm_head", "q_proj"]})) is None
