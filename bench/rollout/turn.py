"""Measures how much longer a turn takes through the gateway, with one episode at a time."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from bench.rollout.gateway import CONTEXT, Rig, opening, pairs, rig
from bench.support.engine import running
from bench.support.model import SMALL
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown

EPISODES = {1: 256, 4: 64, 16: 16}
"""Turns of an episode -> number of consecutive episodes."""
BRIEF = (4, 12)
"""Minimum and maximum tokens of a turn. The gateway's work depends on the history, and hardly on sampled
tokens."""
MILLISECONDS = 2.0

READ = prose(f"""
    *Added* is what an agent waits for beyond vLLM: from its request to its answer, less the gateway's own
    call to vLLM within that turn. That call includes JSON both ways, as a client without a gateway would have
    it. The engine's time varies by more than that from turn to turn, so it is taken out of each turn, not out
    of the mean. *By a second call* subtracts another call of vLLM instead, made directly after each turn with
    the same prompt and seed. It is right on the whole, and includes the engine's own variation. *A bare call*
    is what the same request takes at a route of the same process that answers at once. It follows a pause as
    long as the engine's, so two idle processes have to wake up for it.

    Turns sample {BRIEF[0]} to {BRIEF[1]} tokens; the engine and the history are as in the section before.
""")


@dataclass(frozen=True)
class Turn:
    """Times of one turn, in seconds."""

    through: float
    """Seconds of the agent's request through the gateway."""
    engine: float
    """Seconds of the gateway's call to vLLM."""
    direct: float
    """Seconds of the same call to vLLM, made directly afterwards."""
    bare: float
    """Seconds of a call to a route that does nothing."""


async def played(at: Rig, name: str, turns: int) -> list[Turn]:
    """Play one episode, and return the times of its turns."""
    [url] = await at.open(name, 1)
    messages, lengths, found = opening(name), random.Random(name), []
    for number in range(turns):
        through = await at.turn(url, messages, number, lengths.randint(*BRIEF))
        [episode] = await at.exchanges()
        asked = episode["turns"][-1]
        started = time.monotonic()
        await at.again(asked)
        direct = time.monotonic() - started
        await asyncio.sleep(asked["seconds"])
        found.append(Turn(through, asked["seconds"], direct, await at.bare(messages)))
    await at.close()
    return found


def row(turns: int, episodes: int, found: list[Turn]) -> Row:
    """The table's row for all turns of the episodes of one length."""
    added = [1000 * (turn.through - turn.engine) for turn in found]
    quarters = statistics.quantiles(added, n=4)
    second = statistics.median(1000 * (turn.through - turn.direct) for turn in found)
    return {
        "turns": turns,
        "episodes": episodes,
        "vLLM, ms": shown(1000 * statistics.median(turn.engine for turn in found)),
        "added ms, p50": shown(quarters[1]),
        "p25 .. p75": f"{quarters[0]:.2f} .. {quarters[2]:.2f}",
        "by a second call, p50": shown(second),
        "a bare call, p50": shown(statistics.median(1000 * turn.bare for turn in found)),
    }


def measure(folder: Path) -> Section:
    """Measure all lengths of episodes."""
    rows = asyncio.run(_measure(folder))
    limit = max(row["added ms, p50"] for row in rows)
    return Section(
        title="What a turn takes longer through the gateway",
        read=READ,
        tables=[Table("Milliseconds, one episode at a time", rows)],
        goals=[
            Goal(
                f"adds less than {MILLISECONDS:g} ms a turn",
                f"{limit} ms (p50, the most of {len(rows)} lengths of episodes)",
                limit < MILLISECONDS,
            )
        ],
    )


async def _measure(folder: Path) -> list[Row]:
    rows = []
    with running(folder, SMALL, context=CONTEXT, concurrency=64) as server:
        async with rig(server) as at:
            await pairs(at, 4, 4, 1, 1)
            for turns, episodes in EPISODES.items():
                found = [await played(at, f"{turns}-{n}", turns) for n in range(episodes)]
                rows.append(row(turns, episodes, [turn for episode in found for turn in episode]))
                print(f"  {turns} turns: {rows[-1]['added ms, p50']} ms", flush=True)
    return rows
