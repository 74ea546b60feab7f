"""Computes a lower bound on a text's tokens without encoding it: to encode megabytes takes seconds.

Only printable ASCII characters, and words of them, are counted. Other characters may vanish: templates trim
white space, tokenizers fold it, and Unicode normalization merges characters. But none of these merges two
printable ASCII characters or two words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headway_coordinator.trajectory import reasoning
from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.probe import SIMPLE
from headway_coordinator.trajectory.proof import Proof
from headway_coordinator.trajectory.template import decoded, template_text

SLICE = 16 * 1024
"""The most characters that are encoded in one call. No other thread runs during the call."""
GLANCE = 256 * 1024
"""The most characters whose letters and words are counted in one call."""
FRAME = 32
"""Rough number of bytes that a template writes around each message and call."""
SLACK = 32
"""Tokens that one cut between slices may add, because a special token that the cut divides is spelled out."""
PRINTING = "".join(map(chr, range(0x21, 0x7F)))
_OTHERS = bytes(set(range(256)) - set(PRINTING.encode()) - set(b" "))


@dataclass(frozen=True)
class Extent:
    """The size of a text or of a token, in letters and words."""

    letters: int
    """Number of printable ASCII characters."""
    words: int
    """Number of runs of letters between spaces. Only spaces count, because JSON spells out other white space,
    such as line breaks."""

    def __add__(self, other: Extent) -> Extent:
        return Extent(self.letters + other.letters, self.words + other.words)

    def tokens(self, longest: Extent) -> int:
        """The fewest tokens that a text of this size can have, if no token is larger than `longest`."""
        return max(-(-self.letters // longest.letters), -(-self.words // longest.words))


class Bounded:
    """The parts of a renderer that depend on the tokenizer only."""

    _tokenizer: Any
    family: str = ""
    proof: Proof | None = None
    """The abilities that the probe has proven; None if the probe has not run."""

    @cached_property
    def longest_token(self) -> Extent | None:
        """The largest size of one token; None: there is no known bound."""
        return longest_token(self._tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens, including special tokens."""
        return decoded(self._tokenizer, list(ids))

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary: every token id is smaller."""
        return len(self._tokenizer)

    def encode(self, text: str, *, whole: bool) -> list[int]:
        """A text's token ids. With `whole`, they include the tokens that the tokenizer adds to every text."""
        return list(self._tokenizer.encode(text, add_special_tokens=whole))

    def longer(self, text: str, limit: int) -> bool:
        """Whether a text has more than `limit` tokens; see the function `longer`."""
        return longer(self._tokenizer, text, limit)

    def without_reasoning(self) -> list[int]:
        """Token ids that close the reasoning that a prompt begins; empty if it begins none."""
        asked: list[Message] = [{"role": "user", "content": "Hello."}]
        try:
            prompt = self.render_text(asked, [], generate=True)
        except Exception:  # a template for tools may reject a conversation without tools (Hermes)
            prompt = self.render_text(asked, SIMPLE, generate=True)
        marks = reasoning.opened(prompt)
        return [] if marks is None else self.encode(f"\n{marks[1]}\n\n", whole=False)

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        """A conversation as text, with or without the beginning of the model's next turn."""
        raise NotImplementedError

    def exceeds(self, messages: Sequence[Message], tools: Sequence[Tool], limit: int) -> bool:
        """Whether a conversation surely has more than `limit` tokens, found without encoding all of it."""
        try:
            text = template_text(self._tokenizer, messages, tools, generate=True)
        except Exception:  # a template raises whatever its author chose: count text that every template has
            text = "".join(content(one) for one in messages if one.get("role") in ("user", "tool"))
        return longer(self._tokenizer, text, limit)


def content(message: Message) -> str:
    """A message's content, whether it is a string, blocks or missing."""
    found = message.get("content") or ""
    return found if isinstance(found, str) else "".join(part.get("text", "") for part in found)


def size(messages: Sequence[Message], tools: Sequence[Tool]) -> int:
    """Approximate bytes of UTF-8 in a conversation, with `FRAME` for each message and call.

    The size also decides whether a thread renders the conversation. So it includes everything that a client
    may make long, even names and ids.
    """
    total = sum(_bytes(json.dumps(tool, ensure_ascii=False)) for tool in tools)
    for message in messages:
        total += FRAME + _bytes(content(message)) + _bytes(message.get("reasoning_content"))
        total += _bytes(message.get("name")) + _bytes(message.get("tool_call_id"))
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            total += _bytes(arguments if isinstance(arguments, str) else json.dumps(arguments))
            total += FRAME + _bytes(call["function"].get("name")) + _bytes(call.get("id"))
    return total


def _bytes(text: object) -> int:
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def longer(tokenizer: Any, text: str, limit: int) -> bool:
    """Whether a text has more than `limit` tokens.

    The text is encoded slice by slice, until the answer is known. So memory and time depend on `limit`, and
    not on the text. Each cut between slices changes a few tokens. To allow for that, a text that is only a
    little too long may count as short enough.
    """
    known, slack = 0, limit // 8
    for start in range(0, len(text), SLICE):
        known += len(tokenizer.encode(text[start : start + SLICE], add_special_tokens=False))
        slack += SLACK
        if known > limit + slack:
            return True
    return False


def extent(texts: Iterable[str]) -> Extent:
    """The size of several texts together."""
    letters = runs = 0
    for text in texts:
        for start in range(0, len(text), GLANCE):
            words = text[start : start + GLANCE].encode("ascii", "ignore").translate(None, _OTHERS).split()
            letters += sum(map(len, words))
            # A cut may divide a word, so each slice after the first counts one word less.
            runs += max(0, len(words) - (start > 0))
    return Extent(letters, runs)


def longest_token(tokenizer: Any) -> Extent | None:
    """The largest size of one token; None if there is no known bound.

    For example, a word-level tokenizer makes any unknown word one token, and others drop characters.
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
    extents = [extent([text]) for text in texts]
    return Extent(max(one.letters for one in extents), max(one.words for one in extents))
