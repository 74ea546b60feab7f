"""Packed rows give the same numbers as each row alone. A proof checks this for each loaded model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_models import CPU, LENGTHS, made, rows_of
from torch import Tensor

from headway_trainer import attention
from headway_trainer.head import without_adapter
from headway_trainer.layout import choose, quadratic_share
from headway_trainer.policy import Policy, micro_batch


def qwen() -> Any:
    return made("Qwen3", head_dim=8)


def windowed() -> Any:
    return made("Mistral", sliding_window=6)


def mixed_windows() -> Any:
    kinds = ["sliding_attention", "full_attention"]
    return made("Qwen3", head_dim=8, use_sliding_window=True, sliding_window=5, layer_types=kinds)


def scaled_logits() -> Any:
    return made("Granite", logits_scaling=3.0)


def capped_logits() -> Any:
    return made(
        "Gemma2", head_dim=8, final_logit_softcapping=2.0, attn_logit_softcapping=None, sliding_window=4
    )


def capped_attention() -> Any:
    return made("Gemma2", head_dim=8, final_logit_softcapping=2.0, attn_logit_softcapping=5.0)


def sinks() -> Any:
    return made("GptOss", head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=8)


def recurrent() -> Any:
    import transformers

    torch.manual_seed(3)
    config = transformers.MambaConfig(
        vocab_size=97, hidden_size=32, state_size=4, num_hidden_layers=2, use_mambapy=False
    )
    return transformers.MambaForCausalLM(config)


def gradient(policy: Policy, batch: Any) -> Tensor:
    """Gradient of a weighted sum of log-probabilities, as one vector."""
    model: Any = policy.model
    model.zero_grad()
    (policy(batch).logprob_T * batch.advantage_T).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("make", [qwen, windowed, mixed_windows, scaled_logits, capped_logits])
def test_packed_rows_have_values_and_gradients_of_padded_ones(make: Callable[[], Any]) -> None:
    model = make()
    policy = Policy(model, model, temperature=0.8)
    padded = micro_batch(rows_of(), CPU)
    expected, expected_gradient = policy(padded).logprob_T.detach(), gradient(policy, padded)
    choice = choose(policy, CPU, quadratic=0.5)
    assert (choice.layout.packed, choice.attention, choice.why) == (True, attention.BY_LENGTH, "")
    assert choice.head == "chunked"
    assert policy.layout.quadratic == 0.5
    packed = micro_batch(rows_of(), CPU, packed=True)
    assert packed.tokens_BL.shape == (1, sum(LENGTHS))
    for name in ("targets_T", "sampler_T", "advantage_T", "weight_T", "row_T"):
        torch.testing.assert_close(getattr(packed, name), getattr(padded, name))
    torch.testing.assert_close(policy(packed).logprob_T.detach(), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(gradient(policy, packed), expected_gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (capped_attention, "softcap"),
        (sinks, "s_aux"),
        (recurrent, ""),
    ],
)
def test_models_that_cannot_be_packed_are_padded(make: Callable[[], Any], why: str) -> None:
    model = make()
    own = model.config._attn_implementation
    policy = Policy(model, model, temperature=1.0)
    batch = micro_batch(rows_of(), CPU)
    expected = policy(batch).logprob_T.detach()
    choice = choose(policy, CPU, quadratic=0.0)
    assert not choice.layout.packed
    assert choice.why
    assert why in choice.why
    assert model.config._attn_implementation == own == choice.attention
    torch.testing.assert_close(policy(batch).logprob_T.detach(), expected)


@pytest.mark.parametrize(("make", "forgotten"), [(qwen, "rows"), (windowed, "sliding_window")])
def test_attention_that_ignores_an_argument_is_not_used(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], forgotten: str
) -> None:
    proper = attention.by_length

    def forgetful(*arguments: Any, **options: Any) -> Any:
        return proper(*arguments, **options | {forgotten: None})

    monkeypatch.setattr(attention, "by_length", forgetful)
    model = make()
    policy = Policy(model, model, temperature=1.0)
    choice = choose(policy, CPU, quadratic=0.0)
    assert not choice.layout.packed
    assert choice.why.endswith("packed rows give other log-probabilities than each row alone")


def test_two_kernels_agree_in_values_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        return attention.variable_fails(4, 2, 8, CPU, torch.bfloat16)

    def turned_gradient(module: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        return attention.by_length(module, query, key, 2 * value.detach() - value, *rest, **options)

    monkeypatch.setattr(attention, "variable", attention.by_length)
    assert fails() == ""
    monkeypatch.setattr(attention, "variable", turned_gradient)
    assert fails().startswith("kernels differ by")


def test_the_frozen_copy_has_the_policys_layout() -> None:
    model, frozen = qwen(), qwen()
    policy = Policy(model, model, temperature=1.0, frozen=frozen)
    assert choose(policy, CPU, quadratic=0.0).layout.packed
    assert frozen.config._attn_implementation == attention.BY_LENGTH
    batch = micro_batch(rows_of(), CPU, packed=True)
    torch.testing.assert_close(policy.reference(batch), policy(batch).logprob_T.detach())


def test_the_share_of_attention_is_counted_from_the_shape() -> None:
    model = qwen()
    weights = 2 * (32 * 8 * (4 + 4 + 2 + 2) + 3 * 32 * 48)
    assert quadratic_share(model) == pytest.approx(2 * 4 * 8 / weights)
    assert without_adapter(model) is model
