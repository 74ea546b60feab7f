"""A model whose words a test writes: an engine for what is about its answers, and not about sampling."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from episodes import version

from headway_api.records import VersionSpan
from headway_rollout.engines.vllm import Request, Sampled

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"key": "x"}}\n</tool_call><|im_end|>'
ANSWER = "It is gold.<|im_end|>"
MALFORMED = "<tool_call>{oops}</tool_call><|im_end|>"


class Speaker:
    """Says what the test has written, the last of it again and again, and remembers what it was asked."""

    def __init__(self, tok: Any, texts: Sequence[str]) -> None:
        self._tok = tok
        self.texts = list(texts)
        self.requests: list[Request] = []
        self.fault: Exception | None = None
        """Raised instead of an answer, while it is there."""
        self.gate = asyncio.Event()
        """Answers come while it is set."""
        self.gate.set()

    async def generate(self, session: str, request: Request, timeout: float) -> Sampled:
        text = self.texts[min(len(self.requests), len(self.texts) - 1)]
        self.requests.append(request)
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        tokens = self._tok.encode(text, add_special_tokens=False)[: request.max_tokens]
        ended = text.endswith("<|im_end|>") and len(tokens) <= request.max_tokens
        finish = "stop" if ended and tokens[-1] in request.stop_token_ids else "length"
        spans = [VersionSpan(start=0, end=len(tokens), version=version(0))]
        return Sampled(tokens, [-0.5] * len(tokens), spans, finish, 0)
