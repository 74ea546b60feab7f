"""Whether the engine still computes, judged from its own counters.

An engine whose workers wait for each other forever still answers its probes: another process serves HTTP.
That process learns the counters only after each step, so they lag the engine. If an engine hangs over the
first request after an idle time, its counters still show no request. So an idle engine is asked for a token
now and then, and that counts as a running request.
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
"""Seconds between two looks, and most seconds that one may take."""
HUNG_SECONDS = 120.0
"""How long an engine with running requests may count no token. vLLM counts a prompt once all of it is
computed. So this must exceed the longest prefill, which takes tens of seconds. An engine that is killed by
mistake loses more time than this."""

PROBE_SECONDS = 30.0
"""How long every look must find no requests before the engine is asked for a token."""

RUNNING: Final = "vllm:num_requests_running"
PROMPT: Final = "vllm:prompt_tokens_total"
GENERATED: Final = "vllm:generation_tokens_total"


class EngineProgress(NamedTuple):
    """What an engine reports about its work."""

    running: float
    """Requests that it is computing."""
    tokens: float
    """Tokens of prompts and answers computed since it started."""


class EngineStall(NamedTuple):
    """An engine that had requests, and has counted no token since."""

    since: float
    """Monotonic time."""
    tokens: float


def read(text: str) -> EngineProgress | None:
    """The progress in vLLM's `/metrics`; None if they do not contain it."""
    values = engine_metrics.read(text, (RUNNING, PROMPT, GENERATED))
    if values is None:
        return None
    return EngineProgress(sum(values[RUNNING]), sum(values[PROMPT]) + sum(values[GENERATED]))


def after(before: EngineStall | None, progress: EngineProgress | None, now: float) -> EngineStall | None:
    """The judgement of the engine after one more look.

    Args:
        progress: None if it is unknown, or if the engine must not compute now.
    """
    if progress is None or progress.running == 0:
        return None
    if before is not None and before.tokens == progress.tokens:
        return before
    return EngineStall(now, progress.tokens)


async def found(engine: Engine) -> str:
    """Return once the engine hangs, with how that showed."""
    stall: EngineStall | None = None
    probe, busy = asyncio.create_task(_request_token(engine)), time.monotonic()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            try:
                progress = read(await engine.metrics(LOOK_SECONDS))
            except EngineError:  # an engine that does not even answer has computed nothing new
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
    """Ask for one token; the counters show whether the engine computed it."""
    with suppress(EngineError):
        await engine.next_logprob(BASE_MODEL, [0], 0)
