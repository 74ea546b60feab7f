"""Encodes the changes from one version's tensors to the next, in the format of
`headway_api.weights_format`."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from headway_api.records import TensorDigests
from headway_api.weights_format import CHUNK, LENGTHS, Span, read_spans

Result = TypeVar("Result")
Elements = NDArray[np.unsignedinteger[Any]]

FASTEST: Final = 1
"""zlib's compression level. A higher level saves little, because only changed elements are compressed."""
MAX_THREADS: Final = 8


class LayoutMismatchError(Exception):
    """The two files do not hold the same tensors."""


def encode(before: Elements, after: Elements) -> bytes:
    """The delta from `before` to `after`, both flat and of the same unsigned type; empty if they are
    equal."""
    chunks = [_chunk(before[at : at + CHUNK], after[at : at + CHUNK]) for at in range(0, before.size, CHUNK)]
    if not any(gaps for gaps, _ in chunks):
        return b""
    return b"".join(LENGTHS.pack(len(gaps), len(values)) + gaps + values for gaps, values in chunks)


def _chunk(before: Elements, after: Elements) -> tuple[bytes, bytes]:
    changed = np.flatnonzero(before != after)
    if not changed.size:
        return b"", b""
    gaps = changed.astype(np.uint32)
    gaps[1:] -= gaps[:-1].copy()
    step = after[changed] - before[changed]
    signed = step.view(np.dtype(f"i{step.itemsize}"))
    zigzag = (signed << 1) ^ (signed >> (8 * step.itemsize - 1))
    return _compressed(gaps), _compressed(zigzag)


def _compressed(numbers: NDArray[np.integer[Any]]) -> bytes:
    planes = numbers.view(np.uint8).reshape(-1, numbers.itemsize).T
    return zlib.compress(planes.tobytes(), FASTEST)


def write_delta(before: Path, after: Path, path: Path) -> None:
    """Write to `path` the delta from the safetensors file `before` to `after`.

    Raises:
        LayoutMismatchError: the two files have different tensors.
    """
    old, new = read_spans(before), read_spans(after)
    if old != new:
        raise LayoutMismatchError(f"{before} and {after} have different tensors")
    old_bytes, new_bytes = np.memmap(before, np.uint8, "r"), np.memmap(after, np.uint8, "r")

    def one(name: str) -> tuple[str, bytes]:
        span = new[name]
        return name, encode(_elements(old_bytes, span), _elements(new_bytes, span))

    made = {name: np.frombuffer(data, np.uint8) for name, data in _each(one, new) if data}
    save_file(made, path)


def tensor_digests(path: Path) -> TensorDigests:
    """SHA-256 of each tensor of a safetensors file."""
    spans, data = read_spans(path), np.memmap(path, np.uint8, "r")

    def one(name: str) -> tuple[str, str]:
        span = spans[name]
        return name, hashlib.sha256(data[span.begin : span.end].data).hexdigest()

    return TensorDigests(tensors=dict(_each(one, spans)))


def _each(work: Callable[[str], Result], names: Iterable[str]) -> list[Result]:
    # numpy, zlib and hashlib release the GIL over long rows.
    with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as threads:
        return list(threads.map(work, names))


def _elements(data: NDArray[np.uint8], span: Span) -> Elements:
    """The elements of a tensor as unsigned integers of their width."""
    elements: Elements = data[span.begin : span.end].view(np.dtype(f"<u{span.element_bytes}"))
    return elements
