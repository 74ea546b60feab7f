"""The model as a policy: log-probabilities of the action tokens of a micro-batch.

The output head, the widest matrix there is, sees only the positions that predict an action token: a hook
hands it those instead of the whole rectangle, so that scaling and capping of logits stay the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from headway_trainer.batch import TrainingRow

Forward = Callable[..., Any]
ENTROPY_CHUNK: Final = 512
"""Positions whose softmax is held at once."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows padded to one rectangle, and the T action tokens in it."""

    tokens_BL: Tensor
    positions_T: Tensor
    """Where in the flattened rectangle each action token is predicted: one before it stands."""
    targets_T: Tensor
    sampler_T: Tensor
    advantage_T: Tensor
    weight_T: Tensor
    """What each token's loss counts in the optimizer step."""
    row_T: Tensor
    """Which of the micro-batch's rows each token belongs to, counted from 0."""
    empty: bool = False
    """True for one that only keeps the ranks in step: its loss is nothing."""


@dataclass(frozen=True)
class Prediction:
    """What the policy says of each action token."""

    logprob_T: Tensor
    entropy_T: Tensor
    """In nats, of the whole distribution at the sampling temperature; no gradient."""


def micro_batch(rows: Sequence[TrainingRow], device: torch.device) -> MicroBatch:
    """Pad `rows` on the right; without rows, the empty micro-batch."""
    if not rows:
        zero = torch.zeros(1, device=device)
        start = torch.zeros(1, dtype=torch.long, device=device)
        return MicroBatch(start.new_zeros(1, 2), start, start, zero, zero, zero, start, empty=True)
    width = max(row.length for row in rows)
    tokens_BL = torch.zeros(len(rows), width, dtype=torch.long)
    mask_BL = torch.zeros(len(rows), width, dtype=torch.bool)
    sampler_BL = torch.zeros(len(rows), width)
    advantage_BL = torch.zeros(len(rows), width)
    for index, row in enumerate(rows):
        tokens_BL[index, : row.length] = torch.from_numpy(row.tokens)
        mask_BL[index, : row.length] = torch.from_numpy(row.mask)
        sampler_BL[index, : row.length] = torch.from_numpy(row.logprobs)
        advantage_BL[index, : row.length] = torch.from_numpy(row.advantages)
    weight_B = torch.tensor([row.weight for row in rows])
    flat_T = mask_BL.flatten().nonzero().squeeze(1)
    return MicroBatch(
        tokens_BL=tokens_BL.to(device),
        positions_T=(flat_T - 1).to(device),
        targets_T=tokens_BL.flatten()[flat_T].to(device),
        sampler_T=sampler_BL.flatten()[flat_T].to(device),
        advantage_T=advantage_BL.flatten()[flat_T].to(device),
        weight_T=weight_B[flat_T // width].to(device),
        row_T=(flat_T // width).to(device),
    )


class Policy:
    """Runs `forward` (the bare model or an engine around it) and reads off action tokens."""

    def __init__(self, forward: Forward, head: nn.Module, temperature: float) -> None:
        """`temperature` is the sampler's: it divides the logits, as the recorded log-probabilities had it."""
        self._forward = forward
        self._temperature = temperature
        self._positions: Tensor | None = None
        head.register_forward_pre_hook(self._select)

    def __call__(self, batch: MicroBatch) -> Prediction:
        """Log-probability and entropy of each action token, in float32."""
        logits_TV = self.logits(batch.tokens_BL, batch.positions_T) / self._temperature
        logprob_T = logits_TV.gather(1, batch.targets_T[:, None]).squeeze(1) - logits_TV.logsumexp(1)
        with torch.no_grad():
            entropy_T = torch.cat([_entropy(chunk) for chunk in logits_TV.split(ENTROPY_CHUNK)])
        return Prediction(logprob_T, entropy_T)

    def logits(self, tokens_BL: Tensor, positions_T: Tensor) -> Tensor:
        """Raw logits at positions of the flattened rectangle, (T, V) in float32."""
        self._positions = positions_T
        try:
            output = self._forward(input_ids=tokens_BL, use_cache=False)
        finally:
            self._positions = None
        return output.logits[0].float()

    def _select(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._positions is None:
            return inputs
        hidden_BLH, *rest = inputs
        return (hidden_BLH.flatten(0, 1)[self._positions][None], *rest)


def _entropy(logits_TV: Tensor) -> Tensor:
    log_probability_TV = torch.log_softmax(logits_TV, dim=1)
    return -(log_probability_TV.exp() * log_probability_TV).sum(1)
