"""Attention over training rows packed into one sequence, without padding and without a mask.

There are two functions for transformers' `AttentionInterface`. `by_length` calls torch's attention once for
each run of rows of equal length, on any device and in any precision. `variable` calls torch's variable-length
kernel, for 16-bit formats on CUDA. Both support causal attention, grouped heads and sliding windows. Any
other option that a model's attention asks for is an error. `layout` then falls back to padded rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from headway_trainer.imports import lean

BY_LENGTH: Final = "headway_by_length"
VARIABLE: Final = "headway_variable"
WITHOUT_EFFECT: Final = frozenset({"position_ids", "cache_position", "use_cache", "past_key_values"})
"""Arguments that do not change this attention. Queries and keys already contain the positions, and there is
no cache."""


KERNELS_APART: Final = 0.02
"""Largest relative difference allowed between two 16-bit kernels, in values or gradients."""


class UnsupportedAttentionError(Exception):
    """A model's attention asks for an option that these functions do not support."""


@dataclass(frozen=True)
class RowSpans:
    """Where B training rows lie in one sequence of L tokens."""

    lengths: tuple[int, ...]
    bounds: Tensor
    """(B + 1,): the start of each row, and L at the end; int32, on the device."""
    positions_1L: Tensor
    """Position of each token in its row."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> RowSpans:
        """Rows of these lengths, in this order."""
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        positions_L = torch.cat([torch.arange(length) for length in lengths])
        return cls(tuple(lengths), ends.to(device), positions_L[None].to(device))

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """Runs of neighbouring rows of equal length, each as (first token, number of rows, length)."""
        found, start = [], 0
        for length, rows in groupby(self.lengths):
            count = len(list(rows))
            found.append((start, count, length))
            start += count * length
        return found


def install(model: Any, name: str) -> None:
    """Make `model` (a Hugging Face model) use the attention called `name`: `BY_LENGTH`, `VARIABLE`, or an
    attention of transformers."""
    with lean():
        from transformers import AttentionInterface

    AttentionInterface.register(BY_LENGTH, by_length)
    AttentionInterface.register(VARIABLE, variable)
    model.set_attn_implementation(name)


def by_length(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    rows: RowSpans | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each of the packed `rows`: (1, N, L, D) -> (1, L, N, D). Without `rows`, within
    each sequence of the batch: (B, N, L, D) -> (B, L, N, D)."""
    _refuse_unknown(module, attention_mask, others)
    if rows is None:
        return _causal(query, key, value, scaling, sliding_window).transpose(1, 2), None
    parts = []
    for start, count, length in rows.runs:
        q_BNLD, k_BNLD, v_BNLD = (_cut(x_1NLD, start, count, length) for x_1NLD in (query, key, value))
        part_BNLD = _causal(q_BNLD, k_BNLD, v_BNLD, scaling, sliding_window)
        parts.append(part_BNLD.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[None], None


def variable(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    rows: RowSpans | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute what `by_length` computes, with one kernel for all rows, in 16-bit formats on CUDA."""
    if rows is None:
        options: dict[str, Any] = {"scaling": scaling, "sliding_window": sliding_window, **others}
        return by_length(module, query, key, value, attention_mask, **options)
    _refuse_unknown(module, attention_mask, others)
    from torch.nn.attention.varlen import varlen_attn

    longest = max(rows.lengths)
    q_LND, k_LND, v_LND = (x_1NLD[0].transpose(0, 1) for x_1NLD in (query, key, value))
    out_LND = varlen_attn(
        q_LND,
        k_LND,
        v_LND,
        rows.bounds,
        rows.bounds,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out_LND, Tensor)
    return out_LND[None], None


def variable_fails(heads: int, groups: int, size: int, device: torch.device, dtype: torch.dtype) -> str:
    """Why `variable` differs from `by_length` in values or gradients; empty if both agree.

    Args:
        heads: number of heads of the queries.
        groups: number of heads of the keys and values.
        size: size of a head.
        device: the device on which the kernel will run.
        dtype: a 16-bit type.
    """
    lengths = (19, 19, 7)
    spans, generator = RowSpans.of(lengths, device), torch.Generator(device).manual_seed(0)
    found = []
    for function in (variable, by_length):
        generator.manual_seed(0)
        with torch.enable_grad():
            given = [
                torch.randn(1, n, sum(lengths), size, generator=generator, device=device, dtype=dtype)
                for n in (heads, groups, groups)
            ]
            q_1NLD, k_1NLD, v_1NLD = inputs = [x.requires_grad_() for x in given]
            out_1LND, _ = function(nn.Identity(), q_1NLD, k_1NLD, v_1NLD, None, rows=spans)
            weights_1LND = torch.linspace(-1, 1, out_1LND.numel(), device=device).view_as(out_1LND)
            gradients = torch.autograd.grad((out_1LND.float() * weights_1LND).sum(), inputs)
        found.append([x.detach().float() for x in (out_1LND, *gradients)])
    apart = max(float((a - b).norm() / b.norm()) for a, b in zip(*found, strict=True))
    return "" if apart <= KERNELS_APART else f"kernels differ by {apart:.2g}"


def _cut(x_1NLD: Tensor, start: int, count: int, length: int) -> Tensor:
    """`count` packed rows of equal `length` as a batch: (B, N, L, D), where L is `length`."""
    part_NLD = x_1NLD[0, :, start : start + count * length]
    return part_NLD.unflatten(1, (count, length)).transpose(0, 1)


def takes_groups(device: str, dtype: torch.dtype, *, masked: bool) -> bool:
    """Whether torch can run grouped heads (fewer key heads than query heads) without storing all scores.

    On CUDA only the 16-bit kernel without a mask can. All other CUDA paths store the scores, whose memory
    grows with the square of a row's length. In float32 the scores of 16,384 tokens and 32 heads are 32 GiB.
    """
    return device != "cuda" or (dtype != torch.float32 and not masked)


def _causal(
    q_BNLD: Tensor, k_BNLD: Tensor, v_BNLD: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Attention of each position to itself and earlier positions, at most `window` in all; (B, N, L, D)."""
    length, grouped = q_BNLD.shape[2], q_BNLD.shape[1] != k_BNLD.shape[1]
    masked = window is not None and window < length
    if grouped and not takes_groups(q_BNLD.device.type, q_BNLD.dtype, masked=masked):
        heads = q_BNLD.shape[1] // k_BNLD.shape[1]
        k_BNLD, v_BNLD = (x_BNLD.repeat_interleave(heads, 1) for x_BNLD in (k_BNLD, v_BNLD))
        grouped = False
    options: dict[str, Any] = {"scale": scaling, "enable_gqa": grouped}
    if window is None or not masked:
        return scaled_dot_product_attention(q_BNLD, k_BNLD, v_BNLD, is_causal=True, **options)
    ahead_L = torch.arange(length, device=q_BNLD.device)
    behind_LL = ahead_L[:, None] - ahead_L[None, :]
    mask_LL = (behind_LL >= 0) & (behind_LL < window)
    return scaled_dot_product_attention(q_BNLD, k_BNLD, v_BNLD, attn_mask=mask_LL, **options)


def _refuse_unknown(module: nn.Module, mask: Tensor | None, others: dict[str, Any]) -> None:
    """Raise UnsupportedAttentionError for any `mask`, and for options that these functions do not support."""
    asked = {name: value for name, value in others.items() if name not in WITHOUT_EFFECT}
    causal = asked.pop("is_causal", None)
    unknown = [name for name, value in asked.items() if isinstance(value, Tensor) or value]
    if mask is not None:
        unknown.append("attention_mask")
    if causal is False or not getattr(module, "is_causal", True):
        unknown.append("is_causal")
    if unknown:
        raise UnsupportedAttentionError(f"attention asks for {', '.join(unknown)}")
