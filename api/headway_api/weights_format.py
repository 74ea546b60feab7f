"""How published full weights are stored in their folder, whole or as a delta.

A whole version has `model.safetensors`. A delta has `weights.delta` instead, which is a safetensors file too.
For each tensor that changed it has a row of bytes under the tensor's name. The row turns the earlier
version's tensor into the new one, bit for bit. Both have `digests.json`: the SHA-256 of each tensor's bytes
in the new version.

A tensor is cut into chunks of `CHUNK` elements, one after the other. A chunk begins with two little-endian
uint32, the lengths of two zlib streams (both 0 if nothing changed), and then these:

    which elements changed   for each changed element, its distance from the changed element before it (for
                             the first, from the chunk's start), as uint32
    by how much              for each changed element, new minus old, both read as unsigned integers, modulo
                             their range; then zigzag, so that small decreases are small numbers too

In both streams the lowest bytes of all numbers come first, then their second bytes, and so on.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headway_api.bounds import json_within

MODEL_FILE: Final = "model.safetensors"
DELTA_FILE: Final = "weights.delta"
"""The name does not end in .safetensors. Otherwise other programs would read the delta as a part of a whole
model in the same folder."""
DIGESTS_FILE: Final = "digests.json"
"""Holds a `records.TensorDigests`."""
EXPORT_FILE: Final = "export.json"
"""Holds the version's number. It is written last if the whole model was added to a version's folder only when
the job ended."""

CHUNK: Final = 1 << 22
"""Elements of a chunk. It bounds the memory for making and applying a delta."""
LENGTHS: Final = struct.Struct("<II")
LONGEST_HEADER: Final = 100 << 20


class InvalidSafetensorsError(ValueError):
    """A file is not a complete safetensors file."""


@dataclass(frozen=True)
class Span:
    """One tensor of a safetensors file."""

    dtype: str
    """Type as safetensors names it: F32, BF16, ..."""
    shape: tuple[int, ...]
    begin: int
    """Offset of its first byte, from the start of the file."""
    end: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; 1 if there is none, or if elements are not whole bytes."""
        count = math.prod(self.shape)
        width, rest = divmod(self.end - self.begin, count) if count else (1, 0)
        return width if not rest and width in (1, 2, 4, 8) else 1


def read_spans(path: Path) -> dict[str, Span]:
    """Where each tensor of a safetensors file is; the file's size is checked against its header.

    Raises:
        InvalidSafetensorsError: the file is not complete, or its header is wrong; the text says which.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(LONGEST_HEADER, size - 8):
            raise InvalidSafetensorsError(f"{path.name} is not a safetensors file")
        start = 8 + length
        try:
            entries = json_within(stream.read(length), LONGEST_HEADER)
            entries.pop("__metadata__", None)
            spans = {name: _span(entry, start) for name, entry in entries.items()}
            end = max((span.end for span in spans.values()), default=start)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidSafetensorsError(f"the header of {path.name} cannot be read: {error}") from error
    if end != size:
        raise InvalidSafetensorsError(f"{path.name} is {size} bytes long; its header describes {end}")
    return spans


def _span(entry: dict[str, Any], start: int) -> Span:
    begin, end = entry["data_offsets"]
    return Span(entry["dtype"], tuple(entry["shape"]), start + begin, start + end)
