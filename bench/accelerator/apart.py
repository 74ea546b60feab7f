"""Measures how far two results differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

Weights = Mapping[str, Tensor]


def relative(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference divided by the norm of the expected tensor."""
    difference, size = (found.double() - expected.double()).norm(), expected.double().norm()
    return float(difference / size) if size else float(difference)


def numbers(found: Sequence[float], expected: Sequence[float], *, floor: float = 1e-3) -> float:
    """Largest difference, relative to the expected number or to `floor`, whichever is larger. Two NaNs are
    equal; a NaN and a number differ infinitely."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if not (math.isnan(a) and math.isnan(b))]
    if any(math.isnan(a) or math.isnan(b) for a, b in pairs):
        return math.inf
    return max((abs(a - b) / max(abs(b), floor) for a, b in pairs), default=0.0)


def updates(found: Path, expected: Path) -> float:
    """Relative difference between the changes of the weights in two runs. Both are paths without the
    ending."""
    mine, theirs = (_changed(path) for path in (found, expected))
    flat = [torch.cat([one[name].flatten() for name in sorted(theirs)]) for one in (mine, theirs)]
    return relative(*flat)


def same(one: Path, other: Path) -> bool:
    """Whether two files have the same tensors, bit for bit."""
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _changed(path: Path) -> dict[str, Tensor]:
    start, end = load_file(path.with_suffix(".start")), load_file(path.with_suffix(".end"))
    return {name: end[name] - weight for name, weight in start.items() if "/" not in name}
