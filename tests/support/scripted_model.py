"""An engine whose answers a test writes, for tests that are not about sampling."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from episodes import version

from headway_api.records import VersionSpan
from headway_coordinator.engines.vllm import Request, Sampled

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"key": "x"}}\n</tool_call><|im_end|>'
ANSWER = "It is gold.<|im_end|>"
THINKING = "<think>\nWhich metal?\n</think>\n\nLet me see.\n\n" + CALL
TWO_CALLS = (
    '<tool_call>\n{"name": "look_up", "arguments": {"key": "schöner Fuchs 🦊"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look_up", "arguments": {"key": "a \\"b\\" <c> & 1/3"}}\n</tool_call><|im_end|>'
)
PADDED = "\n It is gold, I am sure. \n\n<|im_end|>"
"""An answer with white space around it, which clients strip."""
MALFORMED = "<tool_call>{oops}</tool_call><|im_end|>"


@dataclass(frozen=True)
class Spoken:
    """One turn, as the engine saw it."""

    prompt: list[int]
    sampled: list[int]


class ScriptedModel:
    """Says the test's texts in turn in each episode, and repeats the last one.

    If a text is an exception, the model raises it.
    """

    def __init__(self, tok: Any, texts: Sequence[str | Exception]) -> None:
        self._tok = tok
        self._begun: Counter[str] = Counter()
        self.texts = list(texts)
        self.requests: list[Request] = []
        self.spoken: defaultdict[str, list[Spoken]] = defaultdict(list)
        """The turns of each episode, in the order in which they were answered."""
        self.fault: Exception | None = None
        """If set, it is raised instead of an answer. The next request then gets the text that was due."""
        self.gate = asyncio.Event()
        """The model answers only while this is set."""
        self.gate.set()

    async def generate(self, session: str, request: Request, timeout: float) -> Sampled:
        text = self.texts[min(self._begun[session], len(self.texts) - 1)]
        self._begun[session] += 1
        self.requests.append(request)
        await self.gate.wait()
        if self.fault is not None:
            self._begun[session] -= 1
            raise self.fault
        if isinstance(text, Exception):
            raise text
        tokens = self._tok.encode(text, add_special_tokens=False)[: request.max_tokens]
        tokens = self._stopped(tokens, request.stop)
        ended = tokens[-1] in request.stop_token_ids or self._has(tokens, request.stop)
        finish = "stop" if ended else "length"
        spans = [VersionSpan(start=0, end=len(tokens), version=version(0))]
        self.spoken[session].append(Spoken(request.prompt, tokens))
        return Sampled(tokens, [-0.5] * len(tokens), spans, finish, 0)

    def _stopped(self, tokens: list[int], stops: Sequence[str]) -> list[int]:
        """Cut after the token that completes a stop string, as vLLM does."""
        counts = range(1, len(tokens) + 1)
        return next((tokens[:n] for n in counts if self._has(tokens[:n], stops)), tokens)

    def _has(self, tokens: list[int], stops: Sequence[str]) -> bool:
        return any(stop in self._tok.decode(tokens) for stop in stops)
