"""Measures the time of a job that validates during training, and of a job that waits for its validations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.support.agent import Latency
from bench.support.engine import running
from bench.support.job import Plan, Ran, run
from bench.support.model import TINY
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown

LATENCY = Latency(mean=0.5, sigma=1.0)
TURNS = 4
PLAN = Plan(
    steps=12,
    batch_size=4,
    group_size=2,
    turns=TURNS,
    tokens=8,
    latency=LATENCY,
    train_seconds=(TURNS - 1) * LATENCY.mean,
    lag=1,
    concurrency=16,
    validated_rows=16,
    validate_every=3,
)
GAIN = 1.15
WAYS = {
    "training waits": replace(PLAN, beside=False),
    "beside training": PLAN,
    "no validation": replace(PLAN, validated_rows=0),
}

READ = prose(f"""
    One job of {PLAN.steps} steps of {PLAN.batch_size} groups of {PLAN.group_size} episodes with LoRA, a lag
    of {PLAN.lag} and the sampler `{PLAN.sampler}`. {PLAN.validated_rows} held-out rows are validated at the
    start and every {PLAN.validate_every} steps. An episode has {PLAN.turns} turns and three tool calls of
    {LATENCY.mean:g} s on average (log-normal, sigma {LATENCY.sigma:g}, the same in every run). The learner
    takes {PLAN.train_seconds:g} s a step. `rollout.maxConcurrency` is {PLAN.concurrency}.

    *Seconds* is from the first announcement of weights to the job's end, with its last validation. *Speed-up*
    is over the job whose training waits. *Cost of validating* is the seconds over those of the job without
    validation. *Learner waited* is the time that the learner was without a batch.
""")


def measure(folder: Path) -> Section:
    """Measure all runs, on one server."""
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> Section:
    ran: dict[str, Ran] = {}
    with running(folder, TINY, context=4096, concurrency=64, validates=True) as server:
        await run(
            folder, server, replace(PLAN, steps=2, validate_every=2)
        )  # warm-up: the first job is slower
        for name, plan in WAYS.items():
            ran[name] = await run(folder, server, plan)
            print(f"  {name}: {ran[name].whole_seconds:.1f} s", flush=True)
    return section(ran)


def row(name: str, ran: dict[str, Ran]) -> Row:
    """The table's row for one way of validating."""
    one, waits, never = ran[name], ran["training waits"], ran["no validation"]
    return {
        "validation": name,
        "seconds": shown(one.whole_seconds),
        "speed-up": shown(waits.whole_seconds / one.whole_seconds),
        "cost of validating, s": shown(one.whole_seconds - never.whole_seconds),
        "learner waited": f"{one.waited / one.whole_seconds:.0%}",
        "largest lag": max(one.lags),
        "most sandboxes": one.peak_sandboxes,
    }


def batches(ran: Ran) -> Sequence[Sequence[str]]:
    """Ids of the groups of each step."""
    return [[group.group_id for group in batch.groups] for batch in ran.batches]


def section(ran: dict[str, Ran]) -> Section:
    """The section of the ways to validate, with its table and goals."""
    waits, beside = ran["training waits"], ran["beside training"]
    gain = waits.whole_seconds / beside.whole_seconds
    same = batches(waits) == batches(beside)
    return Section(
        title="Validation beside training",
        read=READ,
        tables=[Table("The same job, validated in three ways", [row(name, ran) for name in ran])],
        goals=[
            Goal(
                f"beside training at least {GAIN} times as fast as with a pause",
                f"{shown(gain)}",
                gain >= GAIN,
            ),
            Goal("the same groups in every batch", "the same" if same else "others", same),
            Goal("lag never over the bound", f"at most {max(beside.lags)}", max(beside.lags) <= PLAN.lag),
        ],
    )
