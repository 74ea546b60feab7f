"""Prompts that are texts and no conversations: which recorded turn one goes on from, and its tokens. Pure.

What the model sampled is never made tokens again. A text that begins with a recorded prompt and all that was
sampled after it goes on with the recorded tokens, and only what is new is encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from headway_api.records import ForkReason
from headway_coordinator.gateway.refusals import bad
from headway_coordinator.trajectory.graph import Graph
from headway_coordinator.trajectory.renderer import Renderer

BESIDE = 16
"""Tokens before an answer that tell how its first is written: some tokenizers drop a text's first blank."""


@dataclass(eq=False)
class Continued:
    """One recorded turn of a text, as what it added to the one that it goes on from.

    Kept whole each time, an episode's texts would grow with the square of its turns.
    """

    node: int
    """What was sampled, in the graph."""
    before: Continued | None = field(repr=False)
    added: str
    """What the prompt says behind `before`."""
    said: str
    """What was sampled, without a token that ends the text."""
    told: int
    """Characters of it that the answer has: those before the string that ended it."""
    ended: bool
    """Its last token ends the text, so no text goes on from it."""
    after: list[Continued] = field(default_factory=list, repr=False)
    """What goes on from this one."""

    def __post_init__(self) -> None:
        self.start: int = self.before.length if self.before is not None else 0
        self.length: int = self.start + len(self.added) + len(self.said)
        """Characters of the whole text."""
        if self.before is not None:
            self.before.after.append(self)

    def asks(self, text: str) -> bool:
        """Whether a text that has `before` begins with this turn's prompt, too."""
        return text.startswith(self.added, self.start)

    def begins(self, text: str) -> bool:
        """Whether it begins with all of this turn."""
        return self.asks(text) and text.startswith(self.said, self.start + len(self.added))

    @property
    def whole(self) -> str:
        """The whole text."""
        parts, at = list[str](), self
        while True:
            parts += [at.said, at.added]
            if at.before is None:
                return "".join(reversed(parts))
            at = at.before


@dataclass(frozen=True)
class Prompt:
    """A prompt as the engine is asked, and as people read it."""

    tokens: list[int]
    text: str
    seen: Continued | None
    """The recorded turn that it goes on from."""
    before: Continued | None
    """The same, where its text does as well."""


def placed(
    renderer: Renderer,
    graph: Graph,
    recorded: Sequence[Continued],
    given: str | tuple[int, ...],
    unseen: Collection[int] = (),
) -> Prompt:
    """A prompt's tokens: those of the longest recorded turn that it goes on from, and what is new.

    Raises:
        Refusal: it has a token that the model does not have, or none at all.
    """
    if isinstance(given, tuple):
        most = renderer.vocabulary
        if (at := next((n for n, token in enumerate(given) if token >= most), None)) is not None:
            raise bad(f"prompt.{at}", f"{given[at]} is no token of this model; its ids are below {most}")
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
    """Why a text goes on from nothing that was sampled, or from where another turn has gone on."""
    near = [one for one in _reached(recorded, text) if one.asks(text)]
    if any(len(text) == one.start + len(one.added) for one in near):
        return "again"
    for one in near:
        goes_on = text.startswith(one.said[: one.told], one.start + len(one.added))
        if goes_on and (one.ended or not one.begins(text)):
            return "cut_off"
    return "content"


def _reached(recorded: Sequence[Continued], text: str) -> Iterator[Continued]:
    """The turns whose `before` a text begins with."""
    reached = [one for one in recorded if one.before is None]
    while reached:
        one = reached.pop()
        yield one
        if one.after and one.begins(text):
            reached += one.after


def answer(renderer: Renderer, prompt: Sequence[int], sampled: Sequence[int]) -> str:
    """What was sampled as it stands behind its prompt."""
    beside = list(prompt[-BESIDE:])
    head, whole = renderer.text(beside), renderer.text([*beside, *sampled])
    return whole[len(head) :] if whole.startswith(head) else renderer.text(sampled)
