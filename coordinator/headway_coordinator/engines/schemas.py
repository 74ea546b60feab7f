"""Remembers the schemas with which servers were lost, because compiling a schema can end a server.

Schemas that are known to be slow or ignored never get here (`gateway/schemas.py`). This module covers unknown
ones: a schema that ends one server would end the next one too, where its turn is retried.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Final

from headway_coordinator.engines.vllm import SchemaRefusedError, ServerLostError

LOSSES: Final = 2
"""Servers that may be lost with one schema, because the first may be a coincidence."""
KEPT: Final = 1_000
"""The number of schemas that are remembered."""


class Suspects:
    """Counts the servers lost with each schema that no server has completed."""

    def __init__(self) -> None:
        self._lost: dict[str, int] = {}

    @contextmanager
    def watched(self, schema: str | None) -> Iterator[None]:
        """Watch one server's turn.

        Raises:
            SchemaRefusedError: `LOSSES` servers were lost with this schema, before or in this block.
        """
        if schema is None:
            yield
            return
        key = sha256(schema.encode()).hexdigest()
        self._require(key)
        try:
            yield
        except ServerLostError:
            self._lost[key] = self._lost.pop(key, 0) + 1
            while len(self._lost) > KEPT:
                del self._lost[next(iter(self._lost))]
            self._require(key)
            raise
        self._lost.pop(key, None)

    def _require(self, key: str) -> None:
        if self._lost.get(key, 0) >= LOSSES:
            raise SchemaRefusedError(f"{LOSSES} servers died while they used this schema; send another one")
