"""Chooses the layout of micro-batches once, when the model is loaded, by a test on the model itself.

Rows are packed if two conditions hold. Two packed rows must have the same log-probabilities as each row alone
under the model's own attention. And a change of one row must not change the other. Otherwise rows are padded
to equal length. Models whose layers carry state along the sequence always get padded rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from headway_trainer import attention, rope
from headway_trainer.batch import LearnerRow
from headway_trainer.head import finish, without_adapter
from headway_trainer.packing import Layout
from headway_trainer.policy import Policy, micro_batch

LAYERS: Final = frozenset({"full_attention", "sliding_attention"})
LENGTHS: Final = (23, 17)
LONGEST_PROOF: Final = 512
"""Largest sliding window for which the test rows are made longer than the window."""
LONGEST_ROPE: Final = 8192
"""Largest switch length of a rotary embedding for which one test row of each pair is made longer.

At its switch length, the embedding's factors change.
"""
ACTIONS: Final = 64
"""Maximum action tokens of a test row; they are its last tokens. The test computes all their logits at
once."""
SEED: Final = 20_240_301
AGREEMENT: Final = {torch.float32: 2e-4, torch.bfloat16: 0.2}
"""Largest mean absolute difference, in nats, allowed between two kernels of one dtype (see
`publish.canary`)."""
ISOLATION: Final = {torch.float32: 1e-5, torch.bfloat16: 0.02}
"""Largest change, in nats, of one row's log-probabilities when another row in the pack changes. Kernel and
shape stay the same."""
FAILURES: Final = (
    attention.UnsupportedAttentionError,
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    KeyError,
)
"""Exceptions of a model that does not pass on the arguments that the attention needs."""


@dataclass(frozen=True)
class Choice:
    """The chosen layout, attention and head, and the reason."""

    layout: Layout
    attention: str
    """Name of the attention function in transformers' table."""
    head: str
    """`chunked`, or `whole` if the model's operations after the head cannot run on a chunk of logits."""
    why: str = ""
    """Why rows are not packed, or why the slower attention packs them."""


def quadratic_share(model: nn.Module) -> float:
    """Cost of attention between two tokens, relative to the cost of one token in the linear layers.

    All layers count as full attention. A pair of tokens costs 2 x layers x heads x head size multiplications,
    half of them masked. A token costs one multiplication for each weight of the layers. Call this before the
    engine shards the weights.
    """
    config: Any = model.config
    text = config.get_text_config()
    weights = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and "embed" not in name and "lm_head" not in name
    )
    return float(text.num_hidden_layers * text.num_attention_heads * _head_size(text) / max(1, weights))


def choose(policy: Policy, device: torch.device, quadratic: float) -> Choice:
    """Choose for the policy and its frozen copy, and apply the choice; collective if weights are sharded."""
    models = [without_adapter(p.model) for p in (policy, policy.frozen) if p is not None]
    own: str = models[0].config._attn_implementation
    dtype = next(models[0].parameters()).dtype
    with torch.no_grad():
        proof = _Proof.of(policy, device, dtype)
        _chunk(policy, chunked=True)
        head = "chunked" if proof.head_agrees() else "whole"
        _chunk(policy, chunked=head == "chunked")
        why = _unknown_layers(models[0].config)
        for name in () if why else _candidates(device, dtype):
            failed = _try(models, name, proof)
            if not failed:
                policy.layout = Layout(packed=True, quadratic=quadratic)
                return Choice(policy.layout, name, head, why)
            why = f"{name}: {failed}"
        for model in models:
            attention.install(model, own)
    policy.layout = Layout(packed=False, quadratic=quadratic)
    return Choice(policy.layout, own, head, why)


def follow(policy: Policy, choice: Choice) -> None:
    """Apply `choice` to a frozen copy that `policy` received after `choose`."""
    assert policy.frozen is not None
    attention.install(without_adapter(policy.frozen.model), choice.attention)
    _chunk(policy, chunked=choice.head == "chunked")


def _chunk(policy: Policy, *, chunked: bool) -> None:
    for each in (policy, policy.frozen):
        if each is not None:
            each.finish = finish(each.model) if chunked else None


