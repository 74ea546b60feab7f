"""Combines one choice on each axis of the objective (a preset) into a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from headway_api.objective import Preset, expand
from headway_api.spec import algorithm as spec_names
from headway_api.spec.algorithm import AlgorithmSpec
from headway_trainer.objective.advantage import (
    ADVANTAGES,
    AdvantageSettings,
    Group,
    Numbers,
    fit_advantages,
)
from headway_trainer.objective.checks import InvalidResultError, blamed, fit_tokens, fit_weights
from headway_trainer.objective.correction import CORRECTIONS
from headway_trainer.objective.penalty import DIVERGENCES
from headway_trainer.objective.ratio import RATIOS
from headway_trainer.objective.reduction import REDUCTIONS, RowShape
from headway_trainer.objective.registry import load_plugins
from headway_trainer.objective.surrogate import SURROGATES, RatioBounds


@dataclass(frozen=True)
class TokenStatistics:
    """A step's statistics with one entry for each action token; without gradients."""

    loss_T: Tensor
    ratio_T: Tensor
    clipped_T: Tensor
    log_ratio_T: Tensor
    """The trained policy's log-probability minus the sampler's."""
    correction_T: Tensor
    """Weight that the correction gave the token; 0 if it is left out."""
    divergence_T: Tensor | None
    """Estimate of the divergence from the base model; None if the loss does not include it."""


