"""Prompts that are texts instead of conversations: which recorded turn a text continues, and its tokens.

Pure.

Tokens that the model sampled are never encoded again. If a text begins with a recorded prompt and its whole
sampled answer, the recorded tokens are reused. Only the new text is encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from headway_api.records import ForkReason
from headway_coordinator.gateway.refusals import bad
from headway_coordinator.trajectory.graph import Graph
from headway_coordinator.trajectory.renderer import Renderer

BESIDE = 16
"""Number of prompt tokens that are decoded together with an answer. Some tokenizers drop the first blank of
a decoded text, so an answer that is decoded alone could lose it."""


@dataclass(eq=False)
class Continued:
    """One recorded turn whose prompt is a text: what it added to the turn that it continues.

    If each turn stored the whole text, memory would grow with the square of an episode's turns.
    """

    node: int
    """The sampled node in the graph."""
    before: Continued | None = field(repr=False)
    """The recorded turn that this one continues; None if it continues none."""
    added: str
    """The prompt's text after `before`."""
    sampled: str
    """The sampled text, without the token that ends it."""
    answered: int
    """Number of characters of `sampled` that the answer has: those before the stop string."""
    ended: bool
    """Whether the last sampled token ends the text, so that no text continues this turn."""
    after: list[Continued] = field(default_factory=list, repr=False)
    """The turns that continue this one."""

    def __post_init__(self) -> None:
        self.start: int = self.before.length if self.before is not None else 0
        self.length: int = self.start + len(self.added) + len(self.sampled)
        """Number of characters in the whole text."""
        if self.before is not None:
            self.before.after.append(self)

    def asks(self, text: str) -> bool:
        """Whether a text that begins with `before` also begins with this turn's prompt."""
        return text.startswith(self.added, self.start)

    def begins(self, text: str) -> bool:
        """Whether a text that begins with `before` also begins with this turn's prompt and answer."""
        return self.asks(text) and text.startswith(self.sampled, self.start + len(self.added))

    @property
    def whole(self) -> str:
        """The whole text, from the first prompt to this turn's answer."""
        parts, at = list[str](), self
        while True:
            parts += [at.sampled, at.added]
            if at.before is None:
                return "".join(reversed(parts))
            at = at.before


@dataclass(frozen=True)
class Prompt:
    """A prompt, as tokens for the engine and as text for people."""

    tokens: list[int]
    text: str
    seen: Continued | None
    """The recorded turn whose tokens the prompt begins with."""
    before: Continued | None
    """The same turn, if the prompt's text also begins with its text."""


def placed(
    renderer: Renderer,
    graph: Graph,
    recorded: Sequence[Continued],
    given: str | tuple[int, ...],
    unseen: Collection[int] = (),
) -> Prompt:
    """A prompt's tokens: those of the longest recorded turn that it continues, and those of the new text.

    Raises:
        GatewayError: the prompt has a token id that the model does not have, or has no tokens.
    """
    if isinstance(given, tuple):
        limit = renderer.vocabulary
        if (at := next((n for n, token in enumerate(given) if token >= limit), None)) is not None:
            raise bad(f"prompt.{at}", f"{given[at]} is not a token of this model; its ids are below {limit}")
        last, text = graph.last_sampled(given), renderer.text(given)
        seen = next((one for one in recorded if one.node == last), None)
        return Prompt(list(given), text, seen, seen if seen and text.startswith(seen.whole) else None)
    going = [one for one in _reached(recorded, given) if one.begins(given) and not one.ended]
    before = max(going, key=lambda one: (one.length, one.node not in unseen, one.node), default=None)
    if before is not None:
        new = renderer.encode(given[before.length :], whole=False)
        return Prompt([*graph.tokens(before.node), *new], given, before, before)
    tokens = renderer.encode(given, whole=True)
    if not tokens:
        raise bad("prompt", "is empty; send at least one token")
    return Prompt(tokens, given, None, None)


def reason(recorded: Sequence[Continued], text: str) -> ForkReason:
    """Why a text continues no sampled tokens, or continues a turn that another turn already continues."""
    near = [one for one in _reached(recorded, text) if one.asks(text)]
    if any(len(text) == one.start + len(one.added) for one in near):
        return "again"
    for one in near:
        goes_on = text.startswith(one.sampled[: one.answered], one.start + len(one.added))
        if goes_on and (one.ended or not one.begins(text)):
            return "cut_off"
    return "content"


def _reached(recorded: Sequence[Continued], text: str) -> Iterator[Continued]:
    """The recorded turns for which the text begins with `before`, or that continue no turn."""
    reached = [one for one in recorded if one.before is None]
    while reached:
        one = reached.pop()
        yield one
        if one.after and one.begins(text):
            reached += one.after


def answer(renderer: Renderer, prompt: Sequence[int], sampled: Sequence[int]) -> str:
    """The sampled text, decoded together with the end of its prompt; see `BESIDE`."""
    beside = list(prompt[-BESIDE:])
    head, whole = renderer.text(beside), renderer.text([*beside, *sampled])
    return whole[len(head) :] if whole.startswith(head) else renderer.text(sampled)
