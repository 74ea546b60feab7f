"""Proves with test conversations, the probe, whether a renderer parses a model's tool calls correctly.

The model's own chat template writes turns of every kind. Each turn is parsed and continued. The result must
have the same calls and the same tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

from headway_coordinator.trajectory import reasoning
from headway_coordinator.trajectory.call_ids import call_id
from headway_coordinator.trajectory.calls import Message, Parsed, Tool
from headway_coordinator.trajectory.probe import (
    ANSWER,
    ASKED,
    ASKED_AGAIN,
    EVERY,
    KEY,
    OTHER_KEY,
    RESULT,
    SECOND_RESULT,
    SIMPLE,
    SPECIAL_CHARACTERS,
    VALUES,
    WHY,
    WHY_GOLD,
    call,
    calling,
)
from headway_coordinator.trajectory.template import decoded

PastReasoning = Literal["none", "kept", "dropped", "at once", "forked", "lost"]
"""`none`: the template writes no reasoning.
`kept`: the template keeps past reasoning, and the training row continues.
`dropped`: the template drops past reasoning at the user's next message, and another row begins.
`at once`: the template drops reasoning after every turn, and another row begins.
`forked`, which is wrong: another row begins although the template keeps past reasoning.
`lost`, which is wrong: the row continues although the template drops past reasoning.
"""
HARMONY: Final = "<|return|>"
"""The token with which a model ends a turn in Harmony, the format of gpt-oss."""


class Provable(Protocol):
    """The parts of a renderer that a proof needs."""

    stop_token_ids: list[int]

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str: ...
    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]: ...
    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed: ...
    def force(self, tool: str | None) -> list[int] | None: ...
    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None: ...


@dataclass(frozen=True)
class Proof:
    """The proven abilities of a renderer and its reader."""

    reader: str = ""
    call: bool = False
    """A call is parsed as it was written. If this is false, no tool is ever called."""
    values: bool = False
    """Arguments of every JSON type are parsed as they were written."""
    special_characters: bool = False
    """String arguments with quotes, brackets, line breaks and letters of several scripts are parsed as they
    were written."""
    before: bool = False
    """Text before a call becomes the turn's content."""
    parallel: bool = False
    """Two calls in one turn are parsed."""
    results: bool | None = None
    """The results of two calls in one turn continue the training row of the calls. None: unknown, because
    `parallel` or `row` is false."""
    reasoning: bool | None = None
    """Reasoning before a call is separated from the call; None: the template writes no reasoning."""
    forced: bool = False
    """The renderer can write the beginning of a call on the model's behalf."""
    row: bool = False
    """A call, its result and an answer are one training row, with exactly the sampled tokens."""
    thinking_row: bool | None = None
    """`row` with reasoning before the call and before the answer; None: the template writes no reasoning."""
    next_message_continues_row: bool = False
    """In a conversation without reasoning, the user's next message continues the same training row."""
    past_reasoning: PastReasoning = "none"
    """What happens to reasoning at the user's next message."""

    @property
    def score(self) -> int:
        """The number of proven abilities. If reasoning is not separated from the text, 3 are subtracted."""
        proven = sum(value is True for value in asdict(self).values())
        return max(proven - 3 * (self.reasoning is False), int(self.call))

    @property
    def whole(self) -> bool:
        """Whether every ability that the template needs is proven."""
        return False not in asdict(self).values() and self.past_reasoning not in ("forked", "lost")


@dataclass(frozen=True)
class Turn:
    """A turn of the probe: its prompt, the tokens that a model would sample, and the parsed result."""

    prompt: list[int]
    sampled: list[int]
    read: Parsed


def prove(renderer: Provable, tokenizer: Any, reader: str) -> Proof:
    """Test all abilities of a renderer on the probe. `reader` is the name that the proof gets.

    A template may raise any error. An ability is not proven if the template does not accept its conversation.
    """
    probe = Probe(renderer, tokenizer)
    if not probe.reads(SIMPLE, KEY):
        return Proof(reader)
    row, next_message_continues_row = probe.rows()
    parallel, goes_on = probe.two_calls()
    separated, thinking_row = probe.separates_reasoning(), None
    if separated is None:
        separated, past = probe.separates_begun_reasoning()
    else:
        thinking_row, past = probe.thinking_rows()
    return Proof(
        reader,
        call=True,
        values=probe.reads(EVERY, VALUES),
        special_characters=probe.reads(SIMPLE, SPECIAL_CHARACTERS),
        before=probe.says_before(),
        parallel=parallel,
        results=goes_on if parallel and row else None,
        reasoning=separated,
        forced=probe.begins(),
        row=row,
        thinking_row=thinking_row,
        next_message_continues_row=next_message_continues_row,
        past_reasoning=past,
    )


