"""Stop strings: where the sampled tokens end, the answer's text, and the token that closes the turn. Pure.

If a stop string ended a turn, the model has sampled no closing token. When the conversation continues, the
gateway adds the family's own closing token as context: it is in the training row, but is not trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from headway_api.records import VersionSpan
from headway_coordinator.engines.vllm import Sampled
from headway_coordinator.gateway.neutral import shown
from headway_coordinator.gateway.refusals import GatewayError
from headway_coordinator.trajectory import reasoning
from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.probe import ANSWER, ASKED, KEY, SIMPLE, WHY, call, calling
from headway_coordinator.trajectory.readers import GPT_OSS, TOKENS
from headway_coordinator.trajectory.render import Renderer

_TAG: Final = re.compile(r"<[^<>\n=]{1,40}[=>]|\[/?[A-Z_]{2,40}\]")
_HEADER: Final = re.compile(r"<\|(?:start|channel|constrain)\|>([^<]{1,200})")
"""A header of Harmony, gpt-oss's format; the group has the header's words."""


class StopInMarkupError(GatewayError):
    """A stop string is a part of the family's markup, so it would end turns within a tag."""

    def __init__(self, stop: str, mark: str) -> None:
        self.stop = stop
        self.why = (
            f"{shown(stop)} is part of {shown(mark)}, which marks this model's reasoning, calls or "
            "channels. Turns would end there. Write a string that the model uses only in its text, such as a "
            "whole line."
        )
        super().__init__(400, "invalid_value", f"stop: {self.why}", param="stop")


def ended(
    text: Callable[[Sequence[int]], str], sampled: Sampled, stops: Sequence[str], closing: Sequence[int]
) -> tuple[Sampled, str | None]:
    """The tokens up to and including the one that completes a stop string, and that string.

    The string is None if no stop string ended the turn. Servers cut at the same place. If a server left
    tokens after the string, they are dropped, so a row never depends on which server sampled it.

    Args:
        text: decodes token ids.
        sampled: the tokens from a server.
        stops: the stop strings.
        closing: the family's stop tokens.
    """
    if not stops or not sampled.tokens:
        return sampled, None
    tokens = sampled.tokens
    closed = tokens[-1] in closing
    words = tokens[:-1] if closed else tokens
    if not any(stop in text(words) for stop in stops):
        # If the turn ended without a stop token, the server found a string that this decoding does not show.
        unclosed = sampled.finish_reason == "stop" and not closed
        return sampled, stops[0] if unclosed else None
    low, high = 1, len(words)
    while low < high:
        middle = (low + high) // 2
        if any(stop in text(words[:middle]) for stop in stops):
            high = middle
        else:
            low = middle + 1
    return _first(sampled, low), first(text(words[:low]), stops)


def markup(renderer: Renderer) -> tuple[str, ...]:
    """The tags and words that the chat template writes around the text, reasoning and calls of a turn.

    The token that closes a turn is excluded: servers do not search it for stop strings.
    """
    closing = {renderer.text([token]) for token in renderer.stop_token_ids}
    return tuple(dict.fromkeys(one for one in _markup(renderer) if one and one not in closing))


def _markup(renderer: Renderer) -> Iterator[str]:
    turns = (
        calling(call(KEY), content=str(ANSWER["content"]), reasoning=WHY),
        calling(call(KEY), reasoning=WHY),
        calling(call(KEY)),
        ANSWER,
    )
    for turn in turns:
        try:
            begun = renderer.render_text(ASKED, SIMPLE, generate=True)
            whole = renderer.render_text([*ASKED, turn], SIMPLE, generate=False)
        except Exception:  # a template raises whatever its author chose: it does not accept this turn
            continue
        marks = reasoning.opened(begun)
        yield from marks or ()
        pairs = enumerate(zip(begun, whole, strict=False))
        said = whole[next((at for at, (one, other) in pairs if one != other), len(begun)) :]
        yield from _TAG.findall(said)
        yield from (mark for pair in reasoning.MARKS if pair[0] in said for mark in pair)
        if headers := _HEADER.findall(said):
            yield from (*TOKENS[GPT_OSS], "json")
        for header in headers:
            yield from (word.partition("look_up")[0] for word in header.split())


def require_text(stops: Sequence[str], markup: Sequence[str]) -> None:
    """Refuse a stop string that is a part of the family's markup.

    A string that contains a whole tag is accepted, because the agent must have chosen it on purpose.

    Raises:
        StopInMarkupError: for the first such string.
    """
    for stop in stops:
        if stop in markup and _TAG.fullmatch(stop):
            continue
        if (found := next((one for one in markup if stop in one), None)) is not None:
            raise StopInMarkupError(stop, found)


def first(text: str, stops: Sequence[str]) -> str | None:
    """The stop string that ends first in a text, and the longest one if several end there.

    None if the text has none of them.
    """
    ends = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(ends)[2] if ends else None


def without(message: Message, stop: str | None) -> Message:
    """A turn's message without the string that ended it, and without the text after that string."""
    if stop is None:
        return message
    return message | {
        name: _before(message[name], stop)
        for name in ("content", "reasoning_content")
        if isinstance(message.get(name), str)
    }


def closer(renderer: Renderer, history: Sequence[Message], tools: Sequence[Tool]) -> int | None:
    """The token with which the family closes the last turn of `history`.

    None if its template closes turns with no token, or with one that only comes with the next message.
    """
    text = renderer.render_text(history, tools, generate=False).rstrip()
    ends = {renderer.text([token]): token for token in renderer.stop_token_ids}
    return next((token for end, token in ends.items() if end and text.endswith(end)), None)


def _before(text: str, stop: str) -> str:
    head, found, _ = text.partition(stop)
    # The parser strips text, so white space at the end of the stop string may be missing here.
    return head if found else text.removesuffix(stop.rstrip()) if stop.strip() else text


def _first(sampled: Sampled, count: int) -> Sampled:
    """The first `count` tokens of a sample."""
    if count == len(sampled.tokens):
        return replace(sampled, finish_reason="stop")
    spans = [
        VersionSpan(start=span.start, end=min(span.end, count), version=span.version)
        for span in sampled.versions
        if span.start < count
    ]
    return replace(
        sampled,
        tokens=sampled.tokens[:count],
        logprobs=sampled.logprobs[:count],
        versions=spans,
        finish_reason="stop",
    )
