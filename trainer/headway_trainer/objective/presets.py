"""A preset: one choice on each axis of the objective, and the loss that they make together.

To add a method: write one function in its axis's module and enter it in that module's table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from headway_api.exits import JobError
from headway_api.spec.algorithm import AlgorithmSpec
from headway_trainer.objective.advantage import ADVANTAGES, Normalize
from headway_trainer.objective.correction import CORRECTIONS
from headway_trainer.objective.ratio import token_ratio
from headway_trainer.objective.reduction import REDUCTIONS, RowShape
from headway_trainer.objective.surrogate import SURROGATES

UNBOUNDED: Final = (0.0, float("inf"))
Function = TypeVar("Function")


@dataclass(frozen=True)
class TokenStatistics:
    """What a step reports of its tokens, one entry an action token; no gradient."""

    loss_T: Tensor
    ratio_T: Tensor
    clipped_T: Tensor
    log_ratio_T: Tensor
    """Trained policy's log-probability less the sampler's."""


@dataclass(frozen=True)
class Objective:
    """The objective as it runs. Every field is a name in its axis's table or a number."""

    loss: str
    clip_low: float
    clip_high: float
    advantage: str
    normalize: Normalize
    reduction: str
    correction: str

    @classmethod
    def of(cls, spec: AlgorithmSpec) -> Objective:
        """Expand `spec.algorithm`, defaults of the loss included.

        Raises:
            JobError: `ObjectiveUnknown`, for a name that this version cannot run.
        """
        _choose(SURROGATES, spec.loss, "loss")
        _choose(ADVANTAGES, spec.advantage.method, "advantage.method")
        _choose(REDUCTIONS, spec.reduction, "reduction")
        _choose(CORRECTIONS, spec.correction, "correction")
        clip = spec.effective_clip
        low, high = (clip.low, clip.high) if clip else UNBOUNDED
        return cls(
            loss=spec.loss,
            clip_low=low,
            clip_high=high,
            advantage=spec.advantage.method,
            normalize=spec.advantage.normalize,
            reduction=spec.reduction,
            correction=spec.correction,
        )

    def expanded(self) -> dict[str, Any]:
        """The preset written out, as a status or a log shows it."""
        return asdict(self)

    def advantages(self, rewards_G: Tensor) -> Tensor:
        """Advantage of each scored episode of one group, from its float64 rewards."""
        return ADVANTAGES[self.advantage](rewards_G, self.normalize)

    def weights(self, rows: Sequence[RowShape]) -> list[float]:
        """What each action token of each row counts, the rows being those of one optimizer step."""
        return REDUCTIONS[self.reduction](rows)

    def token_loss(
        self, new_T: Tensor, sampler_T: Tensor, advantage_T: Tensor, weight_T: Tensor
    ) -> tuple[Tensor, TokenStatistics]:
        """This micro-batch's share of the loss of the optimizer step.

        Args:
            new_T: log-probabilities of the action tokens under the weights being trained.
            sampler_T: those the sampler recorded.
            advantage_T: each token's advantage.
            weight_T: what each token counts, from `weights`.

        Returns:
            The share (shares of all micro-batches add up to the loss) and the tokens' statistics.
        """
        old_T = CORRECTIONS[self.correction](sampler_T)
        ratio_T = token_ratio(new_T, old_T)
        surrogate, bounds = SURROGATES[self.loss], (self.clip_low, self.clip_high)
        loss_T = surrogate.loss(ratio_T, new_T, advantage_T, *bounds)
        with torch.no_grad():
            statistics = TokenStatistics(
                loss_T=loss_T.detach(),
                ratio_T=ratio_T.detach(),
                clipped_T=surrogate.clipped(ratio_T, advantage_T, *bounds),
                log_ratio_T=new_T.detach() - sampler_T,
            )
        return (loss_T * weight_T).sum(), statistics


def _choose(table: Mapping[str, Function], name: str, field: str) -> Function:
    if name not in table:
        raise JobError(
            "ObjectiveUnknown",
            f"{name!r} is not run by this version; use {' or '.join(sorted(table))}",
            field=f"spec.algorithm.{field}",
        )
    return table[name]
