"""How many tokens a text must come to at least, before it is made tokens: that costs seconds for megabytes.

What is counted is ASCII that prints, and words of it. Templates trim blanks and tokenizers fold them, and
Unicode's normal forms make several characters one: but never two of these, and no two words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headway_coordinator.trajectory import thoughts
from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.probe import SIMPLE
from headway_coordinator.trajectory.proof import Proof
from headway_coordinator.trajectory.template import decoded, template_text

SLICE = 16 * 1024
"""Characters that are made tokens at once where a text may be too long: nothing else runs meanwhile."""
GLANCE = 256 * 1024
"""Characters that are counted at once."""
SLACK = 32
"""Tokens that a cut may add: a special token that it divides is spelled."""
PRINTING = "".join(map(chr, range(0x21, 0x7F)))
_OTHERS = bytes(set(range(256)) - set(PRINTING.encode()) - set(b" "))


@dataclass(frozen=True)
class Extent:
    """What a text, or a token, holds."""

    letters: int
    """Characters of ASCII that print."""
    words: int
    """Runs of them between spaces: other blanks may be written out, as they are in JSON."""

    def __add__(self, other: Extent) -> Extent:
        return Extent(self.letters + other.letters, self.words + other.words)

    def tokens(self, longest: Extent) -> int:
        """The fewest tokens that hold this much, where none holds more than `longest`."""
        return max(-(-self.letters // longest.letters), -(-self.words // longest.words))


class Bounded:
    """What every renderer knows by its tokenizer."""

    _tokenizer: Any
    family: str = ""
    proof: Proof | None = None
    """Both as in `Renderer`."""

    @cached_property
    def longest_token(self) -> Extent | None:
        """See `Renderer`."""
        return longest_token(self._tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """See `Renderer`."""
        return decoded(self._tokenizer, list(ids))

    @property
    def vocabulary(self) -> int:
        """See `Renderer`."""
        return len(self._tokenizer)

    def encode(self, text: str, *, whole: bool) -> list[int]:
        """See `Renderer`."""
        return list(self._tokenizer.encode(text, add_special_tokens=whole))

    def longer(self, text: str, most: int) -> bool:
        """See `Renderer`."""
        return longer(self._tokenizer, text, most)

    def thoughtless(self) -> list[int]:
        """See `Renderer`."""
        asked: list[Message] = [{"role": "user", "content": "Hello."}]
        try:
            said = self.said(asked, [], generate=True)
        except Exception:  # a template for tools may take no conversation without one (Hermes)
            said = self.said(asked, SIMPLE, generate=True)
        marks = thoughts.opened(said)
        return [] if marks is None else self.encode(f"\n{marks[1]}\n\n", whole=False)

    def said(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        """See `Renderer`."""
        raise NotImplementedError

    def exceeds(self, messages: Sequence[Message], tools: Sequence[Tool], most: int) -> bool:
        """See `Renderer`."""
        try:
            text = template_text(self._tokenizer, messages, tools, generate=True)
        except Exception:  # a template raises what its author chose; what every template says is counted
            text = "".join(content(one) for one in messages if one.get("role") in ("user", "tool"))
        return longer(self._tokenizer, text, most)


def content(message: Message) -> str:
    """A message's content, be it a string, blocks or nothing."""
    found = message.get("content") or ""
    return found if isinstance(found, str) else "".join(part.get("text", "") for part in found)


def size(messages: Sequence[Message], tools: Sequence[Tool]) -> int:
    """Bytes of UTF-8 in a conversation, about."""
    total = _bytes(json.dumps(list(tools), ensure_ascii=False)) if tools else 0
    for message in messages:
        total += _bytes(content(message)) + _bytes(message.get("reasoning_content") or "")
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            total += _bytes(arguments if isinstance(arguments, str) else json.dumps(arguments))
    return total


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def longer(tokenizer: Any, text: str, most: int) -> bool:
    """Whether a text comes to more than `most` tokens. It is made tokens slice by slice, and no further than
    that is known: memory and time follow `most`, and not the text.

    A cut changes a few tokens beside it, so a text that is only a little longer may be taken for one that is
    not.
    """
    known, slack = 0, most // 8
    for start in range(0, len(text), SLICE):
        known += len(tokenizer.encode(text[start : start + SLICE], add_special_tokens=False))
        slack += SLACK
        if known > most + slack:
            return True
    return False


def extent(texts: Iterable[str]) -> Extent:
    """What texts hold together."""
    letters = runs = 0
    for text in texts:
        for start in range(0, len(text), GLANCE):
            words = text[start : start + GLANCE].encode("ascii", "ignore").translate(None, _OTHERS).split()
            letters += sum(map(len, words))
            # A cut may divide a word.
            runs += max(0, len(words) - (start > 0))
    return Extent(letters, runs)


def longest_token(tokenizer: Any) -> Extent | None:
    """The most that one token stands for.

    None where that is not known: a tokenizer by whole words makes any word that it does not know one token,
    and another may drop what it does not like.
    """
    from tokenizers.models import BPE, Unigram

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, BPE | Unigram):
        return None
    sample = PRINTING + "".join(2 * letter for letter in PRINTING) + " a b"
    ids = tokenizer.encode(sample, add_special_tokens=False)
    if tokenizer.decode(ids, skip_special_tokens=False).split() != sample.split():
        return None
    texts = backend.decode_batch(
        [[token] for token in tokenizer.get_vocab().values()], skip_special_tokens=False
    )
    held = [extent([text]) for text in texts]
    return Extent(max(one.letters for one in held), max(one.words for one in held))
