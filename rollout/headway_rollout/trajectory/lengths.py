"""How many tokens a text must come to at least, before it is made tokens: that costs seconds for megabytes.

What is counted is ASCII that prints. Templates trim blanks and tokenizers fold them, and Unicode's normal
forms make several characters one: but never two of these.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

PRINTING = "".join(map(chr, range(0x21, 0x7F)))
_OTHERS = bytes(set(range(256)) - set(PRINTING.encode()))


class Bounded:
    """What every renderer knows by its tokenizer."""

    _tokenizer: Any

    @cached_property
    def longest_token(self) -> int | None:
        """See `Renderer`."""
        return longest_token(self._tokenizer)


def printing(text: str) -> int:
    """Characters of ASCII that print."""
    return len(text.encode("ascii", "ignore").translate(None, _OTHERS))


def longest_token(tokenizer: Any) -> int | None:
    """The most printing characters that one token stands for.

    None where that is not known: a tokenizer by whole words makes any word that it does not know one token,
    and another may drop what it does not like.
    """
    from tokenizers.models import BPE, Unigram

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, BPE | Unigram):
        return None
    sample = PRINTING + "".join(2 * letter for letter in PRINTING)
    kept = tokenizer.decode(tokenizer.encode(sample, add_special_tokens=False), skip_special_tokens=False)
    if "".join(kept.split()) != sample:
        return None
    # A token is written with its text's own letters, and with others for bytes that do not print.
    return max(map(printing, tokenizer.get_vocab()))