class Probe:
    """Tests the abilities of one renderer one by one."""

    def __init__(self, renderer: Provable, tokenizer: Any) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer

    def reads(self, tools: list[Tool], arguments: dict[str, Any]) -> bool:
        turn = self.turn(ASKED, calling(call(arguments)), tools, RESULT)
        return turn is not None and _reads(turn, ("look_up", arguments))

    def says_before(self) -> bool:
        turn = self.turn(ASKED, calling(call(KEY), content="I look it up."), SIMPLE, RESULT)
        if turn is None:
            return False
        return turn.read.content.strip() == "I look it up." and _reads(turn, ("look_up", KEY))

    def two_calls(self) -> tuple[bool, bool]:
        """Whether two calls in one turn are parsed, and whether their results continue their training row."""
        both = calling(call(KEY), call(OTHER_KEY, "count_up", 1))
        turn = self.turn(ASKED, both, SIMPLE, RESULT)
        if turn is None:
            return False, False
        read = _reads(turn, ("look_up", KEY), ("count_up", OTHER_KEY))
        spoken = _spoken(turn.read)
        extended = self._extended(turn, [*ASKED, spoken], *_answers(spoken, RESULT, SECOND_RESULT))
        return read, extended is not None

    def writes_reasoning(self) -> bool:
        try:
            text = self._renderer.render_text(
                [*ASKED, calling(call(KEY), reasoning=WHY)], SIMPLE, generate=False
            )
        except Exception:  # see `prove`
            return False
        return WHY in text

    def separates_reasoning(self) -> bool | None:
        if not self.writes_reasoning():
            return None
        turn = self.turn(ASKED, calling(call(KEY), reasoning=WHY), SIMPLE, RESULT)
        if turn is None or (turn.read.reasoning or "").strip() != WHY:
            return False
        return _reads(turn, ("look_up", KEY)) and WHY not in turn.read.content

    def begins(self) -> bool:
        """Whether a turn is parsed that begins with the tokens of `force` and continues like the template."""
        turn = self.turn(ASKED, calling(call(KEY)), SIMPLE, RESULT)
        ways = [self._renderer.force(tool) for tool in (None, "look_up")]
        if turn is None or None in ways:
            return False
        return all(self._parses_forced_call(turn, list(way or ())) for way in ways)

    def _parses_forced_call(self, turn: Turn, forced: list[int]) -> bool:
        """Whether the call of `turn` is parsed if the turn begins with the tokens `forced`."""
        begun, sampled = decoded(self._tokenizer, forced), decoded(self._tokenizer, turn.sampled)
        marks = [closing for _, closing in reasoning.MARKS if begun.lstrip().startswith(closing)]
        head = begun.lstrip().removeprefix(marks[0]) if marks else begun
        end = _end_of(sampled, head)
        if end is None:  # some templates let the model choose how a call goes on after its name
            name = head.rfind("look_up") + len("look_up")
            return _end_of(sampled, head[:name]) is not None
        rest = self._tokenizer.encode(sampled[end:], add_special_tokens=False)
        read = self._renderer.parse([*forced, *rest], turn.prompt, SIMPLE)
        return _reads(Turn(turn.prompt, turn.sampled, read), ("look_up", KEY))

    def rows(self) -> tuple[bool, bool]:
        """Whether a call, its result and an answer are one training row, and whether the user's next message
        continues that row."""
        answered = self._answered("", "")
        if answered is None:
            return False, False
        answer, history = answered
        return True, self._extended(answer, history, ASKED_AGAIN) is not None

    def thinking_rows(self) -> tuple[bool, PastReasoning]:
        """As `rows`, with reasoning before call and answer, and what the user's next message does to it."""
        answered = self._answered(WHY, WHY_GOLD)
        if answered is None:
            return False, "none"
        answer, history = answered
        goes_on = self._extended(answer, history, ASKED_AGAIN) is not None
        fresh = self._renderer.render_text([*history, ASKED_AGAIN], SIMPLE, generate=True)
        if all(text in fresh for text in reasoning.texts(history)):
            return True, "kept" if goes_on else "forked"
        return True, "lost" if goes_on else "dropped"

    def separates_begun_reasoning(self) -> tuple[bool | None, PastReasoning]:
        """Whether reasoning is separated whose opening tag is at the prompt's end, and what happens to it.

        This is for templates that never write past reasoning. None: the prompt begins no reasoning.
        """
        turn = self.turn(ASKED, calling(call(KEY)), SIMPLE, RESULT)
        if turn is None or reasoning.opened(decoded(self._tokenizer, turn.prompt[-reasoning.TAIL :])) is None:
            return None, "none"
        sampled = [*self._tokenizer.encode(WHY, add_special_tokens=False), *turn.sampled]
        thinking = Turn(turn.prompt, sampled, self._renderer.parse(sampled, turn.prompt, SIMPLE))
        if thinking.read.reasoning != WHY or not _reads(thinking, ("look_up", KEY)):
            return False, "none"
        spoken = _spoken(thinking.read)
        goes_on = self._extended(thinking, [*ASKED, spoken], *_answers(spoken, RESULT))
        return True, "at once" if goes_on is None else "kept"

    def _answered(self, why: str, why_gold: str) -> tuple[Turn, list[Message]] | None:
        """An answer that continues the training row of a call, and the conversation up to the answer.

        None if the answer begins another row.
        """
        turn = self.turn(ASKED, calling(call(KEY), reasoning=why), SIMPLE, RESULT)
        if turn is None:
            return None
        history = [*ASKED, _spoken(turn.read)]
        results = _answers(history[-1], RESULT)
        extended = self._extended(turn, history, *results)
        if extended is None:
            return None
        history += results
        answered = ANSWER | ({"reasoning_content": why_gold} if why_gold else {})
        answer = self.turn(history, answered, SIMPLE, ASKED_AGAIN, extended)
        if answer is None or answer.read.content.strip() != ANSWER["content"]:
            return None
        return answer, [*history, _spoken(answer.read)]

    def _extended(self, turn: Turn, history: list[Message], *new: Message) -> list[int] | None:
        """Token ids of the conversation after the messages `new` are added.

        None unless the ids begin with the sampled tokens and continue like a new rendering. Also, each result
        must have the id of its call.
        """
        tokens = [*turn.prompt, *turn.sampled]
        try:
            found = self._renderer.extend(turn.prompt, turn.sampled, history, list(new), SIMPLE)
            fresh = decoded(self._tokenizer, self._renderer.render([*history, *new], SIMPLE))
        except Exception:  # see `prove`
            return None
        if found is None or found[: len(tokens)] != tokens:
            return None
        added = decoded(self._tokenizer, found[len(tokens) :])
        written = all(_words(message) in added for message in new)
        return found if fresh.endswith(added) and written and self._pairs(turn, history, new, added) else None

    def _pairs(self, turn: Turn, history: list[Message], new: Sequence[Message], added: str) -> bool:
        """Whether `added`, the rendered results, has the ids that the model wrote, or has no ids at all."""
        own = {one.id for one in turn.read.calls} - {None}
        if all(message["tool_call_id"] in added for message in new if message.get("tool_call_id") in own):
            return True
        histories, messages = [*map(_with_other_ids, history)], [*map(_with_other_ids, new)]
        try:
            other = self._renderer.extend(turn.prompt, turn.sampled, histories, messages, SIMPLE)
        except Exception:  # see `prove`
            return False
        return decoded(self._tokenizer, other or []).endswith(added)

    def turn(
        self,
        history: list[Message],
        turn: Message,
        tools: list[Tool],
        following: Message,
        prompt: list[int] | None = None,
    ) -> Turn | None:
        """The message `turn` as a model would sample it, and the parsed result; None if that is unknown.

        Args:
            history: the earlier messages.
            turn: the model's message.
            tools: the tools that the model may call.
            following: the next message; some templates begin it with the token that ends a turn.
            prompt: the token ids of `history`, if they are known.
        """
        try:
            ids = prompt or self._renderer.render(history, tools)
            text = self._sampled(history, turn, tools, following)
            sampled = None if text is None else self._ended(text, history, turn, tools, following)
            if sampled is None:
                return None
            return Turn(ids, sampled, self._renderer.parse(sampled, ids, tools))
        except Exception:  # see `prove`
            return None

    def _sampled(
        self, history: list[Message], turn: Message, tools: list[Tool], following: Message
    ) -> str | None:
        """The text that a model samples as `turn`: what the template writes after the prompt."""
        begun = self._renderer.render_text(history, tools, generate=True)
        whole = self._renderer.render_text([*history, turn], tools, generate=False)
        if whole.startswith(begun):
            return whole[len(begun) :]
        if any(message.get("reasoning_content") for message in history):
            # The template drops earlier reasoning once an answer follows. That does not change the answer.
            return self._sampled([reasoning.without(one) for one in history], turn, tools, following)
        # The prompt ends with an opening tag of reasoning, or empty reasoning, which a past turn lacks.
        bare = begun.rstrip()
        for opening, closing in reasoning.MARKS:
            if bare.endswith(opening):
                base = bare.removesuffix(opening)
                rest = whole[len(base) :]
                if not whole.startswith(base):
                    return None
                if rest.startswith(opening):
                    return rest.removeprefix(opening)
                return rest if rest.lstrip().startswith(closing) else f"\n{closing}\n\n{rest}"
            if bare.endswith(closing):
                base = bare.removesuffix(closing).rstrip().removesuffix(opening)
                return whole[len(base) :] if whole.startswith(base) else None
        return self._behind(begun, whole, history, tools)

    def _behind(self, begun: str, whole: str, history: list[Message], tools: list[Tool]) -> str | None:
        """The text of the last turn in `whole`, found by the end of the prompt `begun`; None if not found."""
        closed = self._renderer.render_text(history, tools, generate=False)
        if begun.startswith(closed) and (opening := begun[len(closed) :]):
            return whole.rpartition(opening)[2] if opening in whole else None
        last = str(history[-1]["content"])
        ending, rest = begun.rpartition(last)[2], whole.rpartition(last)[2]
        return rest[len(ending) :] if last in whole and rest.startswith(ending) else None

    def _ended(
        self, text: str, history: list[Message], turn: Message, tools: list[Tool], following: Message
    ) -> list[int] | None:
        """Token ids of a turn, including the token that ends it; None if that token is unknown.

        With some templates, that token is the first token of the next message.
        """
        # Harmony's history has <|end|> instead of the model's <|return|>.
        if HARMONY in map(self._token_text, self._renderer.stop_token_ids):
            text = text.removesuffix("<|end|>") + HARMONY * text.endswith("<|end|>")
        ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        stops = self._renderer.stop_token_ids
        end = next((place for place, token in enumerate(ids) if token in stops), None)
        if end is not None:
            return ids[: end + 1]
        whole = self._renderer.render_text([*history, turn], tools, generate=False)
        after = self._renderer.render_text([*history, turn, following], tools, generate=True)
        if after.startswith(whole):
            then = list(self._tokenizer.encode(after[len(whole) :], add_special_tokens=False))
            if then and then[0] in stops:
                return [*ids, then[0]]
        return [*ids, self._tokenizer.eos_token_id] if self._tokenizer.eos_token_id is not None else None

    def _token_text(self, token: int) -> str:
        return decoded(self._tokenizer, [token])


