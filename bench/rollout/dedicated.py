"""Measures the time of jobs with full weights: with a server for held-out rows, and with training that
waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.rollout.validation import LATENCY, PLAN, batches
from bench.support.engine import running
from bench.support.job import Ran, run
from bench.support.model import TINY
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown

FULL = replace(PLAN, full=True)
GAIN = 1.15
SHARED, DEDICATED, NONE = "Shared", "Dedicated", "no validation"

READ = prose(f"""
    The job of *Validation beside training*, with full weights. It takes {FULL.steps} steps of
    {FULL.batch_size} groups of {FULL.group_size} episodes, {FULL.train_seconds:g} s each in the learner. It
    validates {FULL.validated_rows} held-out rows at the start and every {FULL.validate_every} steps. An
    episode has {FULL.turns} turns with tool calls of {LATENCY.mean:g} s on average. With
    `evaluation.servers: Shared` training waits for each validation; with `Dedicated` a second server samples
    them, and takes the weights of validated steps only. Here both servers run on the same cores, so the
    second one slows the first one down. On a cluster they would not share cores.

    Columns are those of *Validation beside training*; *speed-up* is over `Shared`.
""")


def measure(folder: Path) -> Section:
    """Measure all runs, on the same two servers."""
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> Section:
    ran: dict[str, Ran] = {}
    start = partial(running, size=TINY, context=4096, concurrency=64, lora=False)
    with start(folder / "train") as train, start(folder / "held-out") as other:
        await run(folder, train, replace(FULL, steps=2, validate_every=2), other)  # warm-up, not measured
        for name, plan, held_out in (
            (SHARED, FULL, None),
            (DEDICATED, FULL, other),
            (NONE, replace(FULL, validated_rows=0), None),
        ):
            ran[name] = await run(folder, train, plan, held_out)
            print(f"  {name}: {ran[name].whole_seconds:.1f} s", flush=True)
    return section(ran)


def row(name: str, ran: dict[str, Ran]) -> Row:
    """The table's row for one way of validating."""
    one, shared, never = ran[name], ran[SHARED], ran[NONE]
    return {
        "evaluation.servers": name,
        "seconds": shown(one.whole_seconds),
        "speed-up": shown(shared.whole_seconds / one.whole_seconds),
        "cost of validating, s": shown(one.whole_seconds - never.whole_seconds),
        "learner waited": f"{one.waited / one.whole_seconds:.0%}",
        "largest lag": max(one.lags),
        "most sandboxes": one.peak_sandboxes,
    }


def section(ran: dict[str, Ran]) -> Section:
    """The section of the ways to validate, with its table and goals."""
    shared, dedicated = ran[SHARED], ran[DEDICATED]
    gain, same = shared.whole_seconds / dedicated.whole_seconds, batches(shared) == batches(dedicated)
    lag = max(dedicated.lags)
    return Section(
        title="A server for held-out rows",
        read=READ,
        tables=[
            Table("The same job of full weights, validated in two ways", [row(name, ran) for name in ran])
        ],
        goals=[
            Goal(f"Dedicated at least {GAIN} times as fast as Shared", f"{shown(gain)}", gain >= GAIN),
            Goal("the same groups in every batch", "the same" if same else "others", same),
            Goal("lag never over the bound", f"at most {lag}", lag <= FULL.lag),
        ],
    )
