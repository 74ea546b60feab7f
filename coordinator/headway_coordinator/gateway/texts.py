"""Prompts that are texts and no conversations: which recorded turn one goes on from, and its tokens. Pure.

What the model sampled is never made tokens again. A text that begins with a recorded prompt and all that was
sampled after it goes on with the recorded tokens, and only what is new is encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from headway_api.records import ForkReason
from headway_coordinator.gateway.refusals import bad
from headway_coordinator.trajectory.graph import Graph
from headway_coordinator.trajectory.renderer import Renderer

BESIDE = 16
"""Tokens before an answer that tell how its first is written: some tokenizers drop a text's first blank."""


@dataclass(eq=False)
class Continued:
    """One recorded turn of a text."""

    node: int
    """What was sampled, in the graph."""
    before: Continued | None = field(repr=False)
    """The turn that this one goes on from."""
    prompt: str
    whole: str
    """The prompt and all that was sampled, without a token that ends the text."""
    told: str
    """The prompt and the answer: that is without the string that ended it."""
    ended: bool
    """Its last token ends the text, so no text goes on from it."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as the engine is asked, and as people read it."""

    tokens: list[int]
    text: str
    before: Continued | None
    """The recorded turn that it goes on from."""


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
        going = [one for one in recorded if begins(graph.tokens(one.node), given)]
        return Prompt(list(given), renderer.text(given), _longest(going, unseen))
    before = _longest([one for one in recorded if not one.ended and given.startswith(one.whole)], unseen)
    if before is not None:
        new = renderer.encode(given[len(before.whole) :], whole=False)
        return Prompt([*graph.tokens(before.node), *new], given, before)
    tokens = renderer.encode(given, whole=True)
    if not tokens:
        raise bad("prompt", "is empty; send at least one token")
    return Prompt(tokens, given, None)


def begins(tokens: Sequence[int], given: Sequence[int]) -> bool:
    """Whether `given` begins with `tokens`."""
    return list(given[: len(tokens)]) == list(tokens)


def reason(recorded: Sequence[Continued], text: str) -> ForkReason:
    """Why a text goes on from nothing that was sampled, or from where another turn has gone on."""
    if any(text == one.prompt for one in recorded):
        return "again"
    left = [one for one in recorded if text.startswith(one.told) and not text.startswith(one.whole)]
    if left or any(text.startswith(one.whole) and one.ended for one in recorded):
        return "cut_off"
    return "content"


def answer(renderer: Renderer, prompt: Sequence[int], sampled: Sequence[int]) -> str:
    """What was sampled as it stands behind its prompt."""
    beside = list(prompt[-BESIDE:])
    head, whole = renderer.text(beside), renderer.text([*beside, *sampled])
    return whole[len(head) :] if whole.startswith(head) else renderer.text(sampled)


def _longest(going: Sequence[Continued], unseen: Collection[int]) -> Continued | None:
    return max(going, key=lambda one: (len(one.whole), one.node not in unseen, one.node), default=None)
