"""Rotary embeddings that depend on length: fixed by the context length, and independent of other rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from random_models import COMMON, CPU, made, rows_of

from headway_api.exits import JobError
from headway_api.rope import own_length
from headway_trainer import rope
from headway_trainer.layout import choose
from headway_trainer.packing import plan
from headway_trainer.policy import Policy, micro_batch

HEAD = 8
ORIGINAL, LONGEST, THETA = 16, 64, 10_000.0
SHORT = [1.0, 1.1, 1.2, 1.3]
LONG = [1.5, 3.0, 7.0, 20.0]
MIXED = (31, 9, 9)
"""Lengths of rows, some beyond the original length and some below."""


def longrope(original: int = ORIGINAL, **settings: Any) -> Any:
    """A Phi-3 with random weights and a pretraining length of `original` tokens, stretched to 64."""
    scaling = {"rope_type": "longrope", "rope_theta": THETA, "short_factor": SHORT, "long_factor": LONG}
    return made(
        "Phi3",
        max_position_embeddings=LONGEST,
        original_max_position_embeddings=original,
        rope_parameters=scaling | settings,
    )


def dynamic(**settings: Any) -> Any:
    scaling = {"rope_type": "dynamic", "rope_theta": THETA, "factor": 4.0}
    return made("Llama", max_position_embeddings=ORIGINAL, rope_parameters=scaling | settings)


def by_formula(factors: list[float] | None, scale: float, kind: str = "Phi3") -> Any:
    """The same weights without scaling of their own.

    Pair i turns by position / (factor_i theta^(2i/d)), times `scale`.
    """
    plain = {"rope_type": "default", "rope_theta": THETA}
    model = made(kind, max_position_embeddings=LONGEST, rope_parameters=plain)
    pairs = np.arange(HEAD // 2)
    frequencies = 1 / (np.array(factors or [1.0] * len(pairs)) * THETA ** (2 * pairs / HEAD))
    rotary = model.model.rotary_emb
    rotary.inv_freq = torch.tensor(frequencies, dtype=torch.float32)
    rotary.attention_scaling = scale
    return model


def logprobs(model: Any, lengths: tuple[int, ...], *, together: bool) -> np.ndarray[Any, Any]:
    policy = Policy(model, model, temperature=1.0)
    rows = rows_of(lengths)
    batches = [rows] if together else [[row] for row in rows]
    with torch.no_grad():
        return np.concatenate([policy(micro_batch(batch, CPU)).logprob_T.numpy() for batch in batches])


STRETCHED = math.sqrt(1 + math.log(LONGEST / ORIGINAL) / math.log(ORIGINAL))


@pytest.mark.parametrize(
    ("context", "lengths", "factors"),
    [(LONGEST, MIXED, LONG), (ORIGINAL, (16, 9, 9), SHORT), (None, (16, 9, 9), SHORT)],
)
def test_longrope_takes_the_factors_of_its_servers(
    context: int | None, lengths: tuple[int, ...], factors: list[float]
) -> None:
    model = longrope()
    rope.fix(model, context)
    expected = logprobs(by_formula(factors, STRETCHED), lengths, together=False)
    np.testing.assert_allclose(logprobs(model, lengths, together=True), expected, atol=2e-4)
    np.testing.assert_allclose(logprobs(model, lengths, together=False), expected, atol=2e-4)


def test_a_scale_of_longrope_is_the_one_that_servers_apply() -> None:
    model = longrope(long_mscale=1.7, attention_factor=1.1)
    rope.fix(model, LONGEST)
    expected = logprobs(by_formula(LONG, 1.7), MIXED, together=False)
    np.testing.assert_allclose(logprobs(model, MIXED, together=True), expected, atol=2e-4)


def test_dynamic_ntk_keeps_its_first_factors() -> None:
    model = dynamic()
    rope.fix(model, ORIGINAL)
    expected = logprobs(by_formula(None, 1.0, "Llama"), (16, 9), together=False)
    np.testing.assert_allclose(logprobs(model, (16, 9), together=True), expected, atol=2e-4)
    # Fixed factors do not change. After a long row, transformers would choose others for this row.
    before = logprobs(model, (16,), together=False)
    logprobs(model, (31,), together=False)
    np.testing.assert_array_equal(logprobs(model, (16,), together=False), before)


@pytest.mark.parametrize(
    ("make", "context", "says"),
    [
        (dynamic, ORIGINAL + 1, "at most 16"),
        (lambda: dynamic(max_trained_positions=8), ORIGINAL, "max_trained_positions"),
    ],
)
def test_dynamic_ntk_that_servers_read_differently_is_refused(make: Any, context: int, says: str) -> None:
    with pytest.raises(JobError) as refused:
        rope.fix(make(), context)
    assert refused.value.termination.reason == "RopeDependsOnLength"
    assert says in refused.value.termination.sentence
    assert refused.value.termination.field == "spec.model.base"


def phimoe() -> Any:
    """A Phi-MoE, which computes its factors from the longest row in a `forward` of its own."""
    scaling = {"rope_type": "longrope", "rope_theta": THETA, "short_factor": SHORT, "long_factor": LONG}
    scaling |= {"short_mscale": 1.2, "long_mscale": 1.3, "original_max_position_embeddings": ORIGINAL}
    settings: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": HEAD}
    return made("Phimoe", max_position_embeddings=LONGEST, rope_parameters=scaling, **settings)


def test_an_embedding_that_cannot_be_fixed_is_refused() -> None:
    with pytest.raises(JobError, match="contextLength to at most 16"):
        rope.fix(phimoe(), LONGEST)
    rope.fix(phimoe(), ORIGINAL)  # no row is long enough for other factors


def test_the_proof_has_a_row_beyond_the_original_length() -> None:
    model = longrope()
    rope.fix(model, LONGEST)
    assert rope.proof_length(model, 8192) == ORIGINAL + 1
    assert rope.proof_length(model, ORIGINAL) == 0
    policy = Policy(model, model, temperature=1.0)
    assert choose(policy, CPU, quadratic=0.0).layout.packed
    batch = micro_batch(rows_of(MIXED), CPU, packed=True)
    expected = logprobs(by_formula(LONG, STRETCHED), MIXED, together=False)
    np.testing.assert_allclose(policy(batch).logprob_T.detach().numpy(), expected, atol=2e-4)


def test_the_proof_sees_factors_that_change_with_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof has a row of 23 tokens and one that is longer than the original length."""
    model = longrope(original=30)
    monkeypatch.setattr(rope, "proof_length", lambda model, limit: 31)
    choice = choose(Policy(model, model, temperature=1.0), CPU, quadratic=0.0)
    assert choice.why.endswith("packed rows give other log-probabilities than each row alone")


def test_no_micro_batch_plan_changes_a_rows_logprobs() -> None:
    model = longrope()
    rope.fix(model, LONGEST)
    rows = rows_of((31, 20, 17, 9, 9, 5))
    policy = Policy(model, model, temperature=1.0)
    found = []
    for limit in (40, 200):
        (batches,) = plan([row.length for row in rows], limit, 1)
        by_row: dict[int, Any] = {}
        for chosen in batches:
            batch = micro_batch([rows[index] for index in chosen], CPU)
            values = policy(batch).logprob_T.detach().split([rows[index].action_tokens for index in chosen])
            by_row |= dict(zip(chosen, values, strict=True))
        found.append(torch.cat([by_row[index] for index in range(len(rows))]))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_a_server_without_a_set_length_serves_the_original_one(key: str) -> None:
    config = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    assert own_length(config | {key: {"type": "longrope"}}, 131072) == 4096
    assert own_length(config | {key: {"full_attention": {"rope_type": "longrope"}}}, 131072) == 4096
    assert own_length(config | {key: {"rope_type": "llama3"}}, 131072) == 131072
    assert own_length({"text_config": config | {key: {"type": "su"}}}, 131072) == 4096
    assert own_length(COMMON, 128) == 128
