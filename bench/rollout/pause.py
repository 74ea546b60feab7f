"""Measures the effect of new weights on a sampling server: the length of its pause, and its turns."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from role_keys import TO_ROLLOUT

from bench.support.engine import Server, running
from bench.support.model import SMALL
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown
from headway_api.model_names import name_of
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.vllm import Request

CONTEXT = 1024
WAYS = 8
TOKENS = 48
STREAMED = 256
"""Tokens of the streamed request. They are few, because with new full weights the server computes all of them
again.
"""
STEP_SECONDS = 3.0
UPDATES = 3
"""Number of updates in a phase with updates. Phases without and with updates alternate."""
PHASES = 2
"""Number of pairs of phases."""

READ = prose(f"""
    {WAYS} sessions sample turns of {TOKENS} tokens through the fleet without a break. The model has
    {SMALL.parameters / 1e6:.0f} M parameters in float32. One more request streams its tokens for as long as
    it is measured. In every other phase the fleet learns of new weights each {STEP_SECONDS:g} s, a very short
    step. Each time the server fetches, checks, loads and proves them by the canary.

    *Pause* is the longest time between two tokens of the stream around an update, less the usual one: no
    request gets a token meanwhile. *New turns wait* begins when the fleet learns of the weights. It ends when
    the server is in rotation again with the weights proven. Turns that run go on. *Of a step* is the first
    over {STEP_SECONDS:g} s. *Rate* is tokens a second in phases with updates over those without.
""")


@dataclass
class Load:
    """Sessions that sample turns one after another, with counts of their turns."""

    fleet: Fleet
    tokens: int = 0
    running: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    """Names of turns that ended with all their tokens."""
    mixed: int = 0
    """Number of turns in `done` that were sampled by more than one version."""

    async def session(self, number: int) -> None:
        for turn in itertools.count():
            name = f"{number}-{turn}"
            prompt = [20 + (7 * number + 3 * turn + i) % 200 for i in range(64)]
            self.running.add(name)
            sampled = await self.fleet.generate(
                str(number), Request(prompt, TOKENS, 1.0, 1.0, turn, []), 120.0
            )
            self.running.discard(name)
            self.tokens += len(sampled.tokens)
            if len(sampled.tokens) == TOKENS:
                self.done.add(name)
                self.mixed += len(sampled.versions) > 1


@dataclass
class Update:
    """One update to new weights."""

    began: float
    in_flight: set[str]
    seconds: float = 0.0
    """Seconds from the announcement until the server was in rotation again."""


@dataclass
class Found:
    """The measurements with one kind of weights."""

    load: Load
    updates: list[Update] = field(default_factory=list)
    tokens_at: list[float] = field(default_factory=list)
    """Times of the stream's tokens."""
    rates: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    """Whether phases have updates -> tokens per second in each such phase."""
    reroutes: int = 0


def measure(folder: Path) -> Section:
    """Measure adapters and full weights."""
    found = {}
    for kind in ("lora", "full"):
        with running(folder / kind, SMALL, context=CONTEXT, concurrency=WAYS, lora=kind == "lora") as server:
            found[kind] = asyncio.run(_measure(server))
    return section({kind: row(one) for kind, one in found.items()}, found)


async def _measure(server: Server) -> Found:
    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as http:
        fleet = Fleet(http, TO_ROLLOUT, server.discover)
        found = Found(Load(fleet))
        async with _background(fleet.run()):
            await fleet.want(server.weights(1))
            await fleet.ready()
            sessions = [found.load.session(number) for number in range(WAYS)]
            async with _background(*sessions, _stream(http, server, found)):
                await asyncio.sleep(STEP_SECONDS)
                for step in range(PHASES):
                    await _phase(found, server, None)
                    await _phase(found, server, 2 + step * UPDATES)
                await asyncio.sleep(STEP_SECONDS)
        found.reroutes = fleet.reroutes
    return found


async def _phase(found: Found, server: Server, first: int | None) -> None:
    """Run a phase. If `first` is given, each of its steps has an update, beginning with that version."""
    began, tokens = time.monotonic(), found.load.tokens
    for number in range(UPDATES):
        due = began + (number + 1) * STEP_SECONDS
        if first is not None:
            await _update(found, server, first + number)
        await asyncio.sleep(due - time.monotonic())
    found.rates[first is not None].append((found.load.tokens - tokens) / (time.monotonic() - began))


async def _update(found: Found, server: Server, step: int) -> None:
    update = Update(time.monotonic(), set(found.load.running))
    await found.load.fleet.want(server.weights(step))
    await found.load.fleet.ready()
    update.seconds = time.monotonic() - update.began
    found.updates.append(update)


async def _stream(http: aiohttp.ClientSession, server: Server, found: Found) -> None:
    """Record the time of each token of a streamed request. When a request ends, begin a new one."""
    body = {
        "model": name_of(server.weights(1)),
        "prompt": list(range(20, 60)),
        "max_tokens": STREAMED,
        "ignore_eos": True,
        "stream": True,
    }
    while True:
        headers = {"Authorization": f"Bearer {TO_ROLLOUT}"}
        async with http.post(f"{server.process.url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    found.tokens_at.append(time.monotonic())


@asynccontextmanager
async def _background(*work: object) -> AsyncIterator[None]:
    """Run `work` during the block. Raise its failures at the end of the block."""
    tasks = [asyncio.ensure_future(one) for one in work]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


def stand_still(at: list[float], update: Update, usual: float) -> float:
    """Longest time between two tokens around an update, minus the usual time."""
    end = update.began + update.seconds + STEP_SECONDS / 4
    gaps = [b - a for a, b in itertools.pairwise(at) if b >= update.began and a <= end]
    return max(0.0, max(gaps) - usual)


def row(found: Found) -> Row:
    """The table's row for one kind of weights."""
    usual = statistics.median(b - a for a, b in itertools.pairwise(found.tokens_at))
    still = [stand_still(found.tokens_at, update, usual) for update in found.updates]
    in_flight = [name for update in found.updates for name in update.in_flight]
    kept = [name for name in in_flight if name in found.load.done]
    rates = {with_updates: statistics.median(of) for with_updates, of in found.rates.items()}
    return {
        "updates": len(found.updates),
        "usual ms a token": shown(1000 * usual),
        "pause, median ms": shown(1000 * statistics.median(still)),
        "most ms": shown(1000 * max(still)),
        "of a step": f"{statistics.median(still) / STEP_SECONDS:.2%}",
        "new turns wait, median ms": shown(1000 * statistics.median(u.seconds for u in found.updates)),
        "turns in flight": len(in_flight),
        "kept": len(kept),
        "of two versions": found.load.mixed,
        "rate": shown(rates[True] / rates[False]),
        "tokens/s without": shown(rates[False]),
        "tokens/s with": shown(rates[True]),
    }


def section(rows: dict[str, Row], found: dict[str, Found]) -> Section:
    """The section of adapters and full weights, with its table and goal."""
    lost = sum(one["turns in flight"] - one["kept"] for one in rows.values())
    rerouted = sum(one.reroutes for one in found.values())
    return Section(
        title="Pause for new weights",
        read=READ,
        tables=[Table("An update of one server", [{"weights": kind} | one for kind, one in rows.items()])],
        goals=[
            Goal(
                "no turn in flight lost to new weights",
                f"{lost} lost, {rerouted} asked again",
                not lost + rerouted,
            )
        ],
    )
