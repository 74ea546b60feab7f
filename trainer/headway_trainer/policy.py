"""The model as a policy: log-probabilities of the action tokens of a micro-batch.

The output head, the widest matrix of all, gets only the positions that predict an action token. The head and
the softmax process these positions in chunks, which the backward pass computes again. So memory holds only
one chunk's logits, and does not grow with vocabulary x length. All chunks run inside one call of the head,
because its weight may be sharded. Then all ranks must gather the weight the same number of times, although
their numbers of action tokens differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway_trainer.attention import RowSpans
from headway_trainer.batch import LearnerRow
from headway_trainer.head import output_head
from headway_trainer.packing import Layout

Forward = Callable[..., Any]
CHUNK: Final = 2**26
"""Number of logits in one chunk: 256 MiB in float32. The backward pass holds about four such blocks at
once."""


@dataclass(frozen=True)
class MicroBatch:
    """Training rows, padded to a rectangle or packed into one sequence, and their T action tokens."""

    tokens_BL: Tensor
    positions_T: Tensor
    """Index in the flattened tokens at which each action token is predicted: one before the token itself."""
    targets_T: Tensor
    sampler_T: Tensor
    advantage_T: Tensor
    weight_T: Tensor
    """The weight of each token's loss in the optimizer step."""
    row_T: Tensor
    """Index of each token's row in the micro-batch, from 0."""
    spans: RowSpans | None = None
    """The spans of packed rows; None for a rectangle."""
    empty: bool = False
    """True for a micro-batch that only lets this rank take part in the collectives: its loss is 0."""


@dataclass(frozen=True)
class Prediction:
    """The policy's prediction for each action token."""

    logprob_T: Tensor
    entropy_T: Tensor
    """Entropy in nats of the distribution at the sampling temperature. It has a gradient only on request."""


@dataclass(frozen=True)
class _Question:
    """What the replaced head must compute in one forward pass."""

    positions_T: Tensor
    targets_T: Tensor | None
    """Token ids whose log-probabilities to compute; None to return the logits themselves."""
    entropy_gradient: bool = False


def micro_batch(rows: Sequence[LearnerRow], device: torch.device, *, packed: bool = False) -> MicroBatch:
    """The micro-batch of `rows`: padded on the right, or `packed` without padding. Without rows, an empty
    one."""
    if not rows:
        zero = torch.zeros(1, device=device)
        start = torch.zeros(1, dtype=torch.long, device=device)
        return MicroBatch(start.new_zeros(1, 2), start, start, zero, zero, zero, start, empty=True)
    lengths = [row.length for row in rows]
    sizes = lengths if packed else [max(lengths)] * len(rows)
    tokens, mask = torch.zeros(sum(sizes), dtype=torch.long), torch.zeros(sum(sizes), dtype=torch.bool)
    sampler, advantage = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
    ends = np.cumsum(sizes).tolist()
    for row, size, end in zip(rows, sizes, ends, strict=True):
        here = slice(end - size, end - size + row.length)
        tokens[here] = torch.from_numpy(row.tokens)
        mask[here] = torch.from_numpy(row.mask)
        sampler[here] = torch.from_numpy(row.logprobs)
        advantage[here] = torch.from_numpy(row.advantages)
    flat_T = mask.nonzero().squeeze(1)
    row_T = torch.repeat_interleave(torch.tensor([row.action_tokens for row in rows]))
    return MicroBatch(
        tokens_BL=tokens.view(1 if packed else len(rows), -1).to(device),
        positions_T=(flat_T - 1).to(device),
        targets_T=tokens[flat_T].to(device),
        sampler_T=sampler[flat_T].to(device),
        advantage_T=advantage[flat_T].to(device),
        weight_T=torch.tensor([row.weight for row in rows])[row_T].to(device),
        row_T=row_T.to(device),
        spans=RowSpans.of(lengths, device) if packed else None,
    )


