"""Compares attention over packed rows on the accelerator with plain arithmetic in float64."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.accelerator import apart, hardware
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown
from headway_trainer import attention
from headway_trainer.attention import RowSpans

LENGTHS = (1, 17, 128, 129, 129, 500, 1024, 3)
ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Largest allowed relative error of an output or a gradient."""
REPEATS = 4
MEBIBYTE = 1 << 20
FUNCTIONS: dict[str, Callable[..., Any]] = {
    attention.VARIABLE: attention.variable,
    attention.BY_LENGTH: attention.by_length,
}
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

READ = prose("""
    These are both attention functions that packed rows may have, on random queries, keys and values. Output
    and gradients of each are compared with softmax written out in float64, a row at a time. The error is the
    norm of the difference over the norm, the largest of the output and the three gradients. *Row alone* says
    whether other numbers in one row leave the bits of all other rows' outputs as they are.

    Speed and memory are of forward and backward of one layer of Qwen3-8B's heads over so many tokens. Memory
    is what is allocated at most beyond what is given. *New lengths* has rows of unequal lengths, which are
    others each time, as in a job. By length, torch may take cuDNN's kernel, which makes a plan for every
    length that it has not seen: the learner forbids it.
""")


@dataclass(frozen=True)
class Shape:
    """Heads of an attention layer: of queries, of keys and values, the size of a head, and the window."""

    heads: int
    groups: int
    size: int
    window: int | None = None


SHAPES = (
    Shape(8, 8, 64),
    Shape(32, 8, 128),
    Shape(4, 1, 256),
    Shape(16, 8, 128, 100),
    Shape(4, 2, 32, 4096),
)
TIMED = Shape(32, 8, 128)


