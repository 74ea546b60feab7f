"""Whether the engine still computes, as its own counters tell: a pure judgement, and the looks that feed it.

An engine whose workers wait for each other for ever answers its probes all the same: the process that talks
HTTP is another one. What it counts it hears from the other one, after each step. So an engine that hangs over
the first request after a time without any still says that it has none, and is not found here.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from headway_rollout.engines import metrics
from headway_rollout.server.engine import Engine, EngineRefused

LOOK_SECONDS = 5.0
"""Between two looks, and longest that one may take."""
HUNG_SECONDS = 120.0
"""How long an engine with running requests may count no token. vLLM counts a prompt once all of it is
computed, so it must be longer than the longest prefill, which takes tens of seconds; and an engine that is
killed by mistake throws away more than this."""

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
    said = metrics.read(text, (RUNNING, PROMPT, GENERATED))
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
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            text = await engine.metrics(LOOK_SECONDS)
        except EngineRefused:
            pass  # one that had requests and does not even answer now is none the better for it
        else:
            standstill = after(standstill, None if engine.held else read(text), time.monotonic())
        if standstill is not None and time.monotonic() - standstill.since > HUNG_SECONDS:
            return f"vLLM has requests and has computed no token for {HUNG_SECONDS:.0f} s"
