"""Parses sampled turns in the families' styles of tool calls, and writes the beginnings of forced calls.

Parsing never raises, whatever was sampled. The parsers are those of the `renderers` package. They silently
drop some text, such as a call that is cut off in its header, or JSON without its closing bracket. This module
finds such text, and counts it as malformed calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

from headway_coordinator.trajectory.calls import STRUCTURE, UNREADABLE, Call, Parsed, Tool, judged, malformed
from headway_coordinator.trajectory.unmarked import counted, embedded
from headway_coordinator.trajectory.values import schemas

HERMES, LLAMA, GPT_OSS = "qwen3", "llama-3", "gpt-oss"
"""Styles, by the name of their renderer. Hermes: JSON between <tool_call> tags. Llama: a turn that is one
JSON object. Harmony, the format of gpt-oss: a channel for each purpose."""

TOKENS: dict[str, tuple[str, ...]] = {
    HERMES: ("<tool_call>",),
    GPT_OSS: (
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ),
    LLAMA: ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
}
"""Style -> tokens. A tokenizer that has all of them shows that its model was trained in the style."""


@dataclass(frozen=True)
class Form:
    """The tags around a call, and the text that is written for the model where a turn must call a tool."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    any_tool: str | None = None
    """The beginning of a turn that calls any tool; None if a call cannot be forced."""
    named: str | None = None
    """The beginning of a turn that calls a named tool, with TOOL as the placeholder of the name.

    It ends where a token of the model would end, which is before a blank.
    """


