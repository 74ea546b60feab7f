"""Finds an engine that no longer computes, from the engine's own counters.

An engine whose workers wait for each other forever still answers its probes, because another process serves
HTTP. That process receives the counters only after each step, so they lag the engine. If an engine hangs on
the first request after an idle time, its counters still show no request. So this module asks an idle engine
for a token now and then, and counts that request as running.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final, NamedTuple

from headway_api import engine_metrics
from headway_api.model_names import BASE_MODEL
from headway_rollout.engine import Engine, EngineError

LOOK_SECONDS = 5.0
"""Seconds between two reads of the counters, and maximum seconds that one read may take."""
HUNG_SECONDS = 120.0
"""Maximum seconds that an engine with running requests may count no token. vLLM counts a prompt once all of
it is computed. So the limit must exceed the longest prefill, which takes tens of seconds. Killing a healthy
engine by mistake costs more time than this wait."""

PROBE_SECONDS = 30.0
"""Seconds without any running request after which the engine is asked for a token."""

RUNNING: Final = "vllm:num_requests_running"
PROMPT: Final = "vllm:prompt_tokens_total"
GENERATED: Final = "vllm:generation_tokens_total"


class EngineProgress(NamedTuple):
    """Counters that an engine reports about its work."""

    running: float
    """Number of requests that the engine is computing."""
    tokens: float
    """Tokens of prompts and answers that the engine has computed since its start."""


class EngineStall(NamedTuple):
    """An engine that has running requests and counts no further token."""

    since: float
    """Monotonic time, in seconds, of the first read with this count of tokens."""
    tokens: float
    """Tokens counted since the engine started."""


def read(text: str) -> EngineProgress | None:
    """The progress in `text`, vLLM's `/metrics`; None if a counter is missing."""
    values = engine_metrics.read(text, (RUNNING, PROMPT, GENERATED))
    if values is None:
        return None
    return EngineProgress(sum(values[RUNNING]), sum(values[PROMPT]) + sum(values[GENERATED]))


def after(before: EngineStall | None, progress: EngineProgress | None, now: float) -> EngineStall | None:
    """The stall after one more read of the counters: `before` if no token was counted since, or a new one.

    None if the engine is idle, or if its progress is unknown.

    Args:
        before: the stall after the previous read.
        progress: None if it is unknown, or if the engine must not compute now.
        now: monotonic time, in seconds.
    """
    if progress is None or progress.running == 0:
        return None
    if before is not None and before.tokens == progress.tokens:
        return before
    return EngineStall(now, progress.tokens)


async def found(engine: Engine) -> str:
    """Wait until the engine hangs. Return a sentence that says how this showed."""
    stall: EngineStall | None = None
    probe, busy = asyncio.create_task(_request_token(engine)), time.monotonic()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            try:
                progress = read(await engine.metrics(LOOK_SECONDS))
            except EngineError:  # an engine that does not answer counts as busy, with no new tokens
                progress = EngineProgress(running=1, tokens=stall.tokens if stall is not None else 0.0)
            if engine.suspended:
                progress = None
            elif progress is not None and not probe.done():
                progress = progress._replace(running=progress.running + 1)
            stall = after(stall, progress, time.monotonic())
            if progress is None or progress.running > 0:
                busy = now
            elif now - busy > PROBE_SECONDS:
                probe, busy = asyncio.create_task(_request_token(engine)), now
            if stall is not None and time.monotonic() - stall.since > HUNG_SECONDS:
                return f"vLLM has computed no token of its requests for {HUNG_SECONDS:.0f} s"
    finally:
        probe.cancel()


async def _request_token(engine: Engine) -> None:
    """Ask the engine for one token, and ignore errors: the counters show whether it computed the token."""
    with suppress(EngineError):
        await engine.next_logprob(BASE_MODEL, [0], 0)
