"""Runs one optimizer step: rows -> micro-batches -> forward and backward -> clip and step, with
statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway_api.exits import JobError
from headway_trainer.batch import LearnerRow
from headway_trainer.engine import Engine, Update
from headway_trainer.model import dropping
from headway_trainer.objective.presets import Objective, TokenStatistics
from headway_trainer.objective.registry import PLUGINS_FIELD
from headway_trainer.packing import plan
from headway_trainer.policy import MicroBatch, Policy, micro_batch
from headway_trainer.ranks import Ranks

SUMS: Final = (
    "tokens",
    "loss",
    "ratio",
    "clipped",
    "kl",
    "k3",
    "entropy",
    "correction",
    "masked",
    "divergence",
    "weight_squared",
    "far",
)
RATE: Final = "spec.optimizer.learningRate"
FIELDS: Final = {"servers": "spec.rollout.engine", "batch": "spec.reward", "loss": "spec.algorithm.loss"}
"""The spec field that an error names, by the cause of a non-finite loss. Other causes name `RATE`."""
FAR: Final = math.log(2)
"""A token counts as far if its two log-probabilities differ by more: one probability is over twice the
other."""
MAXIMA: Final = ("ratio_max", "negative_ratio_min", "gap_max")


@dataclass(frozen=True)
class NonFiniteLoss:
    """The first token whose loss is not finite, in the order of a rank's micro-batches."""

    group_id: str
    episode: int
    """Index of the token's episode in the group."""
    position: int
    """Index of the token among its row's action tokens, from 0."""
    cause: str
    """A key of `ADVICE`."""
    seen: str
    """The numbers from which the token's loss was computed, as text."""

    @property
    def sentence(self) -> str:
        """The position of the token, and the numbers from which its loss was computed."""
        return f"group {self.group_id}, episode {self.episode}, action token {self.position}: {self.seen}"


ADVICE: Final = {
    "policy": "the trained weights give a value that is not a number there: lower the learning rate",
    "servers": "the rollout servers sent that log-probability: check that their dtype is the job's",
    "batch": "its advantage or its weight is not a number: check that rewards are finite and near 1",
    "loss": "each of these numbers is finite, but their loss is not: lower the learning rate, or use a "
    "loss that bounds the ratio",
}
"""What to do about a loss that is not finite, by its cause."""


