"""Measures the episodes per second of a whole evaluation, relative to vLLM alone and to Inspect AI."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.evaluation import clerk
from bench.evaluation.environment import procedure
from bench.evaluation.stand import PLACES, Ran, standing
from bench.support.model import SMALL
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import interval, shown

SIDES = ("headway", "limit", "inspect")
NAMES = {"headway": "Headway", "limit": "vLLM alone", "inspect": "Inspect AI"}
ORDERS = tuple(itertools.permutations(SIDES))
"""The order of the sides in each repetition. Every side has each position equally often."""
ROWS = 40
FIRST = 4
"""Number of rows in a side's first run, which is not counted."""
OF_LIMIT = 0.95
Repetition = Mapping[str, Ran]

READ = prose(f"""
    {ROWS} rows, one greedy try each, {PLACES} episodes at once. An episode has {procedure.SHORTEST} to
    {procedure.LONGEST} tool calls and then an answer. The model writes {len(clerk.chains()[0])} tokens in a
    turn that calls, and {len(clerk.chains()[1])} in one that answers. Its weights are written by hand. It
    reads the tool's answers and ends where the last one says so, so every side samples the same tokens. It
    costs what {SMALL.parameters / 1e6:.0f} M parameters of Qwen3's shape cost.

    *Headway* is the coordinator's own program with everything on. Each episode has a sandbox process, and its
    tokens and log-probabilities are recorded. Each group is on an S3 server and on the bill before it counts.
    Measures and gate are computed meanwhile. It ends when the last group is durable and billed. The sandboxes
    are started before the run, as a warm pool's are on nodes of their own. *vLLM alone* is the limit: the
    same requests, token for token and seed for seed, at as many places. Their bytes are made beforehand, and
    the client does nothing else. A turn is sent once the one before it has its answer, and no tool runs
    between two. *Inspect AI* has the task as its users write it: `generate` with a tool, its provider for
    vLLM, the chat endpoint of the same server. `max_connections` and `max_samples` are as many as the places,
    all else is as it comes. Its tool runs in its own process, and its log goes to a local folder. Both cost
    it less than sandboxes and S3 cost Headway. Its prompts are some tokens longer, since its tool's schema
    says more.

    Each repetition runs every side once, in another order. Before each side vLLM's prefix cache is emptied,
    except for the words with which all episodes begin. A ratio is that of two sides of one repetition, its
    interval by drawing repetitions again. The goal against the limit is judged by the median, so its interval
    may reach below {OF_LIMIT}; that against Inspect AI by the whole interval. *ms a turn* is what a place
    takes for a turn, the idle places at the end included. *Outside vLLM* is an episode's time less its calls
    to vLLM, a turn: lease, reset, tools, judgement and release, by each client's own clock. vLLM's speed,
    which varies from run to run, hardly moves it. *Client CPU* is of the side's process alone, *vLLM CPU* of
    the server's. *Whole process* adds what comes before the first episode and after the last one. Of Headway
    that is its start, preflight, weights proven, comparison, table, report and log; of Inspect AI its own
    start and log.

    vLLM computes on one core. The other one holds its HTTP server, the client, the S3 server and all
    sandboxes: what they use, vLLM's HTTP server waits for. On a cluster they have nodes of their own.
""")


def measure(folder: Path) -> Section:
    """Measure all repetitions, and make the section."""
    return section(asyncio.run(_measure(folder)))


async def _measure(folder: Path) -> list[Repetition]:
    found = []
    async with standing(folder, ROWS) as stand:
        # A side's first run has extra costs, so it is not counted. The requests are the same in every run.
        _, plan = await stand.headway()
        await stand.limit(plan[:FIRST])
        await stand.inspect(FIRST)
        for order in ORDERS:
            one: dict[str, Ran] = {}
            for side in order:
                if side == "headway":
                    one[side] = (await stand.headway())[0]
                else:
                    one[side] = await (stand.limit(plan) if side == "limit" else stand.inspect())
                print(f"  {NAMES[side]}: {one[side].rate:.2f} episodes/s", flush=True)
            found.append(one)
    return found


def ratios(found: Sequence[Repetition], over: str) -> list[float]:
    """Headway's episodes per second divided by another side's, by repetition."""
    return [one["headway"].rate / one[over].rate for one in found]


def turn_ms(ran: Ran) -> float:
    """Milliseconds that one of the `PLACES` concurrent episodes takes for a turn."""
    return 1000 * ran.seconds * PLACES / ran.turns


