"""Measures the time of the same steps for each staleness bound and sampler, with log-normal tool times."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.rollout.simulated import seconds as simulated
from bench.support.agent import Latency
from bench.support.engine import running
from bench.support.job import Plan, Ran, run
from bench.support.model import TINY
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown

SAMPLERS = ("in_order", "windowed", "ready_first")
SIGMAS = (0.5, 0.75, 1.0, 1.25, 1.5)
SPEED_UP = 2.5
LATENCY = Latency(mean=0.5, sigma=1.0)
TURNS = 4
PLAN = Plan(
    steps=16,
    batch_size=8,
    group_size=2,
    turns=TURNS,
    tokens=8,
    latency=LATENCY,
    train_seconds=(TURNS - 1) * LATENCY.mean,
)
SIMULATED_STEPS = 100

READ = prose(f"""
    {PLAN.steps} steps of {PLAN.batch_size} groups of {PLAN.group_size} episodes. An episode has {PLAN.turns}
    turns of {PLAN.tokens} tokens, sampled by vLLM. Between two turns a tool sleeps in the sandbox's own
    process: log-normal, {LATENCY.mean:g} s on average, sigma {LATENCY.sigma:g}. The group's position decides
    the draw, so every run has the same latencies. The agent is a service (`spec.agent.http`). The learner
    takes {PLAN.train_seconds:g} s a step, as long as the tools of an average episode. That is the useful part
    of a synchronous rollout phase. The rest of the phase waits for the slowest.

    *Speed-up* is the seconds of lag 0 over the row's; with lag 0 all samplers are one, since a batch is all
    there is. *By latencies alone* is the same of a simulation with the product's sampler, the same latencies
    and a fixed time a turn. The difference is what two cores cannot give so many episodes at once. *Largest
    lag* is read from the records: the learner's step less the oldest token's, over all groups trained.
    *Places* is `rollout.maxConcurrency`; the last row has as many sandboxes as lag 0 can use. Nothing is ever
    discarded for its age: a group is started only where it can be trained in time.
""")
SWEEP = (
    "By latencies alone: speed-up over lag 0 by sigma (means kept), "
    f"{SIMULATED_STEPS} steps; at 16 places: no more sandboxes than lag 0 uses"
)


def measure(folder: Path) -> Section:
    """Run a job of each plan, and compare their durations."""
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> Section:
    ran = []
    with running(folder, TINY, context=4096, concurrency=64) as server:
        for wanted in plans(PLAN):
            ran.append((wanted, await run(folder, server, wanted)))
            print(f"  lag {wanted.lag} {wanted.sampler}: {ran[-1][1].seconds:.1f} s", flush=True)
    return section(ran)


def turn_seconds(plan: Plan, ran: Ran) -> float:
    """Mean seconds of a turn: the time of an episode without its tools, divided by its turns."""
    episodes = [episode for group in ran.groups for episode in group.episodes]
    calls = range(plan.turns - 1)
    tools = [sum(plan.latency.draw(episode.episode_id, call) for call in calls) for episode in episodes]
    return (statistics.fmean(ran.episode_seconds) - statistics.fmean(tools)) / plan.turns


def plans(plan: Plan) -> Iterator[Plan]:
    """The plans of all runs. The first run is the reference for all others."""
    yield plan
    for lag in (1, 3):
        for sampler in SAMPLERS:
            yield replace(plan, lag=lag, sampler=sampler)
    yield replace(plan, lag=3, sampler="windowed", concurrency=plan.batch_size * plan.group_size)


def section(ran: Sequence[tuple[Plan, Ran]]) -> Section:
    """The section of the runs, with its tables and goals."""
    (base, synchronous), *others = ran
    turn = turn_seconds(base, synchronous)
    alone = simulated(base, turn)
    rows = [
        {
            "lag allowed": plan.lag,
            "sampler": plan.sampler if plan.lag else "any",
            "places": plan.concurrency,
            "seconds": shown(one.seconds),
            "speed-up": shown(synchronous.seconds / one.seconds),
            "by latencies alone": shown(alone / simulated(plan, turn)),
            "learner waited": f"{one.waited / one.seconds:.0%}",
            "episode, mean s": shown(statistics.fmean(one.episode_seconds)),
            "most sandboxes": one.peak_sandboxes,
            "largest lag": max(one.lags),
            "mean lag": shown(statistics.fmean(one.lags)),
            "discarded tokens": one.usage["discardedTokens"],
        }
        for plan, one in ran
    ]
    ahead = [(synchronous.seconds / one.seconds, plan) for plan, one in others if plan.lag == 3]
    best = max(faster for faster, _ in ahead)
    over = [row for row in rows if row["largest lag"] > row["lag allowed"]]
    caption = f"Measured; the learner takes {base.train_seconds:g} s a step, a turn {turn:.2f} s at lag 0"
    return Section(
        title="Asynchrony",
        read=READ,
        tables=[Table(caption, rows), Table(SWEEP, [sweep(base, turn, sigma) for sigma in SIGMAS])],
        goals=[
            Goal(
                f"lag 3 at least {SPEED_UP} times as fast as lag 0",
                ", ".join(
                    f"{faster:.2f} ({plan.sampler}, {plan.concurrency} places)" for faster, plan in ahead
                )
                + "; one run each",
                best >= SPEED_UP,
            ),
            Goal("lag never over the bound", f"{len(over)} of {len(rows)} runs over it", not over),
        ],
    )


def sweep(plan: Plan, turn: float, sigma: float) -> Row:
    """A row of the simulated table."""
    base = replace(plan, steps=SIMULATED_STEPS, latency=replace(LATENCY, sigma=sigma))
    synchronous = simulated(base, turn)
    row: Row = {"sigma": sigma, "lag 0, s a step": shown(synchronous / base.steps)}
    for lag in (1, 3):
        for sampler in SAMPLERS:
            one = simulated(replace(base, lag=lag, sampler=sampler), turn)
            row[f"lag {lag}, {sampler}"] = shown(synchronous / one)
    few = replace(base, lag=3, concurrency=base.batch_size * base.group_size)
    for sampler in SAMPLERS:
        row[f"lag 3, {sampler}, 16 places"] = shown(
            synchronous / simulated(replace(few, sampler=sampler), turn)
        )
    return row
