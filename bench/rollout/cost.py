"""Measures how tokens and the bill grow with episodes and turns, as exponents, from whole jobs' ledgers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.support.engine import running
from bench.support.job import Plan, Ran, run
from bench.support.model import TINY
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown, slope
from headway_api.prices import DEFAULT

STEPS = (1, 2, 4, 8)
TURNS = (1, 2, 4, 8, 16, 32)
PLAN = Plan(steps=1, batch_size=4, group_size=2, turns=4, tokens=16)
PRICED = ("prefill", "cachedPrefill", "sample", "train")
GROWN = ("prompt", "prefill", "sample", "train", "a row a turn", "cost, USD")
LINEAR = ("prompt", "sample", "train", "cost, USD")
"""Columns that grow linearly with episodes."""
WITHIN = 0.05
"""Largest allowed difference of an exponent from 1."""

READ = prose(f"""
    Whole jobs run on one server, each with a ledger of its own. They have {PLAN.batch_size} groups of
    {PLAN.group_size} episodes a step, {PLAN.tokens} sampled tokens a turn, and a tool's result between two.
    The usage is what the job's status says, the cost is by the default price book. An exponent is the slope
    of a straight line through the logarithms: 1 is linear, 2 quadratic.

    *Prompt* is what the engine was sent, *cached* the part it had; what it had to compute is *prefill*.
    *Train* is what a step trains on. An episode is one row, in which each sampled token is trained once. *A
    row a turn* is what training each turn with its own prompt would take, counted from the same records. The
    prompt of each turn holds all before it, so prompts grow faster than the turns, in the end as their
    square. Nearly all of that is cached. Exponents over turns are of what the turns after the first add to an
    episode of one turn: its prompt is there whatever follows.
""")


def measure(folder: Path) -> Section:
    """Run jobs with increasing numbers of episodes, and then jobs with increasing numbers of turns."""
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> Section:
    with running(folder, TINY, context=4096, concurrency=16) as server:
        await run(folder, server, PLAN)
        episodes = [row(await run(folder, server, replace(PLAN, steps=steps)), steps) for steps in STEPS]
        turns = [row(await run(folder, server, replace(PLAN, turns=number)), 1) for number in TURNS]
    return section(episodes, turns)


def row(ran: Ran, steps: int) -> Row:
    """The table's row for one job."""
    usage, episodes = ran.usage, [episode for group in ran.groups for episode in group.episodes]
    prefill, cached = usage["prefillTokens"], usage["cachedPrefillTokens"]
    rows = sum(len(episode.rows) for episode in episodes)
    return {
        "episodes": len(episodes),
        "turns": len(episodes[0].turns),
        "prompt": prefill + cached,
        "cached": cached,
        "prefill": prefill,
        "sample": usage["sampleTokens"],
        "train": usage["trainTokens"],
        "a row a turn": sum(t.prompt_tokens + t.sampled_tokens for e in episodes for t in e.turns),
        "rows an episode": rows / len(episodes),
        "cost, USD": _cost(usage),
    }


def _cost(usage: dict[str, Any]) -> float:
    """The cost in US dollars by the default price book, with more digits than in a status."""
    prices = DEFAULT.entries[-1].prices.by_class()
    return float(sum((prices[name] or 0) * usage[f"{name}Tokens"] for name in PRICED))


def section(episodes: list[Row], turns: list[Row]) -> Section:
    """The section of the jobs, with its tables and goals."""
    by_episodes = exponents("episodes", episodes)
    first, *longer = turns
    added = [{name: row[name] - first[name] for name in ("turns", *GROWN)} for row in longer]
    by_turns = exponents("turns", added)
    worst = max(abs(by_episodes[name] - 1) for name in LINEAR)
    trained, otherwise = by_turns["train"], by_turns["a row a turn"]
    return Section(
        title="Cost",
        read=READ,
        tables=[
            Table("Jobs of more and more episodes", episodes),
            Table("Jobs of longer and longer episodes", turns),
            Table("Exponents", [{"over": "episodes"} | by_episodes, {"over": "turns"} | by_turns]),
        ],
        goals=[
            Goal(
                "tokens and cost linear in episodes",
                f"exponents off 1 by at most {worst:.3f}",
                worst <= WITHIN,
            ),
            Goal(
                "trained tokens linear in turns",
                f"exponent {trained} (a row a turn: {otherwise})",
                abs(trained - 1) <= WITHIN,
            ),
        ],
    )


def exponents(over: str, rows: list[Row]) -> Row:
    """The exponent of each column of `GROWN` over the column `over`."""
    x = [row[over] for row in rows]
    return {name: shown(slope(x, [row[name] for row in rows])) for name in GROWN}