class Objective:
    """The objective of a job, ready to run."""

    def __init__(self, preset: Preset) -> None:
        """Import the plugins and find every function.

        Raises:
            JobError: `PluginNotImportable`, or `ObjectiveUnknown` for a name that no module registered.
        """
        load_plugins(preset.plugins)
        self.preset = preset
        self._advantage = ADVANTAGES[preset.advantage]
        self._settings = AdvantageSettings(
            normalize="none" if preset.normalize == "none" else "std",
            gamma=1.0 if preset.gamma is None else preset.gamma,
        )
        self._ratio = RATIOS[preset.ratio]
        self._surrogate = SURROGATES[preset.surrogate]
        self._bounds = RatioBounds(
            low=0.0 if preset.clip_low is None else preset.clip_low,
            high=float("inf") if preset.clip_high is None else preset.clip_high,
            dual=preset.clip_dual,
        )
        self._correction = CORRECTIONS[preset.correction]
        self._cap = float("inf") if preset.correction_cap is None else preset.correction_cap
        self._floor = preset.correction_floor or 0.0
        self._reduction = REDUCTIONS[preset.reduction]
        self._episode_tokens = preset.episode_tokens or 0
        self.own = {
            field: name
            for field, name, built_in in (
                (ADVANTAGES.field, preset.advantage, spec_names.ADVANTAGES),
                (RATIOS.field, preset.ratio, spec_names.RATIOS),
                (SURROGATES.field, preset.surrogate, spec_names.LOSSES),
                (CORRECTIONS.field, preset.correction, spec_names.CORRECTIONS),
                (REDUCTIONS.field, preset.reduction, spec_names.REDUCTIONS),
            )
            if name not in built_in
        }
        """The user's own functions, by the field that names them."""

    @classmethod
    def of(cls, spec: AlgorithmSpec, episode_tokens: int = 0) -> Objective:
        """Expand `spec.algorithm`.

        Args:
            spec: the block of the job's spec.
            episode_tokens: planned length from `headway_api.objective`; only a reduction by planned length
                uses it.
        Raises:
            JobError: `PluginNotImportable` or `ObjectiveUnknown`.
        """
        return cls(expand(spec, episode_tokens))

    @property
    def recomputes(self) -> bool:
        """Whether `token_loss` needs log-probabilities from before the batch's first optimizer step."""
        return self._correction.recomputes

    @property
    def counts_all(self) -> bool:
        """Whether `weights` needs the training rows of groups without a gradient too."""
        return self.preset.denominator == "all"

    @property
    def penalizes_divergence(self) -> bool:
        """Whether `token_loss` needs the log-probabilities under the base model."""
        return self.preset.kl_coefficient > 0

    @property
    def rewards_entropy(self) -> bool:
        """Whether `token_loss` needs entropies with a gradient."""
        return self.preset.entropy_coefficient > 0

    @property
    def own_losses(self) -> dict[str, str]:
        """The entries of `own` for functions that compute a token's loss."""
        losses = (RATIOS.field, SURROGATES.field, CORRECTIONS.field)
        return {field: name for field, name in self.own.items() if field in losses}

    def expanded(self) -> dict[str, Any]:
        """All settings of the preset by name, for a log."""
        return asdict(self.preset)

    def advantages(self, groups: Sequence[Group]) -> list[list[Numbers]]:
        """Advantage of each turn of each scored episode of a batch's groups.

        Raises:
            JobError: `PluginFaulty`: a user's own function raised, or did not return advantages.
                `ObjectiveUnfit`: a built-in function's result is beyond float32's range.
        """
        with blamed(ADVANTAGES.field, self.own):
            return fit_advantages(self._advantage(groups, self._settings), groups)

    def weights(self, rows: Sequence[RowShape]) -> list[float]:
        """For each training row, the weight of its action tokens. `rows` are all rows of one optimizer step.

        Raises:
            JobError: `PluginFaulty` or `ObjectiveUnfit`, as for `advantages`.
        """
        with blamed(REDUCTIONS.field, self.own):
            return fit_weights(self._reduction(rows, self._episode_tokens), len(rows))

    def token_loss(
        self,
        new_T: Tensor,
        sampler_T: Tensor,
        advantage_T: Tensor,
        weight_T: Tensor,
        *,
        row_T: Tensor | None = None,
        old_T: Tensor | None = None,
        reference_T: Tensor | None = None,
        entropy_T: Tensor | None = None,
    ) -> tuple[Tensor, TokenStatistics]:
        """This micro-batch's share of the loss of the optimizer step.

        Args:
            new_T: log-probabilities of the action tokens under the weights being trained.
            sampler_T: log-probabilities that the sampler recorded.
            advantage_T: each token's advantage.
            weight_T: each token's weight, from `weights`.
            row_T: index of each token's training row, from 0; None if all tokens belong to one row.
            old_T: log-probabilities before the batch's first optimizer step, if `recomputes`.
            reference_T: log-probabilities under the base model, if `penalizes_divergence`.
            entropy_T: entropies with a gradient, if `rewards_entropy`.
        Returns:
            The share and the tokens' statistics. The shares of all micro-batches add up to the loss.
        Raises:
            JobError: `PluginFaulty`: a user's own function did not return one number for each token.
        """
        row_T = torch.zeros_like(new_T, dtype=torch.long) if row_T is None else row_T
        with torch.no_grad(), blamed(CORRECTIONS.field, self.own, catch=InvalidResultError):
            recomputed_T = sampler_T if old_T is None else old_T
            taken_T, correction_T = (
                fit_tokens(found, new_T)
                for found in self._correction(sampler_T, recomputed_T, row_T, self._cap, self._floor)
            )
        with blamed(RATIOS.field, self.own, catch=InvalidResultError):
            ratio_T = fit_tokens(self._ratio(new_T, taken_T, row_T), new_T)
        with blamed(SURROGATES.field, self.own, catch=InvalidResultError):
            surrogate_T = self._surrogate.loss(ratio_T, new_T, advantage_T, self._bounds)
            loss_T = fit_tokens(surrogate_T, new_T) * correction_T
            with torch.no_grad():
                clipped_T = fit_tokens(self._surrogate.clipped(ratio_T, advantage_T, self._bounds), new_T)
        divergence_T = None
        if self.penalizes_divergence:
            assert reference_T is not None
            assert self.preset.kl_estimator is not None
            divergence_T = DIVERGENCES[self.preset.kl_estimator](new_T, reference_T.detach())
            loss_T = loss_T + self.preset.kl_coefficient * divergence_T
        if self.rewards_entropy:
            assert entropy_T is not None
            loss_T = loss_T - self.preset.entropy_coefficient * entropy_T
        with torch.no_grad():
            statistics = TokenStatistics(
                loss_T=loss_T.detach(),
                ratio_T=ratio_T.detach(),
                clipped_T=clipped_T,
                log_ratio_T=new_T.detach() - sampler_T,
                correction_T=correction_T,
                divergence_T=None if divergence_T is None else divergence_T.detach(),
            )
        return (loss_T * weight_T).sum(), statistics
