"""What the `renderers` package asks of a tokenizer, with what was encoded lately at hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

KEPT: Final = 2048
"""Texts that are at hand."""
LONGEST: Final = 4096
"""Characters of a text that is kept: roles, tools and system prompts come again, a tool's results do not."""


class Encoder:
    """A tokenizer without character offsets, which tell a message's words from the template's and are not
    needed here: for them a renderer would encode everything once more, and ask each time if it can.

    A call costs a tokenizer tens of microseconds, whatever it encodes, and a turn takes ten of them.
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
