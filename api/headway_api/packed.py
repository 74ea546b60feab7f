"""Decompresses gzip within bounds, because it may expand a thousandfold."""

from __future__ import annotations

import zlib
from typing import Final

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError

MAGIC: Final = b"\x1f\x8b"
FREE: Final = 8 * bounds.MIB
RATIO: Final = 100
"""Maximum decompressed bytes for each compressed byte, beyond `FREE` bytes. Tokens and text expand tenfold, a
decompression bomb a thousandfold."""
_GZIP: Final = 31


def unpacked(data: bytes, limit: int) -> bytes:
    """The decompressed content: one member, and nothing after it.

    Raises:
        OutOfBoundsError: `data` is not gzip, or is cut short. Or its content has more bytes than `limit`, or
            than `FREE` plus `RATIO` times those of `data`.
    """
    limit = min(limit, FREE + RATIO * len(data))
    unpacker = zlib.decompressobj(_GZIP)
    try:
        plain = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise OutOfBoundsError(f"not gzip: {error}") from error
    if len(plain) > limit:
        raise OutOfBoundsError(f"more than {limit} bytes, decompressed from {len(data)}")
    if not unpacker.eof:
        raise OutOfBoundsError("gzip that is cut short")
    if unpacker.unused_data:
        raise OutOfBoundsError("gzip with something behind it")
    return plain