def measure(folder: Path) -> Section:
    """Measure the errors of every shape, and the functions' time and memory."""
    device = torch.device(hardware.kind())
    torch.backends.cuda.enable_cudnn_sdp(False)  # as the learner does
    names = list(FUNCTIONS) if device.type == "cuda" else [attention.BY_LENGTH]
    rows = [
        row
        for shape in SHAPES
        for dtype in (torch.bfloat16, torch.float32)
        for name in names
        if name != attention.VARIABLE or dtype != torch.float32
        if (row := _error(name, shape, dtype, device))
    ]
    scale = 128 if hardware.rehearsing() else 1
    lengths: list[tuple[int, ...] | None] = [(16384 // n // scale,) * n for n in (16, 4, 1)]
    costs = [
        _cost(name, dtype, cudnn, each, scale, device)
        for each in (*lengths, None)
        for name, dtype, cudnn in (
            (names[0], torch.bfloat16, False),
            (names[-1], torch.bfloat16, False),
            (names[-1], torch.bfloat16, True),
            (names[-1], torch.float32, False),
        )
    ]
    costs.append(_cost(names[-1], torch.bfloat16, False, lengths[1], scale, device, window=1024 // scale))
    worst = max(row["error"] / row["allowed"] for row in rows)
    return Section(
        title="Attention over packed rows",
        read=READ,
        tables=[Table("Errors", rows), Table("Cost of a layer, forward and backward", costs)],
        goals=[
            Goal(
                "outputs and gradients within "
                + ", ".join(f"{ALLOWED[dtype]:g} in {name}" for dtype, name in NAMES.items()),
                f"{worst:.2f} of what is allowed, at worst, in {len(rows)} cases",
                worst <= 1,
            ),
            Goal(
                "no row sees another",
                f"{sum(row['row alone'] == 'same' for row in rows)} of {len(rows)} with equal bits",
                all(row["row alone"] == "same" for row in rows),
            ),
        ],
    )


def _error(name: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Row:
    given = _given(shape, sum(LENGTHS), dtype, device)
    spans = RowSpans.of(LENGTHS, device)
    found = _with_gradients(lambda q, k, v: _call(name, shape, spans, q, k, v), given)
    expected = _with_gradients(lambda q, k, v: _plain(shape, q, k, v), [x.double() for x in given])
    # These inputs differ only in the row before the last one.
    start = sum(LENGTHS[:-2])
    others = [x.clone() for x in given]
    for tensor in others:
        tensor[:, :, start : start + LENGTHS[-2]] += 1
    with torch.no_grad():
        one, two = (_call(name, shape, spans, *tensors) for tensors in (given, others))
    alike = torch.equal(one[:, :start], two[:, :start]) and torch.equal(
        one[:, -LENGTHS[-1] :], two[:, -LENGTHS[-1] :]
    )
    return {
        "function": name,
        "dtype": NAMES[dtype],
        "heads": shape.heads,
        "of keys": shape.groups,
        "size": shape.size,
        "window": shape.window or "",
        "error": float(f"{max(map(apart.relative, found, expected)):.2g}"),
        "allowed": ALLOWED[dtype],
        "row alone": "same" if alike else "differ",
    }


def _cost(
    name: str,
    dtype: torch.dtype,
    cudnn: bool,
    lengths: tuple[int, ...] | None,
    scale: int,
    device: torch.device,
    window: int | None = None,
) -> Row:
    """Time and memory of attention over rows of these lengths, or of new lengths each time if None."""
    draw, shape = random.Random(3), replace(TIMED, window=window)
    row: Row = {
        "function": f"{name}, cuDNN allowed" if cudnn else name,
        "dtype": NAMES[dtype],
        "rows": "4, new lengths" if lengths is None else f"{len(lengths)} of {lengths[0]}",
        "window": window or "",
        "ms": "",
        "MiB": "",
    }
    taken = []
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    try:
        for _ in range(REPEATS + 1):
            these = lengths or [draw.randint(1000, 7000) // scale for _ in range(4)]
            given, spans = _given(shape, sum(these), dtype, device), RowSpans.of(these, device)
            _settle(device)
            before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
            began = time.perf_counter()
            _with_gradients(lambda q, k, v, spans=spans: _call(name, shape, spans, q, k, v), given)
            if device.type == "cuda":
                torch.cuda.synchronize()
                row["MiB"] = round((torch.cuda.max_memory_allocated() - before) / MEBIBYTE)
            taken.append(time.perf_counter() - began)
    except torch.OutOfMemoryError:
        row["ms"] = "out of memory"
    else:
        row["ms"] = shown(1000 * statistics.median(taken[1:]))
    finally:
        torch.backends.cuda.enable_cudnn_sdp(False)
    return row


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _given(shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    draw = torch.Generator(device).manual_seed(7)
    heads = (shape.heads, shape.groups, shape.groups)
    sizes = [(1, n, tokens, shape.size) for n in heads]
    return [torch.randn(size, generator=draw, device=device).to(dtype) for size in sizes]


def _call(name: str, shape: Shape, spans: RowSpans, *tensors: Tensor) -> Tensor:
    out: Tensor = FUNCTIONS[name](nn.Identity(), *tensors, None, sliding_window=shape.window, rows=spans)[0]
    return out


def _with_gradients(function: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of a weighted sum of the output with respect to `given`."""
    inputs = [x.detach().requires_grad_() for x in given]
    out = function(*inputs)
    weights = torch.linspace(-1, 1, out.shape[1], device=out.device, dtype=out.dtype)
    gradients = torch.autograd.grad(out, inputs, weights[None, :, None, None].expand_as(out))
    return [out.detach(), *gradients]


def _plain(shape: Shape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in plain arithmetic, with the softmax of each row written out."""
    repeat = shape.heads // shape.groups
    parts = []
    for start, length in zip(
        RowSpans.of(LENGTHS, torch.device("cpu")).bounds.tolist(), LENGTHS, strict=False
    ):
        here = slice(start, start + length)
        keys, values = (x[0, :, here].repeat_interleave(repeat, 0) for x in (k, v))
        scores = q[0, :, here] @ keys.transpose(1, 2) / shape.size**0.5
        place = torch.arange(length, device=q.device)
        behind = place[:, None] - place[None, :]
        seen = (behind >= 0) & (behind < (shape.window or length))
        parts.append((scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values).transpose(0, 1))
    return torch.cat(parts)[None]
