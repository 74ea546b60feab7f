"""Measures the peak memory of forward and backward by length, with logits in chunks and all at once."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.learner.work import model_of, row
from bench.support.model import Size
from bench.support.report import Goal, Row, Section, Table, prose
from headway_trainer import head
from headway_trainer import policy as policies
from headway_trainer.policy import Policy, micro_batch

SIZE = Size(hidden=64, layers=2, heads=2, kv_heads=2, head_dim=32, inner=128)
VOCABULARY = 32768
CHUNK = 2**22
LENGTHS = (256, 512, 1024, 2048, 4096)
MEBIBYTE = 1 << 20

READ = prose(f"""
    Forward and backward of one row of which half the tokens are the model's, with activations recomputed.
    Counted are the bytes of all tensors alive at once beyond weights and their gradients: what PyTorch was
    asked for, whatever the allocator keeps. The model is small and its vocabulary of {VOCABULARY} is not, so
    that logits dominate. Chunks are of {CHUNK >> 20} Mi logits here; the product's are of
    {policies.CHUNK >> 20} Mi.
""")


class Peak(TorchDispatchMode):
    """Measures the peak bytes of the tensors that are created within its block."""

    def __init__(self) -> None:
        super().__init__()
        self.highest = self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {self._key(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and self._key(tensor) not in given | self._known:
                self._count(tensor)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = self._key(tensor), storage.nbytes()
        self._known.add(key)
        self._now += size
        self.highest = max(self.highest, self._now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size

    @staticmethod
    def _key(tensor: Tensor) -> int:
        return tensor.untyped_storage()._cdata


def measure(folder: Path) -> Section:
    """Measure all lengths in both ways."""
    model = model_of(SIZE, VOCABULARY)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    product = policies.CHUNK
    try:
        policies.CHUNK = CHUNK  # type: ignore[misc]
        rows = [compared(model, length) for length in LENGTHS]
    finally:
        policies.CHUNK = product  # type: ignore[misc]
    first, last = rows[0], rows[-1]
    longer = LENGTHS[-1] / LENGTHS[0]
    grown = last["MiB, in chunks"] / first["MiB, in chunks"]
    return Section(
        title="Memory",
        read=READ,
        tables=[Table("Peak of forward and backward", rows)],
        goals=[
            Goal(
                "logits in chunks take a bounded share, whatever the length",
                f"{longer:.0f} times the tokens, {grown:.1f} times the memory "
                f"(all at once: {last['MiB, all logits'] / first['MiB, all logits']:.1f})",
                last["MiB, in chunks"] - first["MiB, in chunks"] <= 0.1 * last["MiB, all logits"],
            )
        ],
    )


def compared(model: Any, length: int) -> Row:
    """The peaks of both ways for one length."""
    batch = micro_batch([row([(1, 1)] * (length // 2), VOCABULARY, seed=length)], torch.device("cpu"))
    found = {}
    for name, chunked in (("MiB, all logits", False), ("MiB, in chunks", True)):
        policy = Policy(model, model, temperature=1.0)
        policy.finish = head.finish(model) if chunked else None
        model.zero_grad(set_to_none=False)
        with Peak() as peak:
            policy(batch).logprob_T.sum().backward()
        found[name] = round(peak.highest / MEBIBYTE)
    logits = length // 2 * VOCABULARY * 4 / MEBIBYTE
    return {"tokens": length, "MiB of the logits themselves": round(logits)} | found