def outside_ms(ran: Ran) -> float:
    """Milliseconds per turn that an episode spends outside of its calls to vLLM."""
    return 1000 * (ran.in_episodes - ran.in_calls) / ran.turns


def added_ms(found: Sequence[Repetition], side: str) -> list[float]:
    """Milliseconds by which a turn takes longer than on the side `limit`, by repetition."""
    return [turn_ms(one[side]) - turn_ms(one["limit"]) for one in found]


def row(found: Sequence[Repetition], side: str) -> Row:
    """The table's row for one side, with medians over the repetitions."""
    runs = [one[side] for one in found]

    def median(of: Callable[[Ran], float]) -> float:
        return shown(statistics.median(map(of, runs)))

    return {
        "side": NAMES[side],
        "episodes/s": median(lambda ran: ran.rate),
        "least .. most": f"{min(ran.rate for ran in runs):.2f} .. {max(ran.rate for ran in runs):.2f}",
        "ms a turn": median(turn_ms),
        "over the limit, ms": shown(statistics.median(added_ms(found, side))),
        "outside vLLM, ms a turn": median(outside_ms),
        "client CPU, ms an episode": median(lambda ran: 1000 * ran.cpu / ran.episodes),
        "vLLM CPU, ms an episode": median(lambda ran: 1000 * ran.engine_cpu / ran.episodes),
        "whole process, s": median(lambda ran: ran.whole),
        "turns an episode": median(lambda ran: ran.turns / ran.episodes),
        "tokens sampled an episode": median(lambda ran: ran.sampled_tokens / ran.episodes),
        "prompt tokens an episode": shown(statistics.median(r.prompt_tokens / r.episodes for r in runs), 4),
        "solved": f"{sum(ran.solved for ran in runs)}/{sum(ran.episodes for ran in runs)}",
    }


def with_interval(of: Sequence[float]) -> str:
    """The median of ratios with its interval, as text."""
    least, maximum = interval([of])
    return f"{statistics.median(of):.3f} (median of {len(of)}, 95 % in {least:.3f} .. {maximum:.3f})"


def by_median(of: Sequence[float]) -> str:
    """A note on the interval, for a goal that only the median meets."""
    least = interval([of])[0]
    if least >= OF_LIMIT or statistics.median(of) < OF_LIMIT:
        return ""
    return f"; met by the median: the interval includes {least:.2f}"


def section(found: Sequence[Repetition]) -> Section:
    """The section of the repetitions, with its tables and goals."""
    of_limit, of_inspect = ratios(found, "limit"), ratios(found, "inspect")
    rows = [row(found, side) for side in SIDES]
    by_side = {side: made["episodes/s"] for side, made in zip(SIDES, rows, strict=True)}
    work = {
        side: {(r.episodes, r.turns, r.sampled_tokens) for r in (one[side] for one in found)}
        for side in SIDES
    }
    same = len(set().union(*work.values())) == 1
    pairs = [
        {"repetition": n, "order": ", ".join(NAMES[side] for side in one)}
        | {f"{NAMES[side]}, episodes/s": shown(one[side].rate) for side in SIDES}
        | {"of the limit": shown(a), "over Inspect AI": shown(b)}
        for n, (one, a, b) in enumerate(zip(found, of_limit, of_inspect, strict=True), 1)
    ]
    outside = statistics.median(outside_ms(one["headway"]) for one in found)
    return Section(
        title="Episodes a second",
        read=READ,
        tables=[Table("Medians of the repetitions", rows), Table("Repetitions", pairs)],
        goals=[
            Goal(
                f"at least {OF_LIMIT} of vLLM's own limit on the same requests, by the median",
                f"{with_interval(of_limit)}{by_median(of_limit)}; "
                f"{by_side['headway']} of {by_side['limit']} episodes/s, "
                f"{outside:.1f} ms a turn outside vLLM",
                statistics.median(of_limit) >= OF_LIMIT,
            ),
            Goal(
                "ahead of Inspect AI, with the whole interval",
                f"{with_interval(of_inspect)}; {by_side['headway']} against {by_side['inspect']} episodes/s",
                interval([of_inspect])[0] > 1,
            ),
            Goal(
                "the same turns and tokens on every side",
                "the same" if same else "; ".join(f"{NAMES[side]} {sorted(work[side])}" for side in SIDES),
                same,
            ),
        ],
    )
