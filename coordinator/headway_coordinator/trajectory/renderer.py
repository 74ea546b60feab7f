"""What every renderer of a model does: messages and texts <-> token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway_coordinator.trajectory.calls import Message, Parsed, Tool
from headway_coordinator.trajectory.lengths import Extent
from headway_coordinator.trajectory.proof import Proof


class Renderer(Protocol):
    """Messages <-> token ids for one model."""

    name: str
    stop_token_ids: list[int]

    family: str
    """`model_type` of the model, as far as it is known."""
    proof: Proof | None
    """What was shown of it on a probe; None: nothing was asked."""

    @property
    def longest_token(self) -> Extent | None:
        """The most that one token holds; None: any amount."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""

    def text(self, ids: Sequence[int]) -> str:
        """Tokens as text, special ones included."""

    def encode(self, text: str, *, whole: bool) -> list[int]:
        """A text's tokens; a `whole` one begins with what the tokenizer puts before every text."""

    def longer(self, text: str, most: int) -> bool:
        """Whether a text comes to more than `most` tokens; see `lengths.longer`."""

    def exceeds(self, messages: Sequence[Message], tools: Sequence[Tool], most: int) -> bool:
        """Whether a conversation is certain to come to more than `most` tokens, found without rendering all
        of it."""

    def said(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        """A conversation as text, with or without the beginning of the model's next turn."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Ids of the whole conversation, up to where the model begins its next turn."""

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        """Ids of `history` + `new`, beginning with `prompt` + `sampled`, where that can be had.

        `history` ends with the assistant message that was parsed from `sampled`.
        """

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """Read a sampled turn; never fails."""

    def thinking(self, effort: str) -> Renderer | None:
        """The renderer of turns with another of `efforts.EFFORTS`; None where the template knows it not."""

    def thoughtless(self) -> list[int]:
        """Ids with which a turn begins that answers at once: they end a thought that the prompt has begun."""

    def force(self, tool: str | None) -> list[int] | None:
        """Ids with which a turn begins that is calling `tool`, or any: for the end of a prompt.

        None where the family has no known way. Such a turn is read as `parse([*forced, *sampled], prompt)`
        and extended as `extend([*prompt, *forced], sampled)`, since the model did not sample them.
        """