class Policy:
    """Runs `forward` (the model, or an engine that wraps it) and evaluates action tokens."""

    def __init__(
        self, forward: Forward, model: nn.Module, temperature: float, frozen: nn.Module | None = None
    ) -> None:
        """Create the policy after the engine, because its hooks on the head must run after the engine's.

        Args:
            forward: the function that runs `model`.
            model: the model with the output head.
            temperature: the sampler's temperature. It divides the logits, as for the recorded
                log-probabilities.
            frozen: a model with the untrained weights, for `reference`, if `model` has no adapter to switch
                off.
        """
        self.layout = Layout()
        """The layout of micro-batches; padded until a test shows that packing works (`layout.choose`)."""
        self.model = model
        self._temperature = temperature
        self.frozen: Policy | None = None
        """A policy with the untrained weights, for `reference`; set by `refer_to`."""
        self.refer_to(frozen)
        self._forward = forward
        self._question: _Question | None = None
        self._answer_1T2: Tensor | None = None
        self.finish: Callable[[Tensor], Tensor] | None = None
        """The model's operations after the head (`head.finish`), run on each chunk of logits.

        If it is None, all logits are computed at once. `layout.choose` sets it if a test succeeds.
        """
        self._vocabulary = int(model.config.get_text_config().vocab_size)  # type: ignore[union-attr, operator]
        head = output_head(model)
        self._project: Callable[[Tensor], Tensor] = head.forward
        head.forward = self._head
        head.register_forward_pre_hook(self._select)
        head.register_forward_hook(self._keep)

    def refer_to(self, frozen: nn.Module | None) -> None:
        """Make `reference` use `frozen`, a copy of the untrained model, from now on. None removes the
        copy."""
        self.frozen = None if frozen is None else Policy(frozen, frozen, self._temperature)

    def __call__(self, batch: MicroBatch, entropy_gradient: bool = False) -> Prediction:
        """Log-probability and entropy of each action token, in float32.

        The entropy has a gradient only if `entropy_gradient` is True.
        """
        if self.finish is None:
            logits_TV = self._logits(_Question(batch.positions_T, None), batch)
            answer_T2 = self._of_logits(logits_TV, batch.targets_T, entropy_gradient)
        else:
            question = _Question(batch.positions_T, batch.targets_T, entropy_gradient)
            through = self._run(question, batch.tokens_BL, batch.spans)
            assert self._answer_1T2 is not None
            # The engine has hooks on the model's output, so the loss must depend on that output.
            answer_T2, self._answer_1T2 = self._answer_1T2[0] + through.float().sum() * 0.0, None
        logprob_T, entropy_T = answer_T2.unbind(1)
        return Prediction(logprob_T, entropy_T if entropy_gradient else entropy_T.detach())

    def reference(self, batch: MicroBatch) -> Tensor:
        """Log-probabilities under the untrained base model, in float32 and without gradient.

        It costs one forward pass. Call it before the policy's own forward pass. With an adapter it runs the
        same model with the adapter switched off. If every weight is trained, it runs the frozen copy, which
        takes the memory of one more model in each process.

        Raises:
            ValueError: the policy has neither a frozen copy nor an adapter.
        """
        with torch.no_grad():
            if self.frozen is not None:
                return self.frozen(batch).logprob_T
            if not hasattr(self.model, "disable_adapter"):
                raise ValueError("no reference: neither an adapter nor a frozen copy")
            with self.model.disable_adapter():  # type: ignore[operator]
                return self(batch).logprob_T

    def logits(self, tokens_BL: Tensor, positions_T: Tensor) -> Tensor:
        """Logits, not divided by the temperature, at `positions_T` of the flattened `tokens_BL`; (T, V),
        float32.
        """
        return self._run(_Question(positions_T, None), tokens_BL, None)[0].float()

    def _logits(self, question: _Question, batch: MicroBatch) -> Tensor:
        return self._run(question, batch.tokens_BL, batch.spans)[0].float()

    def _run(self, question: _Question, tokens_BL: Tensor, spans: RowSpans | None) -> Tensor:
        packing = {} if spans is None else {"position_ids": spans.positions_1L, "rows": spans}
        self._question = question
        try:
            logits_1TV: Tensor = self._forward(input_ids=tokens_BL, use_cache=False, **packing).logits
        finally:
            self._question = None
        return logits_1TV

    def _select(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._question is None:
            return inputs
        hidden_BLH, *rest = inputs
        return (hidden_BLH.flatten(0, 1)[self._question.positions_T][None], *rest)

    def _head(self, hidden_1TH: Tensor) -> Tensor:
        """Replaces the head: returns the logits, or the log-probability and entropy of each position, (1, T,
        2)."""
        question = self._question
        if question is None or question.targets_T is None:
            return self._project(hidden_1TH)
        size = max(1, CHUNK // self._vocabulary)
        chunks = zip(hidden_1TH[0].split(size), question.targets_T.split(size), strict=True)
        recomputed = torch.is_grad_enabled() and hidden_1TH.shape[1] > size
        answers = [
            checkpoint(
                self._of_hidden,
                hidden_CH,
                targets_C,
                question.entropy_gradient,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            if recomputed
            else self._of_hidden(hidden_CH, targets_C, question.entropy_gradient)
            for hidden_CH, targets_C in chunks
        ]
        return torch.cat(answers)[None]

    def _keep(self, head: nn.Module, inputs: tuple[Tensor, ...], output_1T2: Tensor) -> Tensor | None:
        """Keep the head's result, and pass a zero on: the model's next operations expect logits."""
        if self._question is None or self._question.targets_T is None:
            return None
        self._answer_1T2 = output_1T2
        return output_1T2[:, :1, :1] * 0.0

    def _of_hidden(self, hidden_CH: Tensor, targets_C: Tensor, entropy_gradient: bool) -> Tensor:
        assert self.finish is not None
        logits_CV = self.finish(self._project(hidden_CH[None]))[0].float()
        return self._of_logits(logits_CV, targets_C, entropy_gradient)

    def _of_logits(self, raw_CV: Tensor, targets_C: Tensor, entropy_gradient: bool) -> Tensor:
        logits_CV = raw_CV / self._temperature
        normalizer_C = logits_CV.logsumexp(1)
        logprob_C = logits_CV.gather(1, targets_C[:, None]).squeeze(1) - normalizer_C
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            mean_C = ((logits_CV - normalizer_C[:, None]).exp() * logits_CV).sum(1)
            entropy_C = normalizer_C - mean_C
        return torch.stack([logprob_C, entropy_C], 1)