@dataclass
class Tally:
    """Sums and maxima over action tokens, collected over micro-batches and then over ranks."""

    non_finite: NonFiniteLoss | None = None

    sums: Tensor = field(default_factory=lambda: torch.zeros(len(SUMS), dtype=torch.float64))
    """One sum over the action tokens for each name of `SUMS`, in its order; on the CPU."""
    maxima: Tensor = field(
        default_factory=lambda: torch.full((len(MAXIMA),), -torch.inf, dtype=torch.float64)
    )
    """One maximum over the action tokens for each name of `MAXIMA`, in its order; on the CPU."""

    def add(self, tokens: TokenStatistics, entropy_T: Tensor, weight_T: Tensor) -> None:
        """Count the tokens of one micro-batch. `weight_T` is the weight of each token's loss."""
        gap_T = tokens.log_ratio_T.double()
        # NaN means not measured: `step_metrics` leaves out values that are not finite.
        divergence = gap_T.new_tensor(torch.nan)
        if tokens.divergence_T is not None:
            divergence = tokens.divergence_T.double().sum()
        self.sums += torch.stack(
            [
                torch.tensor(float(len(gap_T)), dtype=torch.float64, device=gap_T.device),
                (tokens.loss_T.double() * weight_T).sum(),
                tokens.ratio_T.double().sum(),
                tokens.clipped_T.double().sum(),
                -gap_T.sum(),
                (gap_T.exp() - 1 - gap_T).sum(),
                entropy_T.detach().double().sum(),
                tokens.correction_T.double().sum(),
                (tokens.correction_T == 0).double().sum(),
                divergence,
                (2 * gap_T).exp().sum(),
                (gap_T.abs() > FAR).double().sum(),
            ]
        ).cpu()
        peaks = torch.stack([tokens.ratio_T.max(), -tokens.ratio_T.min(), gap_T.abs().max()])
        self.maxima = torch.maximum(self.maxima, peaks.double().cpu())

    def over(self, ranks: Ranks) -> dict[str, float]:
        """The loss, and means and extremes over the tokens of all ranks; collective."""
        sums = dict(zip(SUMS, ranks.total(self.sums.tolist()), strict=True))
        maxima = dict(zip(MAXIMA, ranks.maximum(self.maxima.tolist()), strict=True))
        tokens, loss = sums.pop("tokens"), sums.pop("loss")
        means = {name: value / tokens for name, value in sums.items()}
        return means | {
            "loss": loss,
            "ratio_max": maxima["ratio_max"],
            "ratio_min": -maxima["negative_ratio_min"],
            "gap_max": maxima["gap_max"],
        }

    def non_finite_over(self, ranks: Ranks, loss: float) -> NonFiniteLoss | None:
        """The first token of any rank whose loss is not finite, if there is one.

        Collective if `loss` is not finite; all ranks have the same `loss`.
        """
        if math.isfinite(loss):
            return None
        return next(filter(None, ranks.gather(self.non_finite)), None)


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step, with its statistics."""

    update: Update
    tokens: dict[str, float]
    """The minimized loss; means and extremes over the action tokens. See `SUMS` and `MAXIMA`."""
    action_tokens: int
    micro_batches: int
    """Number of micro-batches on each rank."""
    non_finite: NonFiniteLoss | None = None
    """The token that made the loss not finite, if a single token did."""


def with_old(
    policy: Policy,
    objective: Objective,
    parts: Sequence[Sequence[LearnerRow]],
    *,
    ranks: Ranks,
    max_tokens: int,
) -> list[list[LearnerRow]]:
    """The rows of a batch's optimizer steps, with log-probabilities under the current weights.

    Call it before the first of these steps. If the correction does not need these log-probabilities, there is
    no forward pass. Collective: every rank passes the same rows.

    Args:
        parts: rows of each optimizer step.
        max_tokens: maximum tokens of one micro-batch, padding included.
    """
    if not objective.recomputes:
        return [list(rows) for rows in parts]
    # Use the same micro-batches as the steps themselves, because equal shapes give equal rounding.
    return [_with_old(policy, rows, ranks, max_tokens) for rows in parts]


def _with_old(policy: Policy, rows: Sequence[LearnerRow], ranks: Ranks, max_tokens: int) -> list[LearnerRow]:
    mine: dict[int, NDArray[np.float32]] = {}
    for chosen in plan([row.length for row in rows], max_tokens, ranks.world, policy.layout)[ranks.rank]:
        batch = micro_batch([rows[index] for index in chosen], ranks.device, packed=policy.layout.packed)
        with torch.no_grad():
            logprob_T = policy(batch).logprob_T.cpu().numpy()
        if not batch.empty:
            ends = np.cumsum([rows[index].action_tokens for index in chosen])
            mine |= dict(zip(chosen, np.split(logprob_T, ends[:-1]), strict=True))
    found = {index: old for part in ranks.gather(mine) for index, old in part.items()}
    return [replace(row, old=found[index]) for index, row in enumerate(rows)]


def optimizer_step(
    engine: Engine,
    policy: Policy,
    objective: Objective,
    rows: Sequence[LearnerRow],
    *,
    ranks: Ranks,
    max_tokens: int,
    seed: int = 0,
) -> StepResult:
    """Train `rows` as one optimizer step. Collective: every rank passes the same rows.

    Args:
        rows: rows from `with_old`, with their weights.
        max_tokens: maximum tokens of one micro-batch, padding included.
        seed: part of the seed of an adapter's dropout, besides the optimizer step, rank and micro-batch.
    """
    mine = plan([row.length for row in rows], max_tokens, ranks.world, policy.layout)[ranks.rank]
    tally = Tally()
    for number, chosen in enumerate(mine):
        here = [rows[index] for index in chosen]
        batch = micro_batch(here, ranks.device, packed=policy.layout.packed)
        draw = (seed, engine.updates, ranks.rank, number)
        engine.backward(_loss(policy, objective, here, batch, tally, draw))
    update, tokens = engine.step(), tally.over(ranks)
    return StepResult(
        update=update,
        tokens=tokens,
        non_finite=tally.non_finite_over(ranks, tokens["loss"]),
        action_tokens=sum(row.action_tokens for row in rows),
        micro_batches=len(mine),
    )


def refuse_non_finite(updates: Sequence[StepResult], step: int, own: Mapping[str, str]) -> None:
    """Raise an error before weights that may not be finite become durable. All ranks decide alike.

    `own` has the names of the user's own functions in the loss, by their spec fields. The error names them
    first.

    Raises:
        JobError: `LossNotFinite` or `GradientNotFinite`.
    """
    for reason, what, values in (
        ("LossNotFinite", "loss", [update.tokens["loss"] for update in updates]),
        ("GradientNotFinite", "norm of the gradient", [update.update.gradient_norm for update in updates]),
    ):
        # DeepSpeed may report a norm that is not finite as -1.
        if not all(math.isfinite(value) and (what == "loss" or value >= 0) for value in values):
            non_finite = next(filter(None, (update.non_finite for update in updates)), None)
            named = ", ".join(f"{field} {name!r}" for field, name in own.items())
            look = f"check that {named} and its gradient are finite for every ratio, or " if own else ""
            where = f" ({non_finite.sentence})" if non_finite else ""
            advice = ADVICE[non_finite.cause] if non_finite else "lower the learning rate"
            raise JobError(
                reason,
                f"the {what} of step {step} is {values}{where}; {look}{advice}; a new job may start from the "
                "newest whole weights of this one (spec.model.warmStart.job)",
                field=PLUGINS_FIELD if own else FIELDS.get(non_finite.cause if non_finite else "", RATE),
            )


def _loss(
    policy: Policy,
    objective: Objective,
    rows: Sequence[LearnerRow],
    batch: MicroBatch,
    tally: Tally,
    draw: Sequence[int],
) -> Tensor:
    reference_T = policy.reference(batch) if objective.penalizes_divergence else None
    with dropping(policy.model, *draw):
        prediction = policy(batch, entropy_gradient=objective.rewards_entropy)
    if batch.empty:
        return (prediction.logprob_T.sum() + prediction.entropy_T.sum()) * 0.0
    loss, tokens = objective.token_loss(
        prediction.logprob_T,
        batch.sampler_T,
        batch.advantage_T,
        batch.weight_T,
        row_T=batch.row_T,
        old_T=_old(rows, batch.sampler_T.device) if objective.recomputes else None,
        reference_T=reference_T,
        entropy_T=prediction.entropy_T,
    )
    tally.add(tokens, prediction.entropy_T, batch.weight_T)
    if tally.non_finite is None and not bool(loss.isfinite()):
        tally.non_finite = _non_finite(rows, batch, prediction.logprob_T, tokens.loss_T)
    return loss


def _non_finite(
    rows: Sequence[LearnerRow], batch: MicroBatch, new_T: Tensor, loss_T: Tensor
) -> NonFiniteLoss | None:
    """The first token of a micro-batch whose loss is not finite; None if only the sum is not."""
    found = (~(loss_T * batch.weight_T).isfinite()).nonzero()
    if not len(found):
        return None
    token = int(found[0])
    index = int(batch.row_T[token])
    made_of = {
        "log-probability": (new_T[token], "policy"),
        "the servers'": (batch.sampler_T[token], "servers"),
        "advantage": (batch.advantage_T[token], "batch"),
        "weight": (batch.weight_T[token], "batch"),
    }
    causes = [cause for value, cause in made_of.values() if not bool(value.isfinite())]
    return NonFiniteLoss(
        group_id=rows[index].group_id,
        episode=rows[index].episode,
        position=token - int((batch.row_T == index).nonzero()[0]),
        cause=causes[0] if causes else "loss",
        seen=", ".join(f"{name} {float(value):g}" for name, (value, _) in made_of.items()),
    )


def _old(rows: Sequence[LearnerRow], device: torch.device) -> Tensor:
    """The old log-probability of each action token, in the order of a micro-batch."""
    found = [row.old for row in rows if row.old is not None]
    if len(found) != len(rows):
        raise ValueError("the correction needs rows from `with_old`")
    return torch.from_numpy(np.concatenate(found)).to(device)
