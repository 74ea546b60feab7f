"""Random ragged batches, in the learner's flat form and in the rectangular form of other libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway_trainer.objective.presets import Objective
from headway_trainer.objective.reduction import RowShape

EPISODE_TOKENS = 16


@dataclass(frozen=True)
class Ragged:
    """Groups of one-row episodes, flat (one entry an action token, float64) and as rectangles (B, L).

    The rectangle has gaps at observation tokens between turns, and padding at the end.
    """

    prompts: list[int]
    """Prompt of each row."""
    row_T: Tensor
    column_T: Tensor
    new_T: Tensor
    old_T: Tensor
    sampler_T: Tensor
    reference_T: Tensor
    entropy_T: Tensor
    advantage_T: Tensor

    @classmethod
    def draw(cls, seed: int) -> Ragged:
        """A batch of two to four prompts with one to four rows each.

        Ratios go well beyond all bounds. Advantages vary within a row, by its turns.
        """
        numbers = torch.Generator().manual_seed(seed)

        def whole(low: int, high: int) -> int:
            return int(torch.randint(low, high, (1,), generator=numbers))

        prompts = [prompt for prompt in range(whole(2, 5)) for _ in range(whole(1, 5))]
        rows, columns, sizes = [], [], []
        for row in range(len(prompts)):
            size = whole(1, 12)
            rows += [row] * size
            columns += sorted(torch.randperm(EPISODE_TOKENS, generator=numbers)[:size].tolist())
            sizes.append(size)
        row_T = torch.tensor(rows)

        def normal(scale: float, count: int = len(rows)) -> Tensor:
            return scale * torch.randn(count, generator=numbers, dtype=torch.float64)

        sampler_T = -normal(1.0).abs() - 0.1
        old_T = sampler_T + normal(0.4) + normal(0.6, len(prompts))[row_T]
        new_T = old_T + normal(0.5)
        first = [whole(1, size + 1) for size in sizes]  # tokens of each row's first turn
        second_T = torch.cat([torch.arange(size) >= end for size, end in zip(sizes, first, strict=True)])
        advantage_T = normal(1.0, 2 * len(prompts))[2 * row_T + second_T]
        return cls(
            prompts,
            row_T,
            torch.tensor(columns),
            new_T.requires_grad_(),
            old_T,
            sampler_T,
            new_T.detach() + normal(0.3),
            normal(1.0).abs(),
            advantage_T,
        )

    def with_one_advantage_a_row(self) -> Ragged:
        """A copy in which every token of a row has the advantage of the row's first token."""
        sizes = torch.bincount(self.row_T)
        return replace(self, advantage_T=self.advantage_T[(sizes.cumsum(0) - sizes)[self.row_T]])

    def without_advantage(self, prompt: int) -> Ragged:
        """A copy in which a prompt's rows have advantage 0."""
        here_T = torch.tensor(self.prompts)[self.row_T] == prompt
        return replace(self, advantage_T=self.advantage_T.masked_fill(here_T, 0.0))

    @property
    def mask_BL(self) -> Tensor:
        """1 at action tokens."""
        return self.rectangle(torch.ones_like(self.advantage_T))

    def rectangle(self, flat_T: Tensor, gap: float = 0.0) -> Tensor:
        """Values of tokens at their positions in the rectangle (B, L), and `gap` at all others."""
        empty_BL = torch.full((len(self.prompts), EPISODE_TOKENS), gap, dtype=flat_T.dtype)
        return empty_BL.index_put((self.row_T, self.column_T), flat_T)

    def ours(self, objective: Objective) -> tuple[float, Tensor]:
        """The learner's loss, and its gradient by each new log-probability. As in the learner, prompts whose
        advantages are all 0 have no row."""
        heard = {self.prompts[row] for row in self.row_T[self.advantage_T != 0].tolist()}
        rows = [row for row, prompt in enumerate(self.prompts) if prompt in heard]
        sizes = torch.bincount(self.row_T).tolist()
        weights = objective.weights([RowShape(str(self.prompts[row]), row, sizes[row]) for row in rows])
        weight_B = torch.zeros(len(sizes), dtype=torch.float64)
        weight_B[rows] = torch.tensor(weights, dtype=torch.float64)
        weight_T = weight_B[self.row_T]
        loss, _ = objective.token_loss(
            self.new_T,
            self.sampler_T,
            self.advantage_T,
            weight_T,
            row_T=self.row_T,
            old_T=self.old_T,
            reference_T=self.reference_T,
            entropy_T=self.entropy_T,
        )
        return loss.item(), self.slope(loss)

    def slope(self, loss: Tensor) -> Tensor:
        """Gradient of a loss by each new log-probability."""
        return torch.autograd.grad(loss, self.new_T)[0]