def _try(models: list[Any], name: str, proof: _Proof) -> str:
    """Why this attention cannot be used; empty if it can."""
    try:
        for model in models:
            attention.install(model, name)
            if model.config._attn_implementation != name:
                return "the model has its own attention"
        if name == attention.VARIABLE and (failed := _kernel_fails(models[0].config, proof)):
            return failed
        return proof.packing_fails()
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"


def _kernel_fails(config: Any, proof: _Proof) -> str:
    """Why the variable-length kernel fails; empty if it does not. `_Proof` compares only values, so this
    function also checks the kernel's gradients."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    groups = getattr(text, "num_key_value_heads", None) or heads
    return attention.variable_fails(heads, groups, _head_size(text), proof.device, proof.dtype)


def _head_size(text: Any) -> int:
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def _candidates(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    if device.type == "cuda" and dtype != torch.float32:
        return (attention.VARIABLE, attention.BY_LENGTH)
    return (attention.BY_LENGTH,)


def _unknown_layers(config: Any) -> str:
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ()) - LAYERS
    return f"layers of kind {', '.join(sorted(kinds))}" if kinds else ""


@dataclass(frozen=True)
class _Proof:
    """Test rows of random tokens, with the model's log-probabilities of each row alone.

    Its methods compare these with the log-probabilities of chunked and packed runs.
    """

    policy: Policy
    device: torch.device
    dtype: torch.dtype
    rows: tuple[LearnerRow, LearnerRow]
    others: tuple[LearnerRow, LearnerRow]
    """Different rows of the same lengths as `rows`."""
    alone: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, policy: Policy, device: torch.device, dtype: torch.dtype) -> _Proof:
        """Run the test rows one by one. The policy must compute all logits at once, with its own
        attention."""
        config = policy.model.config.get_text_config()  # type: ignore[union-attr, operator]
        window = getattr(config, "sliding_window", None) or 0
        longer = window + 5 if window <= LONGEST_PROOF else 0
        lengths = [max(longer, length) for length in LENGTHS]
        lengths[1] = max(lengths[1], rope.proof_length(policy.model, LONGEST_ROPE))
        draw = np.random.default_rng(SEED)
        a, b, c, d = (_row(draw.integers(0, config.vocab_size, n)) for n in lengths * 2)
        alone = tuple(policy(micro_batch([row], device)).logprob_T for row in (a, b))
        return cls(policy, device, dtype, (a, b), (c, d), alone)  # type: ignore[arg-type]

    def head_agrees(self) -> bool:
        """Whether log-probabilities computed in chunks agree with those computed from all logits at once."""
        if self.policy.finish is None:
            return False
        try:
            found = [self.policy(micro_batch([row], self.device)).logprob_T for row in self.rows]
        except FAILURES:
            return False
        return all(self._close(*pair) for pair in zip(found, self.alone, strict=True))

    def packing_fails(self) -> str:
        """Why packed rows differ from the same rows alone; empty if they agree."""
        (a, b), (c, d) = self.rows, self.others
        first, second = self._packed(a, b)
        if not (self._close(first, self.alone[0]) and self._close(second, self.alone[1])):
            return "packed rows give other log-probabilities than each row alone"
        apart = max(
            float((self._packed(a, d)[0] - first).abs().max()),
            float((self._packed(c, b)[1] - second).abs().max()),
        )
        return "" if apart <= ISOLATION[self.dtype] else "a packed row attends to another"

    def _packed(self, *rows: LearnerRow) -> tuple[Tensor, ...]:
        batch = micro_batch(rows, self.device, packed=True)
        return self.policy(batch).logprob_T.split([row.action_tokens for row in rows])

    def _close(self, found_T: Tensor, expected_T: Tensor) -> bool:
        return float((found_T - expected_T).abs().mean()) <= AGREEMENT[self.dtype]


def _row(tokens: np.ndarray[Any, np.dtype[np.int64]]) -> LearnerRow:
    nothing = np.zeros(len(tokens), dtype=np.float32)
    return LearnerRow(
        group_id="",
        tokens=tokens,
        mask=np.arange(len(tokens)) >= max(1, len(tokens) - ACTIONS),
        logprobs=nothing,
        advantages=nothing,
        episode=0,
    )
