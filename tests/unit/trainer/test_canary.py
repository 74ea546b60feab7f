"""The canary: a fixed sequence with which servers prove their weights."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from torch import Tensor

from headway_api.exits import JobError
from headway_trainer.policy import Policy
from headway_trainer.publish.canary import LENGTH, canary

VOCABULARY = 8


class Scripted:
    """A model with equal logits for all tokens, except one token at the first position, which has `odd`."""

    def __init__(self, odd: float) -> None:
        self._odd = odd

    def logits(self, tokens_1L: Tensor, positions_T: Tensor) -> Tensor:
        logits_TV = torch.zeros(len(positions_T), VOCABULARY)
        logits_TV[0, 0] = self._odd
        return logits_TV


def made(odd: float) -> list[float]:
    policy = cast("Policy", Scripted(odd))
    return canary(policy, VOCABULARY, torch.float32, torch.device("cpu")).logprobs


def test_every_token_but_the_first_has_a_logprob() -> None:
    assert made(0.0) == pytest.approx([-math.log(VOCABULARY)] * (LENGTH - 1))


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_weights_with_non_finite_outputs_are_never_published(odd: float) -> None:
    with pytest.raises(JobError, match=r"not all finite in torch\.float32") as refused:
        made(odd)
    assert (refused.value.termination.reason, refused.value.termination.field) == (
        "WeightsNotFinite",
        "spec.model.dtype",
    )
