"""Log-probabilities of the old policy are computed once for each batch, and belong to the right tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import learner_rig as rig
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_model import write_model
from torch import Tensor

from headway_api.records import Batch
from headway_api.spec.algorithm import AlgorithmSpec
from headway_api.spec.model import ModelSpec
from headway_trainer import model as models
from headway_trainer.batch import LearnerRow, mini_batches, training_batch
from headway_trainer.engine import Update
from headway_trainer.objective.presets import Objective
from headway_trainer.packing import Layout
from headway_trainer.policy import MicroBatch, Policy, Prediction
from headway_trainer.step import optimizer_step, with_old

VOCABULARY = rig.VOCABULARY
PLANNED = 64
"""Planned tokens of an episode."""
flat = chain.from_iterable


class Bigrams:
    """A policy whose table gives a token's log-probability from the token and the one before it."""

    model = torch.nn.Identity()

    def __init__(self, packed: bool) -> None:
        self.layout = Layout(packed=packed)
        self.passes = 0
        numbers = torch.Generator().manual_seed(0)
        self.table = -torch.rand(VOCABULARY, VOCABULARY, generator=numbers) - 5.5
        self.table.requires_grad_()

    def __call__(self, batch: MicroBatch, entropy_gradient: bool = False) -> Prediction:
        self.passes += 1
        before_T = batch.tokens_BL.flatten()[batch.positions_T]
        logprob_T = self.table[before_T, batch.targets_T]
        return Prediction(logprob_T, torch.zeros_like(logprob_T))

    def of(self, row: LearnerRow) -> NDArray[np.float32]:
        """Log-probabilities of a row's action tokens, of shape (T,)."""
        places = np.flatnonzero(row.mask)
        found: NDArray[np.float32] = self.table.detach()[row.tokens[places - 1], row.tokens[places]].numpy()
        return found


class OneOf:
    """A rank whose peers give scripted values."""

    device = torch.device("cpu")

    def __init__(self, world: int = 1, rank: int = 0, others: Sequence[Sequence[Any]] = ()) -> None:
        """`others`: for each other rank, the values that it gives to successive calls of `gather`."""
        self.world, self.rank = world, rank
        self.others = others
        self.gathered: list[Any] = []

    def gather(self, value: Any) -> list[Any]:
        self.gathered.append(value)
        return [value, *(other[len(self.gathered) - 1] for other in self.others)]

    def total(self, values: list[float]) -> list[float]:
        return values

    def maximum(self, values: list[float]) -> list[float]:
        return values


def parts_of(objective: Objective, updates: int = 2) -> list[list[LearnerRow]]:
    groups = [rig.group(f"g{n}", [1.0, 0.0, 0.5]) for n in range(4)]
    return mini_batches(training_batch(Batch(step=1, epoch=0, groups=groups), objective), updates, objective)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tokens", [40, 4096])
def test_every_row_gets_its_own_old_log_probabilities(packed: bool, tokens: int) -> None:
    objective, policy = Objective.of(AlgorithmSpec(correction="none")), Bigrams(packed)
    parts = parts_of(objective)
    known = with_old(policy, objective, parts, ranks=OneOf(), max_tokens=tokens)  # type: ignore[arg-type]
    assert [len(part) for part in known] == [len(part) for part in parts]
    for row, source in zip(flat(known), flat(parts), strict=True):
        assert row.old is not None
        np.testing.assert_array_equal(row.old, policy.of(source))
        np.testing.assert_array_equal(row.tokens, source.tokens)
        assert row.weight == source.weight


def test_ranks_share_the_pass_over_the_old_policy() -> None:
    objective, policy = Objective.of(AlgorithmSpec(correction="tis")), Bigrams(True)
    parts = parts_of(objective)
    alone = OneOf()
    with_old(policy, objective, parts, ranks=alone, max_tokens=60)  # type: ignore[arg-type]
    one = OneOf(2, 1, [alone.gathered])
    with_old(policy, objective, parts, ranks=one, max_tokens=60)  # type: ignore[arg-type]
    other = OneOf(2, 0, [one.gathered])
    known = with_old(policy, objective, parts, ranks=other, max_tokens=60)  # type: ignore[arg-type]
    for here, there, every in zip(other.gathered, one.gathered, alone.gathered, strict=True):
        assert here.keys() | there.keys() == every.keys()
        assert not here.keys() & there.keys()
    for row, source in zip(flat(known), flat(parts), strict=True):
        np.testing.assert_array_equal(row.old, policy.of(source))


