"""The interface of all renderers of a model: messages and texts <-> token ids."""

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
    """`model_type` of the model, if it is known."""
    proof: Proof | None
    """The renderer's proof on a probe; None if none was made."""

    @property
    def longest_token(self) -> Extent | None:
        """The largest size of one token; None: unbounded."""

    @property
    def vocabulary(self) -> int:
        """All token ids are below it."""

    def text(self, ids: Sequence[int]) -> str:
        """Tokens as text, including special ones."""

    def encode(self, text: str, *, whole: bool) -> list[int]:
        """A text's tokens. A `whole` one begins with the tokens that the tokenizer puts before every text."""

    def longer(self, text: str, limit: int) -> bool:
        """Whether a text has more than `limit` tokens; see `lengths.longer`."""

    def exceeds(self, messages: Sequence[Message], tools: Sequence[Tool], limit: int) -> bool:
        """Whether a conversation surely has more than `limit` tokens, found without rendering all of it."""

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
        """Ids of `history` + `new` that begin with `prompt` + `sampled`. None if there are none.

        `history` ends with the assistant message that was parsed from `sampled`.
        """

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """Read a sampled turn; never fails."""

    def thinking(self, effort: str) -> Renderer | None:
        """The renderer of turns with another of `efforts.EFFORTS`; None if the template does not know it."""

    def without_reasoning(self) -> list[int]:
        """Ids that begin a turn that answers at once: they end reasoning that the prompt has begun."""

    def force(self, tool: str | None) -> list[int] | None:
        """Ids that begin a turn that calls `tool`, or any tool. They go to the end of a prompt.

        None if the family has no known way. Such a turn is read as `parse([*forced, *sampled], prompt)` and
        extended as `extend([*prompt, *forced], sampled)`, because the model did not sample them.
        """
