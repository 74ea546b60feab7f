"""Applies a delta to the version that it changes, in the format of `headway_api.weights_format`.

Each tensor of the result is compared with its digest, so an engine never loads a wrong result.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from headway_api.records import TensorDigests
from headway_api.store import CorruptFileError
from headway_api.weights_format import CHUNK, LENGTHS, InvalidSafetensorsError, read_spans

Elements = NDArray[np.unsignedinteger[Any]]
MAX_THREADS: Final = 8


def decode(elements: Elements, data: bytes) -> None:
    """Apply the delta `data` to `elements` in place.

    Args:
        elements: a tensor's elements, with their bits as unsigned integers, shape (n,).
        data: the tensor's compressed changes.

    Raises:
        ValueError: `data` is not a delta of that many elements.
    """
    at = 0
    for start in range(0, elements.size, CHUNK):
        if len(data) - at < LENGTHS.size:
            raise ValueError("it ends early")
        lengths = LENGTHS.unpack_from(data, at)
        at += LENGTHS.size
        gaps, values = data[at : at + lengths[0]], data[at + lengths[0] : at + sum(lengths)]
        at += sum(lengths)
        if gaps:
            _apply(elements[start : start + CHUNK], gaps, values)
    if at != len(data):
        raise ValueError(f"it is {len(data)} bytes long and ends at {at}")


def _apply(elements: Elements, gaps: bytes, values: bytes) -> None:
    changed = np.cumsum(_numbers(gaps, np.dtype(np.uint32)), dtype=np.uint64)
    zigzag = _numbers(values, elements.dtype)
    if changed.size != zigzag.size or not changed.size or changed[-1] >= elements.size:
        raise ValueError(f"it changes {changed.size} of {elements.size} elements by {zigzag.size} numbers")
    elements[changed] += (zigzag >> 1) ^ np.negative(zigzag & 1)


def _numbers(data: bytes, dtype: np.dtype[Any]) -> Elements:
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(data, CHUNK * dtype.itemsize + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or len(plain) > CHUNK * dtype.itemsize:
        raise ValueError(f"it changes more than {CHUNK} elements at once, or ends early")
    planes = np.frombuffer(plain, np.uint8).reshape(dtype.itemsize, -1)
    numbers: Elements = np.ascontiguousarray(planes.T).view(dtype).reshape(-1)
    return numbers


def apply(before: Path, delta: Path, digests: Path, after: Path) -> None:
    """Apply the delta file to the safetensors file `before`, and write the result to `after`.

    `digests` is a file with the digest of each tensor of the result.

    Raises:
        CorruptFileError: a tensor does not match its digest. One of the three files is damaged, or the delta
            belongs to another version.
    """
    try:
        spans, changes = read_spans(before), read_spans(delta)
        expected = TensorDigests.model_validate_json(digests.read_bytes()).tensors
    except (InvalidSafetensorsError, ValidationError) as error:
        raise CorruptFileError(f"{delta.parent.name}: {error}") from error
    if expected.keys() != spans.keys() or changes.keys() - spans.keys():
        raise CorruptFileError(f"{delta.parent.name}: the delta is not of the tensors of {before}")
    old, new = np.memmap(before, np.uint8, "r"), np.memmap(delta, np.uint8, "r")
    with after.open("wb") as stream:
        stream.truncate(old.size)
    out = np.memmap(after, np.uint8, "r+")
    header = min((span.begin for span in spans.values()), default=old.size)
    out[:header] = old[:header]

    def one(name: str) -> None:
        span = spans[name]
        tensor = out[span.begin : span.end]
        tensor[:] = old[span.begin : span.end]
        if name in changes:
            change = changes[name]
            _decoded(tensor.view(f"<u{span.element_bytes}"), new[change.begin : change.end].tobytes(), name)
        found = hashlib.sha256(tensor.data).hexdigest()
        if found != expected[name]:
            raise CorruptFileError(f"{name}: expected sha256 {expected[name]}, found {found}")

    with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as threads:
        for _ in threads.map(one, spans):
            continue
    out.flush()


def _decoded(elements: Elements, data: bytes, name: str) -> None:
    try:
        decode(elements, data)
    except ValueError as error:
        raise CorruptFileError(f"the delta of {name} cannot be read: {error}") from error
