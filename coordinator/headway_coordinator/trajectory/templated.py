"""A renderer that uses the model's own chat template, and extends sampled turns if the template allows it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Final

from headway_coordinator.trajectory import efforts, reasoning
from headway_coordinator.trajectory.calls import Message, Parsed, Tool
from headway_coordinator.trajectory.lengths import Bounded
from headway_coordinator.trajectory.probe import SIMPLE
from headway_coordinator.trajectory.readers import GPT_OSS, Reader
from headway_coordinator.trajectory.template import PLAIN, CallFormat, decoded, inlined, template_text
from headway_coordinator.trajectory.written import call_start

PROBE: Final[list[Message]] = [{"role": "user", "content": "What is 2 + 2?"}]


class Template(Bounded):
    """Renders with the model's own chat template, and extends a turn by the text that the template adds.

    For that the template must be prefix-stable: the text of a conversation must begin with the text of its
    first messages. It must also keep the model's reasoning: a template that drops all past reasoning is
    prefix-stable in its text, but the sampled tokens include reasoning. Every extension checks both
    conditions. If one of them does not hold, the episode forks.
    """

    def __init__(
        self,
        tokenizer: Any,
        style: str | None,
        reader: Reader,
        call_format: CallFormat = PLAIN,
        variables: efforts.Variables | None = None,
    ) -> None:
        self.name = "chat-template"
        self._tokenizer = tokenizer
        self._style = style
        self._reader = reader
        self.call_format = call_format
        self._variables = variables
        self.stop_token_ids = reader.stop_token_ids

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return self._ids(self.render_text(messages, tools, generate=True))

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        if not sampled or sampled[-1] not in self.stop_token_ids:
            return None
        before = self.render_text(history, tools, generate=False)
        after = self.render_text([*history, *new], tools, generate=True)
        begun = _shared_length(before, after)
        end = None if begun is None else self._end(before, after, begun, sampled[-1])
        if end is None or not self._keeps_reasoning(history, new, tools, after):
            return None
        return [*prompt, *sampled, *self._ids(after[end:])]

    def _end(self, before: str, after: str, begun: int, sampled: int) -> int | None:
        """The position in `after` where the last turn of `before` ends; None if it is not found.

        Args:
            before: the text of the conversation.
            after: the text of the conversation with further messages.
            begun: the length of the part of `after` that corresponds to `before`.
            sampled: the token with which the model ended the turn.
        """
        # The template may close a turn with a stop token other than the one that the model sampled.
        stops = [decoded(self._tokenizer, [token]) for token in self.stop_token_ids]
        end = max((before.rfind(stop) + len(stop) for stop in stops if stop in before), default=None)
        if end is not None and not before[end:].strip():
            return begun - (len(before) - end)
        # The template may close turns with no token. Then the next message may begin with the stop token that
        # the model sampled, as in GLM's templates.
        stop = decoded(self._tokenizer, [sampled])
        if after.startswith(stop, begun):
            return begun + len(stop)
        return begun if sampled == self._tokenizer.eos_token_id else None

    def _keeps_reasoning(
        self, history: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool], after: str
    ) -> bool:
        """Whether `after`, the text with the messages `new`, still has the reasoning that was sampled.

        This is the reasoning of the last turn, and of turns since the user's last message.
        """
        *earlier, last = history
        if self._forgets(earlier, tools, after):
            return False
        text = (last.get("reasoning_content") or "").strip()
        if not text:
            return True
        if self._style == GPT_OSS:  # Harmony's encoder keeps reasoning until the user's next message
            return all(message["role"] != "user" for message in new)

        def times(content: str) -> int:
            """How often the reasoning's text appears in the prompt if the last turn has only `content`."""
            turn = reasoning.without(last) | {"content": content}
            return self.render_text([*earlier, turn, *new], tools, generate=True).count(text)

        content = last.get("content") or ""
        elsewhere = times(content)
        # For a template without a field for reasoning, clients keep reasoning inside the content.
        return after.count(text) > elsewhere or times(inlined(text, content)) > elsewhere

    def _forgets(self, earlier: Sequence[Message], tools: Sequence[Tool], after: str) -> bool:
        """Whether `after` lacks reasoning that the last turn's prompt had.

        Some templates drop reasoning as soon as an answer follows, even before the user's next message.
        """
        since = next((i for i, one in enumerate(reversed(earlier)) if one["role"] == "user"), len(earlier))
        gone = [text for text in reasoning.texts(earlier[len(earlier) - since :]) if text not in after]
        if not gone:
            return False
        asked = self.render_text(earlier, tools, generate=True)
        return any(text in asked for text in gone)

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        return self._reader.read(sampled, prompt, tools)

    def force(self, tool: str | None) -> list[int] | None:
        found = call_start(self._tokenizer, self._reader, self._style, tool)
        return None if found is None else [*self.without_reasoning(), *found]

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        """A conversation as text, with or without the beginning of the model's next turn."""
        text = self._text(messages, tools, generate=generate)
        return text if generate or not self._always else text.removesuffix(self._always)

    def _text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        return template_text(
            self._tokenizer,
            messages,
            tools,
            generate=generate,
            call_format=self.call_format,
            variables=self._variables,
        )

    def thinking(self, effort: str) -> Template | None:
        found = variables(self._tokenizer, effort, self.call_format)
        if not found:
            return None if found is None else self
        return Template(self._tokenizer, self._style, self._reader, self.call_format, found)

    @cached_property
    def _always(self) -> str:
        """The beginning of a turn if the template always appends it, as Cohere's templates do; else empty."""
        asked: list[Message] = [{"role": "user", "content": "Hello."}]
        turns: list[list[Message]] = [[], [{"role": "assistant", "content": "Yes."}]]
        eos = str(self._tokenizer.eos_token)
        try:
            ends = {self._text([*asked, *turn], SIMPLE, generate=False).rpartition(eos)[2] for turn in turns}
        except Exception:  # a template raises whatever its author chose: it does not accept this conversation
            return ""
        end = ends.pop()
        return "" if ends or not end.strip() else end

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def variables(tokenizer: Any, effort: str, call_format: CallFormat = PLAIN) -> dict[str, Any] | None:
    """The template variables that ask a model for an effort; see `efforts.chosen`."""
    rendered = partial(template_text, tokenizer, PROBE, [], generate=True, call_format=call_format)
    return efforts.chosen(lambda given: rendered(variables=given), effort)


def _shared_length(before: str, after: str) -> int | None:
    """The length of the part of `after` that equals `before`; None if `after` does not begin with `before`.

    Empty reasoning is ignored in the comparison: templates write it into the last turn, and drop it once
    another turn follows. That loses nothing.
    """
    if after.startswith(before):
        return len(before)
    kept, length, at = reasoning.without_empty(before), 0, 0
    if not reasoning.without_empty(after).startswith(kept):
        return None
    for start, end in [*reasoning.empty(after), (len(after), len(after))]:
        if length + start - at >= len(kept):
            break
        length, at = length + start - at, end
    return at + len(kept) - length
