"""The tokenizer that the `renderers` package uses, with a cache of recent texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

KEPT: Final = 2048
"""The number of cached texts."""
LONGEST: Final = 4096
"""The most characters of a cached text. Roles, tools and system prompts repeat, but tool results do not."""


class Encoder:
    """A tokenizer without character offsets, and with a cache.

    With offsets, the `renderers` package separates a message's words from the template's, which Headway does
    not need. If a tokenizer has offsets, the package encodes everything once more.

    The cache helps because a turn takes ten calls of the tokenizer. Each costs tens of microseconds, however
    short the text is.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.name_or_path: str = tokenizer.name_or_path
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.decode: Callable[..., str] = tokenizer.decode
        self.convert_tokens_to_ids: Callable[..., Any] = tokenizer.convert_tokens_to_ids
        self._kept = lru_cache(KEPT)(self._encoded)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        if add_special_tokens or len(text) > LONGEST:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        return list(self._kept(text))

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))