XML = Form(any_tool="<tool_call>\n<function=", named="<tool_call>\n<function=TOOL>\n")
DEEPSEEK = Form("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
FORMS: dict[str, Form] = {
    HERMES: Form(any_tool='<tool_call>\n{"name": "', named='<tool_call>\n{"name": "TOOL", "arguments":'),
    "qwen3.5": XML,
    "qwen3.6": XML,
    LLAMA: Form("", "", any_tool='{"name": "', named='{"name": "TOOL", "parameters":'),
    GPT_OSS: Form(
        "",
        "",
        any_tool="<|channel|>commentary to=functions.",
        named="<|channel|>commentary to=functions.TOOL <|constrain|>json<|message|>",
    ),
    "deepseek-v3": DEEPSEEK,
    "deepseek-r1": DEEPSEEK,
    "kimi-k2": Form("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "minimax-m2": Form("<minimax:tool_call>", "</minimax:tool_call>"),
}
"""Renderer -> its form. Other renderers have <tool_call> tags, and cannot force a call."""


class Reader(Protocol):
    """Parses sampled token ids in one family's style."""

    stop_token_ids: list[int]

    def read(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """Parse a turn. This never raises, whatever was sampled."""


class Tagged:
    """Parses calls between tags, with a renderer of the `renderers` package."""

    def __init__(self, name: str, tokenizer: Any, inner: Any) -> None:
        self._form = FORMS.get(name, Form())
        self._tokenizer = tokenizer
        self._inner = inner
        self.stop_token_ids = list(inner.get_stop_token_ids())

    def read(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        try:
            found = self._inner.parse_response(
                list(sampled), tools=list(tools) or None, prompt_ids=list(prompt)
            )
        except UNREADABLE as error:  # such as very deep brackets, or a number of thousands of digits
            return self._unreadable(text(self._tokenizer, sampled, self.stop_token_ids), error)
        tags = (self._form.opening, self._form.closing)
        calls = [judged(call, tags) for call in found.tool_calls]
        return counted(Parsed(found.content, found.reasoning_content, calls), schemas(tools))

    def _unreadable(self, written: str, error: Exception) -> Parsed:
        """A turn with one malformed call: all text from the first opening tag on."""
        content, opening, rest = written.partition(self._form.opening)
        if not opening:
            return Parsed("", calls=[malformed(written, error)])
        closing = self._form.closing if rest.rstrip().endswith(self._form.closing) else ""
        raw = rest.rstrip().removesuffix(closing)
        return Parsed(content, calls=[malformed(raw, error, (opening, closing))])


class Llama:
    """Parses turns of Llama: a turn has at most one call, `{"name": ..., "parameters": {...}}`.

    Text and <|python_tag|> may come before the call, and text after it. Several calls count as one malformed
    call, because the family's templates refuse a turn with several.
    """

    STOPS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    _ATTEMPT = re.compile(r'\{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:')

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._python = token_id(tokenizer, "<|python_tag|>")
        self.stop_token_ids = stops(tokenizer, self.STOPS)

    def read(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        from renderers.parsing import parse_llama_3

        tagged = self._python is not None and self._python in sampled
        start = next((place + 1 for place, token in enumerate(sampled) if token == self._python), 0)
        before = text(self._tokenizer, sampled[: max(start - 1, 0)], self.stop_token_ids)
        ids = list(sampled[start:])
        try:
            found = parse_llama_3(self._tokenizer, ids, stop_ids=set(self.stop_token_ids))
        except UNREADABLE as error:
            return Parsed(before, calls=[malformed(text(self._tokenizer, ids, self.stop_token_ids), error)])
        calls = [judged(call) for call in found.tool_calls]
        if calls and not tagged and not _meant(calls[0], tools):
            return Parsed(calls[0].raw)
        if calls:
            return counted(Parsed(before + found.content, calls=calls), schemas(tools))
        around, among = embedded(found.content, schemas(tools))
        if len(among) == 1:
            return Parsed((before + around).strip(), calls=among)
        if among:
            start = max(found.content.find(among[0].raw), 0)
            several = malformed(found.content[start:], f"{STRUCTURE}: {len(among)} calls in one turn")
            return Parsed((before + found.content[:start]).strip(), calls=[several])
        if tagged or self._ATTEMPT.match(found.content):
            return Parsed(before, calls=[malformed(found.content, "not one call as JSON")])
        return counted(Parsed(before + found.content), schemas(tools))


def _meant(call: Call, tools: Sequence[Tool]) -> bool:
    """Whether a JSON object with a name is a call, and not an answer as JSON that also has a name.

    It is a call if it names an offered tool or has arguments.
    """
    named = {tool.get("function", tool).get("name") for tool in tools}
    return call.name in named or not {"parameters", "arguments"}.isdisjoint(json.loads(call.raw))


CHANNELS: Final = ("analysis", "commentary", "final")
"""The channels of OpenAI's Harmony."""


class Harmony:
    """Parses turns of Harmony, which are messages in channels.

    The channel `analysis` has reasoning, `final` has content, and `commentary` to functions.NAME has a call.
    """

    STOPS = ("<|return|>", "<|call|>")

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._id: dict[str, int] = {name: tokenizer.convert_tokens_to_ids(name) for name in TOKENS[GPT_OSS]}
        self._begun = [self._id["<|start|>"], *tokenizer.encode("assistant", add_special_tokens=False)]
        final = tokenizer.encode("final", add_special_tokens=False)
        self._final = [self._id["<|channel|>"], *final, self._id["<|message|>"]]
        self.stop_token_ids = stops(tokenizer, self.STOPS)

    def read(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        from renderers.parsing import parse_gpt_oss

        ids, skipped = self._readable([*self._header(prompt), *_until(sampled, self._id["<|return|>"])])
        try:
            found = parse_gpt_oss(
                self._tokenizer,
                ids,
                **{f"{name.strip('<|>')}_id": identity for name, identity in self._id.items()},
            )
        except UNREADABLE as error:
            return Parsed("", calls=[malformed(text(self._tokenizer, sampled, self.stop_token_ids), error)])
        calls = [judged(call) for call in found.tool_calls]
        for place, one in reversed(skipped):
            calls.insert(place, one)
        return counted(Parsed(found.content, found.reasoning_content or None, calls), schemas(tools))

    def _header(self, prompt: Sequence[int]) -> list[int]:
        """The part of the turn's first message that the prompt already contains."""
        start = self._id["<|start|>"]
        return list(prompt[last(prompt, start) :]) if start in prompt else list(self._begun)

    def _readable(self, ids: list[int]) -> tuple[list[int], list[tuple[int, Call]]]:
        """The token ids of messages that the package's parser accepts, and the calls that it would skip.

        The parser skips a message without a body, without a known channel, or that calls something other than
        a function. Each skipped call comes with its place: the number of calls that the parser finds before.
        """
        readable: list[int] = []
        skipped: list[tuple[int, Call]] = []
        calls = 0
        messages = list(self._messages(ids))
        for number, message in enumerate(messages, 1):
            split = next((at for at, one in enumerate(message) if one == self._id["<|message|>"]), None)
            end = len(message) if split is None else split
            header, body = self._text(message[1:end]), message[end + 1 :]
            channel = self._channel(message[:end])
            # Reasoning may mention <|call|>, so in the analysis channel it is only a call at the turn's end.
            may_call = number == len(messages) or channel != "analysis"
            addressed = "to=" in header or (may_call and self._id["<|call|>"] in message)
            if split is None and addressed:
                skipped.append((calls, malformed(header.removeprefix("assistant"), "unclosed block")))
            elif addressed and "to=functions." not in header:
                skipped.append((calls, malformed(self._text(body), "it is not addressed to a function")))
            elif split is None:
                readable += self._answer(self._said(message[1:]))
            elif "to=" in header or channel in CHANNELS:
                calls += "to=functions." in header
                readable += message
            else:
                readable += self._answer(body)
        return readable, skipped

    def _messages(self, ids: list[int]) -> Iterator[list[int]]:
        """The messages of a turn. Each begins with its <|start|>."""
        starts = [at for at, token in enumerate(ids) if token == self._id["<|start|>"]]
        for start, end in pairwise([*starts, len(ids)]):
            yield ids[start:end]

    def _channel(self, header: list[int]) -> str:
        """The first word after <|channel|>; empty if there is none."""
        channel = self._id["<|channel|>"]
        words = self._text(header[header.index(channel) + 1 :]).split() if channel in header else []
        return words[0] if words else ""

    def _said(self, message: list[int]) -> list[int]:
        """The text of a message without a body: the tokens before its channel, without the role."""
        said = _until(message, self._id["<|channel|>"])
        role = self._begun[1:]
        return said[len(role) :] if said[: len(role)] == role else said

    def _answer(self, body: list[int]) -> list[int]:
        """A message in the final channel with this body; empty if the body is."""
        return [*self._begun, *self._final, *body] if body else []

    def _text(self, ids: Sequence[int]) -> str:
        return text(self._tokenizer, ids, [*self.stop_token_ids, self._id["<|end|>"]])


def forced(tokenizer: Any, style: str | None, tool: str | None) -> list[int] | None:
    """Token ids for the beginning of a turn that calls `tool`, or any tool.

    None if it is unknown how the style begins a call.
    """
    form = FORMS.get(style or "", Form())
    begun = form.any_tool if tool is None else form.named
    if begun is None:
        return None
    return list(tokenizer.encode(begun.replace("TOOL", tool or ""), add_special_tokens=False))


def kept(tokens: list[int], extended: list[int]) -> list[int] | None:
    """`extended` if it begins with exactly `tokens`, else None."""
    return extended if extended[: len(tokens)] == tokens else None


def end_of_last(part: Sequence[int], ids: Sequence[int]) -> int:
    """The position after the last occurrence of `part`, or the length of `ids` if there is none."""
    size = len(part)
    ends = range(len(ids), size - 1, -1)
    return next((end for end in ends if list(ids[end - size : end]) == list(part)), len(ids))


def _until(ids: Sequence[int], token: int) -> list[int]:
    return list(ids[: ids.index(token)]) if token in ids else list(ids)


def text(tokenizer: Any, ids: Sequence[int], stop_token_ids: Sequence[int]) -> str:
    """The text before the first stop token, including special tokens."""
    end = next((i for i, token in enumerate(ids) if token in stop_token_ids), len(ids))
    return str(tokenizer.decode(list(ids[:end]), skip_special_tokens=False))


def token_id(tokenizer: Any, token: str) -> int | None:
    """The id of a string that is a single token of the tokenizer, else None."""
    found = tokenizer.convert_tokens_to_ids(token)
    return None if found is None or found == tokenizer.unk_token_id else int(found)


def stops(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    """The ids of the given tokens, as far as the tokenizer has them, and of its own end token."""
    found = [token_id(tokenizer, token) for token in tokens] + [tokenizer.eos_token_id]
    return list(dict.fromkeys(i for i in found if i is not None))


def last(ids: Sequence[int], token: int) -> int:
    """Index of the last `token`, which must be in `ids`."""
    return len(ids) - 1 - list(reversed(ids)).index(token)