def _end_of(text: str, part: str) -> int | None:
    """The position after the first occurrence of `part`, ignoring all white space; None if there is none."""
    places = [at for at, letter in enumerate(text) if not letter.isspace()]
    bare, wanted = "".join(text[at] for at in places), "".join(part.split())
    found = bare.find(wanted)
    return None if found < 0 else places[found + len(wanted) - 1] + 1 if wanted else 0


def _reads(turn: Turn, *calls: tuple[str, dict[str, Any]]) -> bool:
    """Whether exactly these calls were parsed, compared as JSON: Python equates 1 with 1.0 and with true."""
    found = [(one.name, one.arguments) for one in turn.read.calls]
    return json.dumps(found, sort_keys=True) == json.dumps(calls, sort_keys=True)


def _words(message: Message) -> str:
    """A word of a probe's message that every template writes when it renders the message."""
    if message["content"] == RESULT["content"]:
        return "gold"
    return "silver" if message["content"] == SECOND_RESULT["content"] else "calm-heron"


def _spoken(parsed: Parsed) -> Message:
    """A parsed turn as the message that a client sends back."""
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    calls = [
        call(one.arguments or {}, str(one.name), index) | {"id": one.id or call_id(0, index)}
        for index, one in enumerate(parsed.calls)
    ]
    return message | {"tool_calls": calls} if calls else message


def _answers(calling: Message, *results: Message) -> list[Message]:
    """Tool messages with `results`, which have the ids of the calls in the message `calling`."""
    ids = [call["id"] for call in calling.get("tool_calls") or ()]
    return [
        result | {"tool_call_id": ids[at]} if at < len(ids) else result for at, result in enumerate(results)
    ]


def _with_other_ids(message: Message) -> Message:
    """The message with other call ids of the same form."""
    if "tool_call_id" in message:
        return message | {"tool_call_id": _other_id(str(message["tool_call_id"]))}
    calls = [call | {"id": _other_id(str(call["id"]))} for call in message.get("tool_calls") or ()]
    return message | {"tool_calls": calls} if calls else message


def _other_id(identity: str) -> str:
    return identity[:-1] + ("9" if identity.endswith("8") else "8")