def test_a_correction_without_old_policy_costs_no_pass() -> None:
    objective, policy = Objective.of(AlgorithmSpec()), Bigrams(False)
    parts = parts_of(objective)
    assert with_old(policy, objective, parts, ranks=OneOf(), max_tokens=4096) == parts  # type: ignore[arg-type]
    assert policy.passes == 0


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("correction", ["none", "tis", "decoupled", "sequence_mask"])
def test_unchanged_weights_have_ratio_1_at_every_update(correction: str, packed: bool) -> None:
    objective, policy = Objective.of(AlgorithmSpec(correction=correction)), Bigrams(packed)
    engine = SimpleNamespace(backward=lambda loss: loss.backward(), step=lambda: Update(1.0, 0.0), updates=0)
    known = with_old(policy, objective, parts_of(objective), ranks=OneOf(), max_tokens=60)  # type: ignore[arg-type]
    for rows in known:
        found = optimizer_step(engine, policy, objective, rows, ranks=OneOf(), max_tokens=90).tokens  # type: ignore[arg-type]
        assert found["ratio_min"] == pytest.approx(1.0, abs=1e-5)
        assert found["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert found["clipped"] == 0
        expected = np.concatenate([np.exp(policy.of(row) - row.logprobs[row.mask]) for row in rows])
        if correction in ("tis", "decoupled"):
            weights = np.minimum(expected, 2.0) if correction == "tis" else expected
            assert found["correction"] == pytest.approx(float(weights.mean()), rel=1e-5)


def by_hand(objective: Objective, table: Tensor, rows: Sequence[LearnerRow]) -> Tensor:
    """The loss of a single optimizer step, row by row in float64, with `PLANNED` tokens for each episode."""
    preset = objective.preset
    episodes, prompts = Counter[tuple[str, int]](), Counter[str]()
    for row in rows:
        episodes[row.group_id, row.episode] += row.action_tokens
        prompts[row.group_id] += row.action_tokens
    loss = torch.zeros((), dtype=torch.float64)
    for row in rows:
        places = np.flatnonzero(row.mask)
        assert row.old is not None
        old_T, sampler_T = torch.tensor(row.old).double(), torch.tensor(row.logprobs[places]).double()
        advantage_T = torch.tensor(row.advantages[places]).double()
        log_ratio_T = table[row.tokens[places - 1], row.tokens[places]] - old_T
        if preset.ratio == "sequence":
            log_ratio_T = log_ratio_T.mean().detach() + log_ratio_T - log_ratio_T.detach()
        ratio_T = log_ratio_T.exp()
        clipped_T = ratio_T.clamp(preset.clip_low, preset.clip_high)
        loss_T = -torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)
        if preset.correction == "sequence_mask" and abs((old_T - sampler_T).mean()) > np.log(
            preset.correction_cap
        ):
            loss_T = loss_T * 0
        counted = {
            "token_mean": episodes.total(),
            "sequence_mean": len(episodes) * episodes[row.group_id, row.episode],
            "prompt_mean": len(prompts) * prompts[row.group_id],
            "constant": len(episodes) * PLANNED,
        }[preset.reduction]
        loss = loss + loss_T.sum() / counted
    return loss


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "terms",
    [
        {"loss": "gspo"},
        {"loss": "ppo", "reduction": "sequence_mean"},
        {"loss": "ppo", "reduction": "prompt_mean"},
        {"loss": "gspo", "reduction": "constant"},
        {"loss": "ppo", "correction": "sequence_mask", "correctionCap": 1.1},
    ],
    ids=lambda terms: "-".join(map(str, terms.values())),
)
def test_moved_policy_tokens_have_their_rows_weight_and_ratio(terms: dict[str, Any], packed: bool) -> None:
    """A micro-batch of several rows of unequal length has the same loss as row by row."""
    spec = AlgorithmSpec.model_validate({"correction": "none"} | terms)
    objective, policy = Objective.of(spec, PLANNED), Bigrams(packed)
    numbers = torch.Generator().manual_seed(1)
    groups = [rig.group(f"g{n}", [1.0, 0.0, 0.5][: 3 - n % 2]) for n in range(4)]
    batch = training_batch(Batch(step=1, epoch=0, groups=groups), objective)
    [rows] = with_old(policy, objective, mini_batches(batch, 1, objective), ranks=OneOf(), max_tokens=90)  # type: ignore[arg-type]
    with torch.no_grad():
        policy.table += 0.3 * torch.randn(policy.table.shape, generator=numbers)
    engine = SimpleNamespace(backward=lambda loss: loss.backward(), step=lambda: Update(1.0, 0.0), updates=0)
    found = optimizer_step(engine, policy, objective, rows, ranks=OneOf(), max_tokens=90)  # type: ignore[arg-type]
    assert 1 < found.micro_batches < len(rows), "several, of several rows"
    table = policy.table.detach().double().requires_grad_()
    loss = by_hand(objective, table, rows)
    loss.backward()
    assert policy.table.grad is not None
    assert table.grad is not None
    error = (policy.table.grad.double() - table.grad).norm() / table.grad.norm()
    assert error < 1e-5
    assert found.tokens["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert (0 < found.tokens["masked"] < 1) == (spec.correction == "sequence_mask")


@pytest.mark.parametrize(
    ("where", "cause"), [("table", "policy"), ("logprobs", "servers"), ("advantages", "batch")]
)
def test_the_first_token_with_a_non_finite_value_is_found(where: str, cause: str) -> None:
    """The token is in the third row of the step, wherever that row is in a micro-batch."""
    objective, policy = Objective.of(AlgorithmSpec()), Bigrams(True)
    [rows] = parts_of(objective, 1)
    row = rows[2]
    fifth = int(np.flatnonzero(row.mask)[4])
    if where == "table":
        with torch.no_grad():
            policy.table[row.tokens[fifth - 1], row.tokens[fifth]] = torch.nan
    else:
        getattr(row, where)[fifth] = np.nan
    engine = SimpleNamespace(backward=lambda loss: None, step=lambda: Update(1.0, 0.0), updates=0)
    found = optimizer_step(engine, policy, objective, rows, ranks=OneOf(), max_tokens=60)  # type: ignore[arg-type]
    assert found.non_finite is not None
    assert (found.non_finite.group_id, found.non_finite.episode) == (row.group_id, row.episode)
    assert (found.non_finite.position, found.non_finite.cause) == (4, cause)
    assert "nan" in found.non_finite.seen
    whole = optimizer_step(
        engine, Bigrams(True), objective, parts_of(objective, 1)[0], ranks=OneOf(), max_tokens=60
    )  # type: ignore[arg-type]
    assert whole.non_finite is None


def test_rows_without_old_log_probabilities_are_refused() -> None:
    objective, policy = Objective.of(AlgorithmSpec(correction="none")), Bigrams(False)
    with pytest.raises(ValueError, match="needs rows from `with_old`"):
        optimizer_step(
            SimpleNamespace(backward=lambda loss: None, updates=0),  # type: ignore[arg-type]
            policy,  # type: ignore[arg-type]
            objective,
            parts_of(objective)[0],
            ranks=OneOf(),  # type: ignore[arg-type]
            max_tokens=4096,
        )


def test_every_term_runs_through_a_real_model(tmp_path: Path) -> None:
    base = write_model(tmp_path)
    spec = ModelSpec.model_validate({"base": f"file://{base}", "dtype": "float32", "lora": {"rank": 4}})
    model = models.load(base, spec, seed=0)
    policy = Policy(model, model, 1.0)
    terms = {"kl": {"coefficient": 0.1}, "entropy": {"coefficient": 0.01}, "loss": "gspo"}
    objective = Objective.of(AlgorithmSpec.model_validate(terms | {"correction": "sequence_mask"}))
    engine = SimpleNamespace(backward=lambda loss: loss.backward(), step=lambda: Update(1.0, 0.0), updates=0)
    [rows] = with_old(policy, objective, parts_of(objective, 1), ranks=OneOf(), max_tokens=200)  # type: ignore[arg-type]
    found = optimizer_step(engine, policy, objective, rows, ranks=OneOf(), max_tokens=300).tokens  # type: ignore[arg-type]
    assert found["divergence"] == pytest.approx(0.0, abs=1e-6)  # a new adapter changes nothing
    assert found["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert 0 < found["entropy"] <= np.log(VOCABULARY) + 1e-5
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.05
    moved = optimizer_step(engine, policy, objective, rows, ranks=OneOf(), max_tokens=300).tokens  # type: ignore[arg-type]
    assert moved["divergence"] > 1e-6
