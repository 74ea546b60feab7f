"""OpenAI's Harmony, the format of gpt-oss: a turn has channels instead of one text.

Servers of gpt-oss render conversations with OpenAI's encoder instead of the chat template, and so does the
`renderers` package. The template differs from the encoder in turns with tools.

This module differs from the package in two things. A turn begins before the channel, as on those servers, so
that the model chooses the channel, or a call can be forced. And a tool's result has the tool's name, which
clients leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headway_coordinator.trajectory import reasoning
from headway_coordinator.trajectory.calls import Message, Parsed, Tool
from headway_coordinator.trajectory.lengths import Bounded
from headway_coordinator.trajectory.readers import GPT_OSS, Reader, forced, kept, last
from headway_coordinator.trajectory.template import decoded

HARMONY_EFFORTS: Final = ("low", "medium", "high")
USUAL_EFFORT: Final = "medium"


class HarmonyRenderer(Bounded):
    """Messages <-> token ids for gpt-oss."""

    name = GPT_OSS

    def __init__(
        self,
        tokenizer: Any,
        inner: Any,
        keeping: Any,
        reader: Reader,
        at: Callable[[str], HarmonyRenderer] | None = None,
    ) -> None:
        """Wrap two renderers of the `renderers` package.

        Args:
            tokenizer: the model's tokenizer.
            inner: drops reasoning as the family's encoder does.
            keeping: keeps all reasoning.
            reader: parses sampled turns.
            at: returns the renderer for a reasoning effort.
        """
        self._at = at
        self._tokenizer = tokenizer
        self._inner = inner
        self._keeping = keeping
        self._reader = reader
        self._start, self._channel = tokenizer.convert_tokens_to_ids(["<|start|>", "<|channel|>"])
        self.stop_token_ids = reader.stop_token_ids

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        ids = self._inner.render_ids(
            signed([], messages), tools=list(tools) or None, add_generation_prompt=generate
        )
        return decoded(self._tokenizer, self._before_channel(ids) if generate else list(ids))

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        ids = self._inner.render_ids(
            signed([], messages), tools=list(tools) or None, add_generation_prompt=True
        )
        return self._before_channel(ids)

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        bridged = self._bridged(self._inner, prompt, sampled, history, new, tools)
        if bridged is not None:
            return bridged
        # At a user's message, the encoder drops earlier reasoning. If there was none, the row continues.
        bridged = self._bridged(self._keeping, prompt, sampled, history, new, tools)
        if bridged is None or not reasoning.texts(history):
            return bridged
        return None if reasoning.dropped(decoded(self._tokenizer, bridged), "", history) else bridged

    def _bridged(
        self,
        renderer: Any,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        tokens = [*prompt, *sampled]
        turn = last(prompt, self._start)
        bridged = renderer.bridge_to_next_turn(
            tokens[:turn], tokens[turn:], signed(history, new), tools=list(tools) or None
        )
        return None if bridged is None else kept(tokens, self._before_channel(bridged.token_ids))

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        return self._reader.read(sampled, prompt, tools)

    def force(self, tool: str | None) -> list[int] | None:
        return forced(self._tokenizer, self.name, tool)

    def thinking(self, effort: str) -> HarmonyRenderer | None:
        if self._at is None or effort not in HARMONY_EFFORTS:
            return None
        return self if effort == USUAL_EFFORT else self._at(effort)

    def without_reasoning(self) -> list[int]:
        return self.encode("<|channel|>final<|message|>", whole=False)

    def _before_channel(self, ids: Sequence[int]) -> list[int]:
        return list(ids[: last(ids, self._channel)])


def signed(history: Sequence[Message], new: Sequence[Message]) -> list[Message]:
    """The messages `new`, where each tool message also has the name of the called tool."""
    from renderers import extract_message_tool_names

    names = extract_message_tool_names([*history, *new])[len(history) :]
    return [{**message, "name": name} if name else message for message, name in zip(new, names, strict=True)]
