"""Whether the engine still computes, as its own counters tell: a pure judgement, and the looks that feed it.

An engine whose workers wait for each other for ever answers its probes all the same: the process that talks
HTTP is another one. What it counts it hears from the other one, after each step. So one that hangs over the
first request after a time without any still says that it has none; hence one that says so is asked for a
token now and then, and what it was asked for counts as a request that it has.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final, NamedTuple

from headway_api import engine_metrics
from headway_api.model_names import BASE_MODEL
from headway_rollout.engine import Engine, EngineRefused

LOOK_SECONDS = 5.0
"""Between two looks, and longest that one may take."""
HUNG_SECONDS = 120.0
"""How long an engine with running requests may count no token. vLLM counts a prompt once all of it is
computed, so it must be longer than the longest prefill, which takes tens of seconds; and an engine that is
killed by mistake throws away more than this."""

BEAT_SECONDS = 30.0
"""For so long it has no requests, at any look, before it is asked for a token."""

RUNNING: Final = "vllm:num_requests_running"
PROMPT: Final = "vllm:prompt_tokens_total"
GENERATED: Final = "vllm:generation_tokens_total"


class Pulse(NamedTuple):
    """What an engine says of its work."""

    running: float
    """Requests that it computes."""
    tokens: float
    """Computed since it started, of prompts and of answers."""


class Standstill(NamedTuple):
    """An engine that had requests, and has counted no token since."""

    since: float
    """Monotonic."""
    tokens: float


def read(text: str) -> Pulse | None:
    """The pulse in vLLM's `/metrics`; None where they do not say."""
    said = engine_metrics.read(text, (RUNNING, PROMPT, GENERATED))
    if said is None:
        return None
    return Pulse(sum(said[RUNNING]), sum(said[PROMPT]) + sum(said[GENERATED]))


def after(before: Standstill | None, pulse: Pulse | None, now: float) -> Standstill | None:
    """What to think of the engine after one more look at it.

    Args:
        pulse: None where nobody can say, or where it is not to compute.
    """
    if pulse is None or pulse.running == 0:
        return None
    if before is not None and before.tokens == pulse.tokens:
        return before
    return Standstill(now, pulse.tokens)


async def found(engine: Engine) -> str:
    """Return once the engine hangs, and how that showed."""
    standstill: Standstill | None = None
    beat, busy = asyncio.create_task(_beat(engine)), time.monotonic()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            try:
                pulse = read(await engine.metrics(LOOK_SECONDS))
            except EngineRefused:  # what does not even answer does no more than it was known to have done
                pulse = Pulse(running=1, tokens=standstill.tokens if standstill is not None else 0.0)
            if engine.held:
                pulse = None
            elif pulse is not None and not beat.done():
                pulse = pulse._replace(running=pulse.running + 1)
            standstill = after(standstill, pulse, time.monotonic())
            if pulse is None or pulse.running > 0:
                busy = now
            elif now - busy > BEAT_SECONDS:
                beat, busy = asyncio.create_task(_beat(engine)), now
            if standstill is not None and time.monotonic() - standstill.since > HUNG_SECONDS:
                return f"vLLM has computed no token of what it was asked for in {HUNG_SECONDS:.0f} s"
    finally:
        beat.cancel()


async def _beat(engine: Engine) -> None:
    """Have it compute one token; whether it did shows in what it counts."""
    with suppress(EngineRefused):
        await engine.next_logprob(BASE_MODEL, [0], 0)
