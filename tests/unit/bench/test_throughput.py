"""The learner's step is compared with the fastest plain computation of the same result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from bench.learner import sides, throughput
from bench.learner.sides import Lean, Packed
from bench.learner.throughput import section
from bench.learner.work import model_of, ragged, row
from bench.support.model import TINY

from headway_trainer.layout import Choice, choose, quadratic_share
from headway_trainer.policy import CHUNK, Policy

VOCABULARY = 97
ROWS = [row(turns, VOCABULARY, seed=n, episode=n) for n, turns in enumerate(ragged(5, seed=0))]
LENGTHS = [each.length for each in ROWS]
SECONDS = {"ours": 1.0, "trl": 3.0, "bare": 1.8, "one by one": 1.2, "lean": 1.1}
LOSSES = {"ours": 0.5, "trl": 0.5, "lean": 4.0, "packed": 4.0}


def learners_choice() -> Choice:
    model = model_of(TINY, VOCABULARY)
    return choose(Policy(model, model, temperature=1.0), torch.device("cpu"), quadratic_share(model))


def test_micro_batches_are_the_learners_and_match_single_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sides, "MICRO_BATCH_TOKENS", sum(LENGTHS) * 2 // 3)
    alone, together = model_of(TINY, VOCABULARY), model_of(TINY, VOCABULARY)
    for model in (alone, together):
        monkeypatch.setattr(model, "zero_grad", lambda: None)
    widths, heads = [], []
    together.model.embed_tokens.register_forward_hook(lambda *a: widths.append(tuple(a[1][0].shape)))
    together.lm_head.register_forward_hook(lambda *a: heads.append(a[1][0].shape[1]))
    packed = Packed(together, ROWS, learners_choice())
    assert packed.step() == pytest.approx(Lean(alone, ROWS).step(), abs=1e-5)
    assert [batch for batch, _ in widths] == [1, 1]
    assert sum(width for _, width in widths) == sum(LENGTHS), "something is padded"
    assert sum(heads) == sum(each.action_tokens for each in ROWS), "the head sees what is not trained"
    for (name, one), other in zip(alone.named_parameters(), together.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-6), name


@pytest.mark.parametrize(("packed", "met"), [(0.95, True), (0.85, False), (1.3, True)])
def test_the_goal_is_judged_by_the_fastest_bare_side(packed: float, met: bool) -> None:
    seconds = {name: [taken] * 3 for name, taken in (SECONDS | {"packed": packed}).items()}
    goal = section(seconds, action_tokens=10, tokens=20, losses=LOSSES).goals[1]
    assert goal.met is met
    fastest = min(("packed", packed), ("lean", 1.1), key=lambda side: side[1])
    assert goal.found == f"{fastest[1]:.2f} of the fastest of 4 ({fastest[0]})"


@pytest.mark.parametrize("side", ["trl", "packed"])
def test_sides_that_compute_something_else_are_refused(side: str) -> None:
    seconds = {name: [taken] for name, taken in (SECONDS | {"packed": 1.0}).items()}
    with pytest.raises(AssertionError, match=f"and {side} do not compute the same"):
        section(seconds, action_tokens=10, tokens=20, losses=LOSSES | {side: 1.0})


def test_the_page_states_whether_the_head_runs_in_one_piece() -> None:
    page = " ".join(throughput.READ)
    in_pieces = CHUNK // sides.VOCABULARY < sides.MICRO_BATCH_TOKENS
    assert ("in pieces of" in page) is in_pieces
    assert ("The head runs in one piece on both sides" in page) is not in_pieces
