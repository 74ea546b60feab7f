"""The interface of all renderers: they convert messages and texts to token ids, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway_coordinator.trajectory.calls import Message, Parsed, Tool
from headway_coordinator.trajectory.lengths import Extent
from headway_coordinator.trajectory.proof import Proof


class Renderer(Protocol):
    """Converts messages and texts of one model to token ids, and sampled token ids to messages."""

    name: str
    stop_token_ids: list[int]

    family: str
    """`model_type` of the model, if it is known."""
    proof: Proof | None
    """The abilities that the probe has proven; None if the probe has not run."""

    @property
    def longest_token(self) -> Extent | None:
        """The largest size of one token; None: there is no known bound."""

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary: every token id is smaller."""

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens, including special tokens."""

    def encode(self, text: str, *, whole: bool) -> list[int]:
        """A text's token ids. With `whole`, they include the tokens that the tokenizer adds to every text."""

    def longer(self, text: str, limit: int) -> bool:
        """Whether a text has more than `limit` tokens; see `lengths.longer`."""

    def exceeds(self, messages: Sequence[Message], tools: Sequence[Tool], limit: int) -> bool:
        """Whether a conversation surely has more than `limit` tokens, found without encoding all of it."""

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        """A conversation as text, with or without the beginning of the model's next turn."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Ids of the whole conversation, up to the beginning of the model's next turn."""

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        """Token ids of `history` + `new` that begin with exactly the ids `prompt` + `sampled`.

        None if the template does not allow such an extension. `history` must end with the assistant message
        that was parsed from `sampled`.
        """

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """Parse a sampled turn. This never raises, whatever was sampled."""

    def thinking(self, effort: str) -> Renderer | None:
        """The renderer for one of `efforts.EFFORTS`; None if the template does not know that effort."""

    def without_reasoning(self) -> list[int]:
        """Token ids for the beginning of a turn without reasoning.

        They close the reasoning that the prompt begins. They are empty if it begins none.
        """

    def force(self, tool: str | None) -> list[int] | None:
        """Token ids for the beginning of a turn that calls `tool`, or any tool if `tool` is None.

        The ids are appended to the prompt, because the model does not sample them. So the turn is parsed as
        `parse([*forced, *sampled], prompt)` and extended as `extend([*prompt, *forced], sampled)`. None if it
        is unknown how this family begins a call.
        """
